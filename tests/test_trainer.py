"""The loop: resume, no-ops, failures, order of calls, metering."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from gainstage import checkpoint
from gainstage.measure.evaluate import summarize
from gainstage.measure.runs import RunRecord
from gainstage.recipe import load
from gainstage.registry import RecipeError, component
from gainstage.running import Run
from gainstage.tracking.folder import RunFolder, read_metrics
from gainstage.trainer import RunError, Trainer

TINY = ["plan.groups=4", "plan.minibatch=16", "evaluate.problems=4", "evaluate.samples=1"]


def trainer(name: str, *overrides: str, **settings) -> Trainer:
    return Trainer(load(name, [*TINY, *overrides]), **settings)


def weights(made: Trainer, role: str = "policy") -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in made.models[role].module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", ["grpo", "ppo_lm", "vade", "opd", "sft", "bnpo"])
def test_resume_from_a_boundary_is_bit_equal(name: str, tmp_path) -> None:
    """A run cut after each iteration and loaded from disk ends with the same bits."""
    phases = {"opd"}
    overrides = ["iterations=3"] if name not in phases else []
    recipe = load(name, [*TINY, *overrides, *(["task.train_size=40"] if name == "vade" else [])])
    if recipe.phases:
        from gainstage.recipe import check

        data = recipe.model_dump()
        for phase in data["phases"]:
            phase |= {"iterations": 2, "plan": {"groups": 4}}
        recipe = check(data)
    whole = Trainer(recipe)
    whole.run()
    total = whole.iteration
    cut = Trainer(recipe)
    for _ in range(total):
        cut.stop_requested = False
        cut.on_mark = lambda t: setattr(t, "stop_requested", True) or {}
        cut.run()
        checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint=recipe.fingerprint())
        state, saved, _ = checkpoint.load(checkpoint.latest(tmp_path))
        cut = Trainer(recipe)
        cut.load_state_dict(state, saved)
    assert cut.finished and cut.iteration == total
    assert same(weights(whole), weights(cut))
    assert {k: v for k, v in whole.meter.snapshot().items() if k != "seconds"} == {
        k: v for k, v in cut.meter.snapshot().items() if k != "seconds"
    }


def test_a_phase_s_rows_reach_the_next_one_also_after_resume(tmp_path) -> None:
    """Rejection sampling: a phase samples and hands its rows on, the next one fits them."""

    @component("reward", "hands_on")
    @dataclass
    class HandsOn:
        uses = ()

        def judge(self, trajs, ctx):
            rows = [{"prompt": t.problem.prompt, "completion": t.info["completion"] or "0"} for t in trajs]
            ctx.artifacts.setdefault("sampled", []).extend(rows)
            return [0.0] * len(trajs)

    from gainstage.recipe import check

    recipe = check({
        "name": "reject", "phases": [
            {"name": "sample", "iterations": 1, "select": [{"shuffle": {"samples": 2}}], "rollout": ["generate"],
             "reward": ["hands_on"], "plan": {"groups": 4}},
            {"name": "fit", "iterations": 2, "store": {"dataset": {"source": "artifact", "artifact": "sampled"}},
             "update": [{"policy": {"objectives": ["likelihood"], "agg": "token_mean"}}], "plan": {"minibatch": 4}},
        ],
    })  # fmt: skip
    whole = Trainer(recipe)
    whole.run()
    cut = Trainer(recipe)
    for _ in range(3):
        cut.stop_requested = False
        cut.on_mark = lambda t: setattr(t, "stop_requested", True) or {}
        cut.run()
        folder = checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint="f")
        assert (folder / "artifacts" / "sampled.parquet").is_file()
        state, saved, _ = checkpoint.load(folder)
        cut = Trainer(recipe)
        cut.load_state_dict(state, saved)
    assert cut.finished and same(weights(whole), weights(cut))
    assert cut.artifacts == whole.artifacts and len(cut.artifacts["sampled"]) == 8


def test_same_seed_same_bits_and_other_seed_other_bits() -> None:
    first, second, other = (trainer("grpo", "iterations=2", f"seed={seed}") for seed in (3, 3, 4))
    for made in (first, second, other):
        made.run()
    assert same(weights(first), weights(second))
    assert not same(weights(first), weights(other))


def test_no_op_settings_are_bit_equal_to_the_base() -> None:
    base = trainer("grpo", "iterations=2", "plan.minibatch=null")
    base.run()
    for overrides in (
        ["plan.refill=3"],
        ["plan.tokens_per_microbatch=null"],
        ["credit.group_relative.floor=0.0"],
        ["update.policy.every=1", "update.policy.warmup=0.0"],
        ["save.every=0.9"],
    ):
        twin = trainer("grpo", "iterations=2", "plan.minibatch=null", *overrides)
        twin.run()
        assert same(weights(base), weights(twin)), overrides


def test_zero_kl_weight_equals_no_reference() -> None:
    with_role = trainer("grpo", "iterations=2", "update.policy.objectives.reference_kl.weight=0.0")
    without = trainer(
        "grpo", "iterations=2", "credit=[{group_relative: {}}, broadcast]", "update.policy.objectives=[clipped]"
    )
    with_role.run()
    without.run()
    assert same(weights(with_role), weights(without))
    assert "reference" in with_role.models and "reference" not in without.models


def test_grpo_and_rgra_coincide_at_one_update_a_batch() -> None:
    """With one optimizer step a batch the ratio is 1 and the gradients are equal (arXiv 2603.18756)."""
    rows: dict[str, list] = {"grpo": [], "rgra": []}
    made = {}
    for name in rows:
        made[name] = trainer(name, "iterations=1", "plan.minibatch=null", "plan.groups=8", on_row=rows[name].append)
        made[name].run()
    assert rows["grpo"][0]["grad/norm"] == pytest.approx(rows["rgra"][0]["grad/norm"], rel=1e-5)
    a, b = weights(made["grpo"]), weights(made["rgra"])
    close = [float((a[k] - b[k]).abs().max()) for k in a]
    assert max(close) < 5e-4


def test_sampler_gap_is_measured_and_small() -> None:
    rows: list[dict[str, float]] = []
    trainer("grpo", "iterations=1", "plan.minibatch=null", on_row=rows.append).run()
    assert abs(rows[0]["kl/sampler"]) < 1e-4
    assert rows[0]["ratio/mean"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_temperature_enters_the_trainers_logprobs(temperature: float) -> None:
    """The first ratio is 1 at any temperature, for old, new and reference log-probs alike."""
    rows: list[dict[str, float]] = []
    trainer(
        "grpo", "iterations=1", "plan.minibatch=null", f"rollout.generate.temperature={temperature}", on_row=rows.append
    ).run()
    assert rows[0]["ratio/mean"] == pytest.approx(1, abs=1e-3)
    assert rows[0]["kl/ref"] == pytest.approx(0, abs=1e-5)


def test_greedy_training_is_refused() -> None:
    with pytest.raises(RecipeError, match="temperature"):
        trainer("grpo", "rollout.generate.temperature=0")


def test_dropped_groups_stay_paid() -> None:
    made = trainer("dapo", "iterations=2")
    made.run()
    spent = made.meter.snapshot()
    assert spent["answers"] >= spent["problems"] * 8
    assert spent["generated_tokens"] >= spent["trained_tokens"]


def test_nothing_to_train_on_stops_with_the_setting_to_change() -> None:
    made = trainer("dapo", "iterations=50", "plan.max_empty=3", "plan.refill=1", "task.impossible=1.0")
    with pytest.raises(RunError, match=r"3 iterations in a row.*plan\.refill"):
        made.run()


def test_rewards_that_are_always_none_are_named_as_the_cause(tmp_path) -> None:
    (tmp_path / "r.py").write_text("def none(problem, text):\n    return None\n")
    made = trainer("reinforce", f"reward={tmp_path / 'r.py'}:none", "plan.max_empty=2")
    with pytest.raises(RunError, match="no answer got a reward"):
        made.run()


@component("reward", name="nan_now_and_then")
def nan_now_and_then(problem, text, *, share: float = 0.5):
    return float("nan") if len(text) % 2 else float(len(text) % 3)


@pytest.mark.parametrize("leave", ["import sys; sys.exit(9)", "import os; os._exit(9)"])
def test_a_component_that_ends_the_program_is_named(leave: str, tmp_path) -> None:
    file = tmp_path / "leaver.py"
    file.write_text(f"def my_reward(problem, text):\n    {leave}\n")
    with pytest.raises(ValueError, match=r"'my_reward'.*exit 9(.|\n)*leaver.py:2 in my_reward"):
        trainer("grpo", "iterations=1", f"reward={file}:my_reward").run()

    @component("select", f"leaver_{len(leave)}")
    class Leaver:
        def keep(self, trajs, ctx):
            exec(leave)

    with pytest.raises(RunError, match=rf"select\.leaver_{len(leave)}\.keep: it asked the whole program to end"):
        trainer("grpo", "iterations=1", f"select=[{{shuffle: {{samples: 2}}}}, leaver_{len(leave)}]").run()


def test_non_finite_reward_drops_its_row_counted_and_named() -> None:
    rows: list[dict[str, float]] = []
    made = trainer("grpo", "iterations=2", "reward=nan_now_and_then", on_row=rows.append)
    made.run()
    assert sum(row.get("failures/reward/nan_now_and_then", 0) for row in rows) > 0
    assert all(torch.isfinite(value).all() for value in weights(made).values())


@component("credit", name="poison", needs=("mask",), writes=("advantages",))
def poison(batch):
    return {"advantages": torch.full(batch["mask"].shape, float("nan"))}


def test_non_finite_step_never_reaches_the_weights(tmp_path) -> None:
    recipe = load("grpo", [*TINY, "iterations=3", "credit=[reference_logprobs, poison]"])
    run = Run(recipe, RunFolder.create("poisoned", parent=tmp_path))
    before = weights(run.trainer)
    with pytest.raises(RunError, match=r"No weight was changed.*update\.policy\.lr"), run.folder:
        run.execute()
    assert same(before, weights(run.trainer))
    saved = list((tmp_path / "poisoned" / "failures").glob("*.safetensors"))
    assert len(saved) == 1


def test_run_folder_holds_everything(tmp_path) -> None:
    recipe = load("grpo", [*TINY, "iterations=3", "save.every=0.3", "evaluate.every=0.5", "evaluate.final_problems=4"])
    with RunFolder.create("whole", parent=tmp_path) as folder:
        record = Run(recipe, folder).execute()
    rows = read_metrics(folder.path)
    assert [row["iteration"] for row in rows] == [-1, 0, 1, 2]
    assert "eval/arithmetic/pass@1" in rows[0]
    for name in (
        "recipe.yaml",
        "environment.json",
        "metrics.jsonl",
        "record.json",
        "final/model.safetensors",
        "final/README.md",
    ):
        assert (folder.path / name).is_file(), name
    assert list((folder.path / "rollouts").glob("*.parquet"))
    assert record.spent["generated_tokens"] > 0 and record.evaluation_spent["generated_tokens"] > 0
    assert record.curve[-1]["eval/arithmetic/pass@1"] == record.numbers()["eval/arithmetic/pass@1"]
    assert record.final["eval/arithmetic/greedy"] is not None and "eval/arithmetic/greedy" in rows[0]
    assert [r.problem_id for r in record.before["arithmetic"]] == [
        r.problem_id for r in record.evaluation["arithmetic"]
    ]
    assert RunRecord.from_json(record.to_json()).before == record.before
    start = summarize(record.before["arithmetic"], (1,))["pass@1"]
    assert f"| pass@1 | {start:.4g} [" in (folder.path / "final/README.md").read_text()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder.path / "final")
    AutoTokenizer.from_pretrained(folder.path / "final")
    trained = checkpoint.load(checkpoint.latest(folder.checkpoints))[1]["policy"]
    assert all(torch.equal(model.state_dict()[key], value) for key, value in trained.items())


def test_killed_run_resumes_to_the_same_bits(tmp_path) -> None:
    recipe = load("grpo", [*TINY, "iterations=4", "save.every=0.25", "evaluate.every=0.5"])
    with RunFolder.create("a", parent=tmp_path) as folder:
        whole = Run(recipe, folder)
        whole.execute()
    folder = RunFolder.create("b", parent=tmp_path)
    cut = Run(recipe, folder)

    class Killed(BaseException):
        pass

    def die(row, made):
        if made.iteration == 3:
            raise Killed

    cut.watch = die
    with pytest.raises(Killed):
        cut.execute()
    folder._lock.release()
    again = Run.resume(tmp_path / "b")
    assert again.trainer.iteration in (2, 3)
    with again.folder:
        record = again.execute()
    assert record.before == {"arithmetic": whole.looks.first} and whole.looks.first
    assert same(weights(whole.trainer), weights(again.trainer))
    first, second = (read_metrics(tmp_path / name) for name in "ab")
    clocks = ("time", "seconds", "budget/seconds")
    kept = [[{k: v for k, v in row.items() if not k.startswith(clocks)} for row in rows] for rows in (first, second)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("optimizer", ["adamw", "adam_mini"])
def test_a_killed_run_with_adapters_resumes_to_the_same_bits(optimizer: str, tmp_path) -> None:
    """A random base model that is only on disk, adapters with dropout; the checkpoint holds the adapters alone."""
    pytest.importorskip("peft")
    from safetensors import safe_open
    from transformers import LlamaConfig, LlamaForCausalLM

    base = tmp_path / "base"
    (tmp_path / "own.py").write_text("def my_reward(problem, text):\n    return float(text.count('1'))\n")
    tokenizer = trainer("grpo").models["policy"].tokenizer
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    recipe = load(
        "grpo",
        [*TINY, f"models.policy.load={base}", "models.policy.lora={rank: 2, dropout: 0.1}", "iterations=4",
         f"update.policy.optimizer={optimizer}", f"reward={tmp_path}/own.py:my_reward",
         "save.every=0.25", "evaluate.every=0.5"],
    )  # fmt: skip

    def adapters(run: Run) -> dict[str, torch.Tensor]:
        return {k: v.clone() for k, v in run.trainer.models["policy"].module.named_parameters() if "lora_" in k}

    def start(name: str) -> Run:
        return Run(recipe, RunFolder.create(name, parent=tmp_path))

    whole, cut = start("a"), start("b")
    first = adapters(whole)
    with whole.folder:
        whole.execute()

    class Killed(BaseException):
        pass

    def die(row, made):
        if made.iteration == 3:
            raise Killed

    cut.watch = die
    with pytest.raises(Killed):
        cut.execute()
    cut.folder._lock.release()
    again = Run.resume(tmp_path / "b")
    assert 0 < again.trainer.iteration < 4
    with again.folder:
        again.execute()
    assert same(adapters(whole), adapters(again)) and not same(adapters(whole), first)
    (saved,) = [c / "models" / "policy.safetensors" for c in checkpoint.complete(tmp_path / "b" / "checkpoints")[-1:]]
    with safe_open(saved, "pt") as file:
        assert all("lora_" in key for key in list(file.keys()))


def test_group_of_one_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="samples"):
        trainer("grpo", "select.shuffle.samples=1")


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("grpo", "reward.task_verdict.weight=much", "weight must be a number"),
        ("grpo", "reward.task_verdict.combine=product", "combine must be"),
        ("grpo", "reward.task_verdict.fit_at=never", "fit_at"),
        ("grpo", "select=[group_filter]", "no entry picks problems"),
        ("grpo", "iterations=null", "never ends"),
        ("opd", "phases=[]", "neither samples nor trains"),
        ("ppo_lm", "credit=[reference_logprobs, group_relative, broadcast]", "update.value reads the column 'returns'"),
        ("grpo", "update.policy.needs=[tokens]", "no setting 'needs'"),
        ("grpo", "update.policy.every=0", "every"),
        ("grpo", "update.policy.lr=.inf", "lr"),
        ("grpo", "update.policy.warmup=2", "warmup"),
        ("grpo", "update.policy.clip=-1", "clip"),
        ("grpo", "update.policy.objectives=[]", "objectives is empty"),
        ("dpo", "update.preference.train=[]", "train names no role"),
    ],
)
def test_mistakes_are_said_before_anything_runs(name: str, change: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        trainer(name, change)


def test_a_phase_ends_at_its_own_budget() -> None:
    """Counted from the phase's start; progress rises through the phases, and a resumed run ends where it would have."""
    phases = "phases=[{name: a, iterations: 2}, {name: b, budget: {answers: 5}}, {name: c, iterations: 1}]"
    changes = (phases, "plan.groups=2", "plan.minibatch=null", "select.shuffle.samples=2")
    made = trainer("reinforce", *changes)
    rows: list[dict[str, float]] = []
    states = []

    def keep(row):
        rows.append(row)
        states.append(
            (made.schedule.place, json.loads(json.dumps(made.state_dict()["schedule"]["spent_before"])), made.iteration)
        )

    made.on_row = keep
    made.run()
    assert [place for place, _, _ in states] == [0, 1, 1, 2, 3]
    assert states[1][1]["answers"] == 8 and states[3][1]["answers"] == 16
    shares = [row["progress"] for row in rows]
    assert shares == sorted(shares) and shares[0] > 0 and shares[2] < 1

    first = trainer("reinforce", *changes)
    first.on_row = lambda row: setattr(first, "stop_requested", first.iteration == 3)
    first.run()
    second = trainer("reinforce", *changes)
    second.load_state_dict(first.state_dict(), first.models.state_dict())
    second.run()
    assert second.iteration == made.iteration and same(weights(second), weights(made))


