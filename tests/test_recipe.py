"""Recipes: inheritance, overrides, and errors that say what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from gainstage.recipe import catalog, check, compose, load, merge, override, parse_override
from gainstage.registry import RecipeError


def test_extends_merges_mappings_and_replaces_lists() -> None:
    base, own = {"a": {"x": 1, "y": 2}, "b": [1, 2]}, {"a": {"y": 3}, "b": [9]}
    assert merge(base, own) == {"a": {"x": 1, "y": 3}, "b": [9]}
    assert load("dapo").plan.refill == 3
    assert load("dapo").plan.groups == load("grpo").plan.groups


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("update.policy.lr=3e-4", "update", 3e-4),
        ("plan.groups=7", "plan", 7),
        ("plan.minibatch=null", "plan", None),
        ("select.shuffle.order=given", "select", "given"),
        ("models.reference.on=iteration", "models", "iteration"),
    ],
)
def test_overrides_reach_their_key(text: str, path: str, value: object) -> None:
    recipe = load("grpo", [text])
    node = recipe.model_dump()
    for segment in text.split("=")[0].split("."):
        if isinstance(node, list):
            node = next(
                entry if isinstance(entry, str) else entry[segment]
                for entry in node
                if entry == segment or (isinstance(entry, dict) and segment in entry)
            )
        else:
            node = node[segment]
    assert node == value


def test_override_of_a_nested_objective_and_swap_of_an_entry() -> None:
    recipe = load("grpo", ["update.policy.objectives.reference_kl.weight=0.5", "credit.group_relative=beta_normalized"])
    assert recipe.update[0]["policy"]["objectives"][1]["reference_kl"]["weight"] == 0.5
    assert recipe.credit[1] == "beta_normalized"
    assert load("grpo", ["reward=my_file.py:my_reward"]).reward == ["my_file.py:my_reward"]
    assert load("grpo", ["task.levels=[2]"]).task == {"arithmetic": {"levels": [2]}}
    assert load("grpo", ["rollout.generate.max_new=9"]).rollout == [{"generate": {"max_new": 9}}]


def test_a_mapping_that_is_given_replaces_what_stood_there() -> None:
    world = load("iql", ["task={recorded: {task: cart_pole}}"])
    assert world.task == {"recorded": {"task": "cart_pole"}}
    assert load("iql", ["task={gymnasium: {id: Pendulum-v1}}"]).task == {"gymnasium": {"id": "Pendulum-v1"}}
    assert load("ppo", ["budget={seconds: 5}"]).budget == {"seconds": 5}
    assert load("ppo", ["budget.seconds=5"]).budget == {"env_steps": 100000, "seconds": 5}
    assert load("dqn", ["models.policy={net: actor_critic}"]).models["policy"] == {"net": "actor_critic"}


def test_overrides_reach_into_a_phase_by_its_name() -> None:
    recipe = load("iw_opd", ["phases.distil.credit.teacher_logratio.positions=first", "phases.teach.iterations=7"])
    assert recipe.phases[1]["credit"][2] == {"teacher_logratio": {"gamma": 0.5, "positions": "first"}}
    assert (recipe.phases[0]["iterations"], recipe.phases[1]["iterations"]) == (7, 60)
    recipe = load("iw_opd", ["phases.distil.update.policy.objectives=[{clipped: {dual: 3.0}}]"])
    assert recipe.phases[1]["update"][0]["policy"]["objectives"] == [{"clipped": {"dual": 3.0}}]
    with pytest.raises(RecipeError, match="no phase 'destil'; did you mean 'distil'"):
        load("iw_opd", ["phases.destil.iterations=7"])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["plan.grups=4"], "groups"),
        (["updat.policy.lr=1"], "update"),
        (["update.polcy.lr=1"], "policy"),
        (["plan.groups=many"], "plan.groups"),
        (["plan.groups=0"], "plan.groups"),
        (["nonsense"], "key=value"),
        (["extends=dapo"], "a recipe's file"),
        (["budget.generated_token=5"], "generated_tokens"),
        (["evaluate.split=train"], "evaluate.split"),
        (["phases=[{iterations: 3}]"], "name"),
        (["phases=[{name: a, iteratons: 3}]"], "iterations"),
        (["phases=[{name: a}, {name: a}]"], "two phases are called 'a'"),
        (["phases=[{name: a, iterations: 0}]"], "phases.a.iterations"),
        (["phases=[{name: a, iterations: []}]"], "phases.a.iterations"),
        (["phases=[{name: a, epochs: some}]"], "phases.a.epochs"),
        (["phases=[{name: a, budget: {generated_token: 5}}]"], "generated_tokens"),
    ],
)
def test_mistakes_name_the_key_and_the_near_match(overrides: list[str], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        load("grpo", overrides)


def test_null_removes_an_entry_or_a_phase() -> None:
    one = load("opd", ["phases.teach=null", "models.teacher.load=micro"])
    assert [phase["name"] for phase in one.phases] == ["distil"]
    assert load("opd", ["phases.teach=null", "phases.distil=null"]).phases == load("opd", ["phases=[]"]).phases == []
    lean = load("grpo", ["credit.reference_logprobs=null", "update.policy.objectives.reference_kl=null"])
    assert lean.credit == [{"group_relative": {"center": "mean", "scale": "sample"}}, "broadcast"]
    assert lean.update[0]["policy"]["objectives"] == [{"clipped": {"low": 0.2, "high": 0.2}}]
    two = load("opd", ["phases.distil.credit.teacher_logratio=null", "phases.distil.credit.reverse_kl=null"])
    assert two.phases[1]["credit"] == [{"reference_logprobs": {"role": "teacher", "out": "teacher_logprobs"}}]
    assert load("grpo", ["plan.minibatch=null"]).plan.minibatch is None
    with pytest.raises(RecipeError, match=r"no phase 'teech'; did you mean 'teach'"):
        load("opd", ["phases.teech=null"])


def test_a_role_made_in_another_way_forgets_how_it_was_made(tmp_path: Path) -> None:
    assert load("opd", ["models.teacher.load=smollm2"]).models["teacher"] == {"load": "smollm2"}
    assert load("grpo", ["models.reference.on=round"]).models["reference"] == {"of": "policy", "on": "round"}
    assert load("ppo_lm", ["models.value.of=reference"]).models["value"] == {"net": "value_head", "of": "reference"}
    (tmp_path / "x.yaml").write_text("extends: grpo\nmodels: {reference: {load: micro}, policy: {lora: true}}\n")
    models = load(tmp_path / "x.yaml").models
    assert models == {"policy": {"load": "micro", "lora": True}, "reference": {"load": "micro"}}


def test_unknown_recipe_has_near_matches() -> None:
    with pytest.raises(RecipeError, match="'grpo'"):
        load("grpoo")
    with pytest.raises(RecipeError, match="did you mean 'grpo'"):
        load("gpro")


def test_yaml_numbers_words_and_dangers(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("extends: grpo\nbudget: {generated_tokens: 1e5}\nmodels: {reference: {of: policy, on: start}}\n")
    recipe = load(file)
    assert recipe.budget["generated_tokens"] == 1e5
    assert recipe.models["reference"] == {"of": "policy", "on": "start"}
    for text, says in (
        ("a: &a [1]\nb: *a\n", "aliases"),
        ("plan: {groups: 1, groups: 2}\n", "twice"),
        ("!!python/object/apply:os.system ['true']\n", "not readable"),
        ("- 1\n", "mapping"),
        ("plan: {groups: 2\n", "not readable"),
    ):
        file.write_text(text)
        with pytest.raises(RecipeError, match=says):
            load(file)
    with pytest.raises(RecipeError, match="no such file"):
        load(tmp_path / "absent.yaml")


def test_circles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(RecipeError, match="circle"):
        compose(tmp_path / "a.yaml")


def test_twins_need_names() -> None:
    with pytest.raises(RecipeError, match="`as`"):
        load("grpo", ["reward=[task_verdict, task_verdict]"])
    load("grpo", ["reward=[task_verdict, {task_verdict: {as: second, weight: 0}}]"])


def test_fingerprint_follows_the_numbers_and_not_the_words() -> None:
    base = load("grpo").fingerprint()
    assert load("grpo", ["title=other", "save.keep=9"]).fingerprint() == base
    assert load("grpo", ["seed=1"]).fingerprint() != base


def test_resolved_yaml_loads_again(tmp_path: Path) -> None:
    for name in catalog():
        recipe = load(name)
        file = tmp_path / f"{name}.yaml"
        file.write_text(recipe.yaml())
        assert load(file).fingerprint() == recipe.fingerprint(), name


def test_override_parses_yaml_values() -> None:
    assert parse_override("a.b=[1, {c: 2}]") == (["a", "b"], [1, {"c": 2}])
    assert override({"name": "x", "plan": {}}, "plan.groups=3")["plan"] == {"groups": 3}
    with pytest.raises(RecipeError):
        check({"name": "x", "plans": {}})
