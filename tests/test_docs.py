"""What the documents show is what runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli.main import app
from gainstage.recipe import load
from gainstage.trainer import Trainer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def test_own_method_of_the_how_to_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "how-to" / "own-method.md"
    (code,) = blocks(page, "python")
    (recipe,) = blocks(page, "yaml")
    assert len(code.splitlines()) <= 32
    (tmp_path / "range_relative.py").write_text(code)
    (tmp_path / "range_grpo.yaml").write_text(recipe)
    from gainstage.registry import load_plugin

    load_plugin(tmp_path / "range_relative.py")
    made = Trainer(load(tmp_path / "range_grpo.yaml", ["iterations=2", "plan.groups=4", "plan.minibatch=null"]))
    made.run()
    assert made.iteration == 2 and made.meter.total("trained_tokens") > 0


def test_reward_of_the_how_to_runs_unchanged(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "own-reward-and-data.md"
    (code,) = blocks(page, "python")
    (tmp_path / "my_reward.py").write_text(code)
    (tmp_path / "data.jsonl").write_text("".join(f'{{"prompt": "{a}+1=", "answer": "{a + 1}"}}\n' for a in range(40)))
    rows: list[dict[str, float]] = []
    overrides = [
        f"task=jsonl:{tmp_path}/data.jsonl",
        f"reward={tmp_path}/my_reward.py:close_enough",
        "rollout.generate.max_new=8",
    ]
    Trainer(load("grpo", ["iterations=1", "plan.groups=4", *overrides]), on_row=rows.append).run()
    assert "reward/part/close_enough/mean" in rows[0]


def test_own_environment_and_algorithm_of_the_how_to_train(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "environments.md"
    environment, _, algorithm, *_ = blocks(page, "python")
    (recipe,) = blocks(page, "yaml")
    (tmp_path / "docking.py").write_text(environment)
    (tmp_path / "better_only.py").write_text(algorithm)
    (tmp_path / "better_only.yaml").write_text(recipe)
    from gainstage.registry import load_plugin

    load_plugin(tmp_path / "docking.py")
    load_plugin(tmp_path / "better_only.py")
    rows: list[dict[str, float]] = []
    for name in ("ppo", str(tmp_path / "better_only.yaml")):
        made = Trainer(load(name, ["task=docking", "iterations=3", "budget={}"]), on_row=rows.append)
        made.run()
        assert made.iteration == 3 and made.meter.total("env_steps") > 0
    assert any("episode/success" in row for row in rows)


def test_gymnasium_is_bridged_as_the_how_to_says(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    _, bridges, *_ = blocks(ROOT / "docs" / "how-to" / "environments.md", "python")
    (tmp_path / "bridges.py").write_text(bridges)
    made = runpy.run_path(str(tmp_path / "bridges.py"))
    assert made["single"].reset(seed=0)[0].shape == (4,)
    assert made["vector"].num_envs == 64
    assert made["first"].shape == (4, 6)


def test_own_bonus_of_the_how_to_is_paid(tmp_path: Path) -> None:
    bonus = blocks(ROOT / "docs" / "how-to" / "environments.md", "python")[3]
    (tmp_path / "centred.py").write_text(bonus)
    from gainstage.registry import load_plugin

    load_plugin(tmp_path / "centred.py")
    rewards = []
    for scale in (0.0, 0.5):
        made = Trainer(
            load("ppo", [f"reward=[{{centred: {{scale: {scale}}}}}]", "iterations=1", "budget={}"]),
            on_batch=lambda number, batch: rewards.append(batch["rewards"].mean()),
        )
        made.run()
    assert rewards[1] < rewards[0]


def test_a_finished_run_plays_in_a_program_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    use = blocks(ROOT / "docs" / "how-to" / "environments.md", "python")[4]
    (tmp_path / "use.py").write_text(use)
    monkeypatch.chdir(tmp_path)
    words = ["train", "ppo", "budget.env_steps=1024", "--name", "ppo-cart_pole-001"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert runpy.run_path("use.py")["total"] > 0


def commands() -> list[str]:
    """Every gainstage command line in the documents."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"```(?:bash)?\n(.*?)```", text, re.S):
            found += [f"{line.strip()}" for line in block.splitlines() if re.match(r"\s*(\./gs|gainstage) ", line)]
    return sorted(set(found))


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_documents_parse(line: str) -> None:
    """Each names an existing command, existing options and, where it trains, a recipe with valid overrides."""
    import shlex

    import typer.main

    words = shlex.split(line, comments=True)[1:]
    if words[0] in ("test", "lint", "setup", "python"):
        return
    group = typer.main.get_command(app)
    command = group.commands[words[0]]
    context = command.make_context(words[0], words[1:], resilient_parsing=False)
    name = context.params.get("recipe") or context.params.get("name")
    if words[0] in ("train", "show") and isinstance(name, str) and not name.endswith(".yaml"):
        overrides = [o for o in context.params.get("overrides") or [] if ".py:" not in o]
        load(name, overrides)


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"


def test_reference_pages_are_up_to_date() -> None:
    """In a process of its own: other tests register components of the how-to pages."""
    command = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