def test_kl_paid_twice_is_refused() -> None:
    with pytest.raises(RecipeError, match="paid twice"):
        trainer("grpo", "reward=[task_verdict, {token_kl: {beta: 0.1}}]")


def test_missing_column_is_refused_with_its_makers() -> None:
    with pytest.raises(RecipeError, match=r"ref_logprobs"):
        trainer("grpo", "credit=[{group_relative: {}}, broadcast]")


def test_missing_capability_is_refused() -> None:
    with pytest.raises(RecipeError, match="env"):
        trainer("grpo", "rollout=[multi_turn]")


def test_rollout_into_a_fixed_set_is_refused() -> None:
    with pytest.raises(RecipeError, match="takes no experience"):
        trainer("grpo", "store=dataset")


def test_a_shaped_reward_cannot_gate() -> None:
    with pytest.raises(RecipeError, match="cannot gate"):
        trainer("reinforce_pp", "reward.token_kl.combine=gate")


@component("reward", name="only_the_greedy")
@dataclass
class OnlyTheGreedy:
    """Judges greedy rows alone, so that no trained row is left."""

    def judge(self, trajs, ctx):
        return [1.0 if bool(t.columns["greedy"]) else None for t in trajs]


def test_an_iteration_with_nothing_but_greedy_rows_is_counted_empty() -> None:
    rows: list[dict[str, float]] = []
    trainer("remax", "iterations=1", "reward=only_the_greedy", on_row=rows.append).run()
    assert rows[0]["dropped/empty_iterations"] == 1


