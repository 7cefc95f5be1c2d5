"""The arrows between the rooms, as pyproject.toml states them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def lint(project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    return subprocess.run([sys.executable, "-c", LINT], cwd=project, env=environment, capture_output=True, text=True)


def test_the_arrows_hold():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("tasks/fetch.py", "from gainstage.trainer import run", "tasks.fetch -> gainstage.trainer"),
        ("reward/exact.py", "import gainstage.policies", "reward.exact -> gainstage.policies"),
        ("ops/ranks.py", "def lazily():\n    import gainstage.registry", "ops.ranks -> gainstage.registry"),
        ("measure/audit.py", "import gainstage.registry", "measure.audit -> gainstage.registry"),
        ("types/records.py", "import transformers", "types.records -> transformers"),
        ("attic/__init__.py", "", "attic"),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path: Path, module: str, line: str, broken: str):
    """A house of empty rooms with one fault: a forbidden import, or a room without a place."""
    package = tmp_path / "src" / "gainstage"
    for room in ("tasks", "policies", "reward", "measure", "ops", "types"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    for file in ("__init__.py", "trainer.py", "registry.py"):
        (package / file).touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint(tmp_path).returncode == 0
    (package / module).parent.mkdir(exist_ok=True)
    (package / module).write_text(line + "\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert broken in result.stdout
