"""The launcher `gs`, in a copy of its own with a stand-in for Python that installs nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = ("gs", "requirements.lock", "requirements-compiled.lock", "pyproject.toml")

# Makes environments that hold itself, notes what pip is asked for, and passes everything else to the real Python.
STAND_IN = """#!/usr/bin/env bash
case "$1 $2" in
  "-m venv")
    echo venv >>"$STAND_IN_LOG"
    mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg"
    cat >"$3/bin/gainstage" <<'END'
#!/usr/bin/env bash
echo "gainstage in $PWD:"; printf "<%s>" "$@"; exit ${STAND_IN_EXIT:-0}
END
    chmod +x "$3/bin/gainstage" ;;
  "-m pip")
    echo "pip ${*: -1}" >>"$STAND_IN_LOG"
    sleep "${STAND_IN_SLEEP:-0}"
    if [ -n "${STAND_IN_FAIL:-}" ] && [[ "$*" == *"$STAND_IN_FAIL" ]]; then echo "no wheel for it"; exit 1; fi ;;
  "-m pytest") echo "pytest in $PWD:"; printf "<%s>" "${@:3}" ;;
  "-c import ensurepip, venv") exit "${STAND_IN_NO_VENV:-0}" ;;
  *) exec "REAL" "$@" ;;
esac
"""


class Clone:
    """A copy of the launcher in a folder whose name has a space."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a clone"
        self.root.mkdir()
        for name in FILES:
            shutil.copy(ROOT / name, self.root)
        self.python = folder / "bin" / "python3"
        self.python.parent.mkdir()
        self.python.write_text(STAND_IN.replace("REAL", sys.executable))
        self.python.chmod(0o755)
        self.log = folder / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GS_")}
        self.environment = {**kept, "GS_PYTHON": str(self.python), "STAND_IN_LOG": str(self.log)}

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def start(self, *arguments: str, cwd: Path | None = None, gs: Path | None = None, **variables: str):
        return subprocess.Popen(
            [str(gs or self.root / "gs"), *arguments], cwd=cwd or self.root, env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, **settings) -> tuple[int, str, str]:
        process = self.start(*arguments, **settings)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out, err

    def did(self) -> list[str]:
        """What the stand-in was asked for so far, in short."""
        names = {"requirements.lock": "lock", "requirements-compiled.lock": "compiled", self.root.name: "self"}
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [names.get(Path(line.removeprefix("pip ")).name, line) for line in lines]


ALL = ["venv", "lock", "compiled", "self"]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_first_call_sets_up_and_the_second_only_runs(clone: Clone, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code, out, err = clone.run("compare", "grpo", "two words", cwd=elsewhere)
    assert code == 0 and out == f"gainstage in {elsewhere}:\n<compare><grpo><two words>"
    assert clone.did() == ALL
    assert "installing what requirements.lock pins" in err and "done in" in err and "environment ready after" in err
    code, out, err = clone.run("compare", cwd=elsewhere)
    assert (code, err, clone.did()) == (0, "", ALL)


def test_the_exit_code_is_that_of_the_command(clone: Clone):
    assert clone.run("train", STAND_IN_EXIT="7")[0] == 7


def test_tests_run_at_the_root_from_anywhere(clone: Clone, tmp_path: Path):
    code, out, _ = clone.run("test", "-q", "tests/ops", "-k", "a or b", cwd=tmp_path)
    assert code == 0 and out == f"pytest in {clone.root}:\n<-q><tests/ops><-k><a or b>"


def test_a_link_to_the_launcher_finds_the_clone(clone: Clone, tmp_path: Path):
    link = tmp_path / "bin" / "gs"
    link.symlink_to("../a clone/gs")
    code, out, _ = clone.run("methods", gs=link, cwd=tmp_path)
    assert code == 0 and "<methods>" in out and clone.venv.is_dir()


@pytest.mark.parametrize("name", FILES[1:])
def test_a_changed_file_brings_the_environment_up_to_date_in_place(clone: Clone, name: str):
    clone.run()
    (clone.venv / "kept").touch()
    with (clone.root / name).open("a") as file:
        file.write("\n# newer\n")
    _, _, err = clone.run()
    assert "bringing" in err and clone.did() == ALL + ALL[1:] and (clone.venv / "kept").exists()
    clone.run()
    assert clone.did() == ALL + ALL[1:]


def test_a_failed_install_shows_why_and_is_started_again(clone: Clone):
    code, out, err = clone.run("compare", STAND_IN_FAIL="requirements.lock")
    assert code == 1 and out == "" and "no wheel for it" in err and "the next call starts it again" in err
    assert clone.did() == ["venv", "lock"]
    code, _, err = clone.run("compare")
    assert code == 0 and "starting it again" in err and clone.did() == ["venv", "lock", *ALL]


def test_a_killed_set_up_is_started_again(clone: Clone):
    process = clone.start("compare", STAND_IN_SLEEP="30")
    deadline = time.monotonic() + 30
    while "lock" not in clone.did():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert clone.venv.is_dir() and not (clone.venv / "gs-stamp").exists()
    code, out, err = clone.run("compare")
    assert code == 0 and "starting it again" in err and "<compare>" in out and clone.did() == ["venv", "lock", *ALL]


def test_what_does_not_compile_is_left_out_unless_strict(clone: Clone):
    code, _, err = clone.run("compare", STAND_IN_FAIL="requirements-compiled.lock")
    assert code == 0 and "left out" in err and "rg:NAME" in err
    shutil.rmtree(clone.venv)
    code, _, err = clone.run("compare", STAND_IN_FAIL="requirements-compiled.lock", GS_STRICT="1")
    assert code == 1 and "requirements-compiled.lock does not install" in err


def test_two_calls_at_once_set_up_once(clone: Clone):
    calls = [clone.start("compare", STAND_IN_SLEEP="0.5") for _ in range(3)]
    results = [call.communicate(timeout=60) for call in calls]
    assert [call.returncode for call in calls] == [0, 0, 0]
    assert all("<compare>" in out for out, _ in results)
    assert clone.did() == ALL
    assert sum("waiting for it" in err for _, err in results) >= 1


def test_a_moved_clone_gets_a_new_environment(clone: Clone, tmp_path: Path):
    clone.run()
    clone.root = clone.root.rename(tmp_path / "moved")
    code, _, err = clone.run()
    assert code == 0 and "made for another folder" in err
    assert clone.did() == [*ALL[:3], f"pip {tmp_path / 'a clone'}", *ALL]


def test_an_environment_whose_python_is_gone_is_made_again(clone: Clone):
    clone.run()
    (clone.venv / "bin" / "python").unlink()
    code, _, err = clone.run()
    assert code == 0 and "is gone: starting it again" in err and clone.did() == ALL + ALL


def test_folders_that_are_no_environment_are_not_touched(clone: Clone, tmp_path: Path):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "work.txt").touch()
    code, _, err = clone.run(GS_VENV=str(folder))
    assert code == 1 and "is not a virtual environment; move it away or set GS_VENV" in err
    assert [path.name for path in folder.iterdir()] == ["work.txt"] and clone.did() == []