def filled(tmp_path, long: int) -> str:
    """A data set of 60 problems, the first `long` of which fill the context of the embedded model."""
    file = tmp_path / "sums.jsonl"
    rows = [{"prompt": ("1+" * 2000 if n < long else "") + f"{n}+1=", "answer": str(n + 1)} for n in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"task=jsonl:{file}"


def test_prompts_that_fill_the_context_are_counted_and_not_trained(tmp_path) -> None:
    rows: list[dict[str, float]] = []
    seen: list[int] = []
    trainer(
        "grpo", "iterations=1", filled(tmp_path, 30), "plan.groups=8", "select.shuffle.samples=2",
        on_row=rows.append, on_batch=lambda number, batch: seen.append(batch.rows),
    ).run()  # fmt: skip
    assert 0 < seen[0] < 16 and rows[0]["dropped/no_room"] == 16 - seen[0]


def test_prompts_that_all_fill_the_context_stop_the_run_with_what_to_change(tmp_path) -> None:
    with pytest.raises(RunError, match=r"all 8 prompts .*fill the model's context.*larger context, or shorten"):
        trainer("grpo", filled(tmp_path, 60), "select.shuffle.samples=2", "plan.max_empty=2").run()
    recipe = load("grpo", [*TINY, filled(tmp_path, 60)])
    with pytest.raises(ValueError, match=r"all 6 prompts fill the model's context.*larger context, or shorten"):
        Run(recipe).execute()


def test_a_disk_that_fills_at_the_end_names_the_folder_and_the_run_can_be_finished(tmp_path, monkeypatch) -> None:
    from gainstage.policies.language.causal_lm import CausalPolicy

    recipe = load("grpo", [*TINY, "iterations=1", "evaluate.final_problems=2", "evaluate.final_samples=1"])
    write = CausalPolicy.save

    def refuse(self, folder) -> None:
        if folder.name == "final":
            raise OSError(28, "No space left on device")
        write(self, folder)

    monkeypatch.setattr(CausalPolicy, "save", refuse)
    with pytest.raises(OSError, match=r"final was not written \(No space.*000001, is intact.*--resume"):  # noqa: SIM117
        with RunFolder.create("a", parent=tmp_path) as folder:
            Run(recipe, folder).execute()
    monkeypatch.undo()
    again = Run.resume(tmp_path / "a")
    with again.folder:
        assert again.execute().final
    assert (tmp_path / "a" / "final" / "model.safetensors").is_file()
