"""The model card: front matter that hubs read, figures with intervals, nothing that breaks the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gainstage.tracking import Figure, write_card


def parts(path: Path) -> tuple[dict, str]:
    _, head, body = path.read_text().split("---\n", 2)
    return yaml.safe_load(head), body


@dataclass
class Interval:
    value: float
    low: float
    high: float


def card(folder: Path, measured: dict, **settings):
    recipe = {"name": "grpo", "paper": "arXiv 2402.03300", "seed": 3, "models": {"judge": {"api_key": "sk-123"}}}
    given = {"base_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "dataset": "openai/gsm8k", **settings}
    return parts(write_card(folder / "grpo-gsm8k-001", recipe, measured, **given))


def test_figures_stand_in_the_table_and_in_the_front_matter(tmp_path: Path):
    figure = Figure(0.7123456, 0.65, 0.77, base=0.31, n=200, seeds=3)
    head, body = card(tmp_path, {"pass@1": figure, "length": Figure(41.0, unit="tokens")})
    assert "| pass@1 | 0.31 | 0.7123 | [0.65, 0.77], 95 % | 200 problems, 3 seeds |" in body
    assert "| length |  | 41 tokens | no interval | 1 seed |" in body
    assert head["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct" and head["datasets"] == ["openai/gsm8k"]
    assert head["library_name"] == "transformers" and "grpo" in head["tags"] and "license" not in head
    (result,) = head["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "pass@1", "value": 0.712346, "name": "pass@1 [0.65, 0.77]"}
    assert "**grpo** (arXiv 2402.03300) on `openai/gsm8k`, seed 3" in body
    assert "sk-123" not in body and "api_key: '***'" in body


@pytest.mark.parametrize(
    "measured",
    [
        {"pass@1": (0.5, 0.4, 0.6)},
        {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "method": "bootstrap"}},
        {"pass@1": Interval(0.5, 0.4, 0.6)},
        {"pass@1": 0.5, "pass@1/low": 0.4, "pass@1/high": 0.6},
    ],
)
def test_intervals_are_taken_from_what_measures_give(tmp_path: Path, measured: dict):
    _, body = card(tmp_path, measured)
    assert "| pass@1 |  | 0.5 | [0.4, 0.6], 95 % | 1 seed |" in body and "/low" not in body


def test_counts_and_values_before_training_join_their_figures(tmp_path: Path):
    measured = {
        "problems": 64,
        "answers": 256,
        "pass@1": 0.5,
        "pass@1/low": 0.4,
        "pass@1/high": 0.6,
        "pass@1/before": 0.2,
    }
    head, body = card(tmp_path, {**measured, "kl/start": 0.0})
    assert "| pass@1 | 0.2 | 0.5 | [0.4, 0.6], 95 % | 64 problems, 1 seed |" in body
    assert "| kl/start |  | 0 | no interval | 64 problems, 1 seed |" in body and "answers" not in body.split("```")[0]
    assert [m["name"] for m in head["model-index"][0]["results"][0]["metrics"]] == ["pass@1 [0.4, 0.6]", "kl/start"]


def test_the_value_before_training_brings_its_own_interval(tmp_path: Path):
    measured = {"pass@1": 0.5, "pass@1/low": 0.4, "pass@1/high": 0.6}
    measured |= {"pass@1/before": 0.2, "pass@1/before/low": 0.15, "pass@1/before/high": 0.25}
    _, body = card(tmp_path, measured)
    assert "| pass@1 | 0.2 [0.15, 0.25] | 0.5 | [0.4, 0.6], 95 % | 1 seed |" in body
    assert body.count("| pass@1") == 1 and "/before" not in body


def test_the_title_is_that_of_the_run_and_the_paper_is_linked(tmp_path: Path):
    recipe = {"name": "grpo", "paper": {"title": "DeepSeekMath", "arxiv": "2402.03300", "year": 2024}}
    head, body = parts(write_card(tmp_path / "grpo-001" / "final", recipe, {}, base_model="micro"))
    assert body.startswith("\n# grpo-001\n") and "**grpo** (DeepSeekMath, 2024, arXiv 2402.03300)" in body
    assert "arxiv:2402.03300" in head["tags"]


def test_names_that_are_no_hub_names_stay_out_of_the_front_matter(tmp_path: Path):
    head, body = card(
        tmp_path, {}, base_model="/home/me/model", dataset="jsonl:data.jsonl", kind="adapter", license="mit"
    )
    assert "base_model" not in head and "datasets" not in head and head["license"] == "mit"
    assert head["library_name"] == "peft" and "AutoPeftModelForCausalLM" in body
    assert "Nothing was measured" in body and "model-index" not in head


def test_hostile_text_does_not_break_out_of_its_block(tmp_path: Path):
    run = "gainstage train grpo\n```\n# not a heading"
    _, body = card(tmp_path, {"a|b": 1.0}, how_to_run=run, citation="@misc{x}")
    assert "````bash\n" + run + "\n````" in body and "| a\\|b |" in body and "```bibtex\n@misc{x}\n```" in body


def test_what_was_not_measured_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="'pass@1' is nan; leave out what was not measured"):
        card(tmp_path, {"pass@1": float("nan")})
    with pytest.raises(ValueError, match=r"'pass@1' has no value; it has \['mean'\]"):
        card(tmp_path, {"pass@1": {"mean": 0.5}})


def test_card_of_a_net_that_acts(tmp_path: Path):
    head, body = parts(
        write_card(tmp_path / "final", {"name": "ppo"}, {"problems": 20, "reward/mean": (400.0, 380.0, 420.0)},
                   base_model="actor_critic", dataset="cart_pole", kind="net")
    )  # fmt: skip
    assert head["library_name"] == "gainstage" and head["pipeline_tag"] == "reinforcement-learning"
    assert "transformers" not in body and "models.policy.weights=PATH" in body