def test_an_environment_made_by_hand_is_used(clone: Clone):
    subprocess.run([clone.python, "-m", "venv", clone.venv], env=clone.environment, check=True)
    (clone.venv / "mine").touch()
    code, _, _ = clone.run()
    assert code == 0 and (clone.venv / "mine").exists() and clone.did() == ALL


def test_another_place_for_the_environment(clone: Clone, tmp_path: Path):
    code, _, _ = clone.run("setup", GS_VENV="deep/er/venv", cwd=tmp_path)
    assert code == 0 and (tmp_path / "deep/er/venv/gs-stamp").exists() and not clone.venv.exists()


def test_an_old_python_is_refused_with_what_was_found(clone: Clone, tmp_path: Path):
    old = tmp_path / "python3"
    old.write_text('#!/usr/bin/env bash\n[ "$1" = --version ] && echo "Python 3.8.18"\nexit 1\n')
    old.chmod(0o755)
    code, _, err = clone.run(GS_PYTHON=str(old))
    assert code == 1 and "needs Python 3.11 or newer" in err and "Python 3.8.18" in err and "GS_PYTHON=" in err
    code, _, err = clone.run(GS_PYTHON=str(tmp_path / "nowhere"))
    assert code == 1 and "found: none" in err
    code, _, err = clone.run(STAND_IN_NO_VENV="1")
    assert code == 1 and "apt install python3-venv" in err
    assert clone.did() == []


def test_a_newer_python_is_looked_for_under_its_own_name(clone: Clone, tmp_path: Path):
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("python3", "python3.11"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    (folder / "python3.12").symlink_to(clone.python)
    del clone.environment["GS_PYTHON"]
    code, _, err = clone.run(PATH=f"{folder}:/usr/bin:/bin", GS_DRY_RUN="1")
    assert code == 0 and f"with {folder}/python3.12, Python 3" in err


def test_a_dry_run_tells_and_changes_nothing(clone: Clone):
    before = sorted(clone.root.iterdir())
    code, out, err = clone.run("compare", "grpo", GS_DRY_RUN="1")
    assert code == 0 and out == "" and clone.did() == [] and sorted(clone.root.iterdir()) == before
    for line in ("would run: pip_install -r", "-m venv", f"would run: {clone.venv}/bin/gainstage compare grpo"):
        assert line in err


def test_lint_names_its_commands(clone: Clone):
    clone.run("setup")
    _, _, err = clone.run("lint", GS_DRY_RUN="1")
    said = [line.removeprefix("gs: ") for line in err.splitlines()]
    assert said == ["ruff check .", "ruff format --check .", "mypy", "lint-imports --no-cache"]


def test_half_a_clone_is_said(clone: Clone):
    (clone.root / "requirements.lock").unlink()
    code, _, err = clone.run()
    assert code == 1 and "requirements.lock is missing: is this a whole clone?" in err


def test_the_locks_are_plain_pins_and_hold_the_test_tools():
    pins = {}
    for name in ("requirements.lock", "requirements-compiled.lock"):
        for line in (ROOT / name).read_text().splitlines():
            package, _, version = line.partition("==")
            assert package and version and not set("@/:; +#") & set(line), line
            assert package.lower() not in pins
            pins[package.lower()] = version
    assert {"torch", "transformers", "pytest", "hypothesis", "ruff", "mypy", "import-linter", "peft"} <= set(pins)
    assert pins["torch"] == "2.13.0"
