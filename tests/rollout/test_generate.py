"""Single-turn generation and the rows it makes, against a scripted policy."""

import dataclasses

import pytest
import torch
from tests.rollout.scripted import END, ScriptedPolicy, ScriptedTask, characters, context, logprob

from gainstage.registry import RecipeError, build
from gainstage.rollout.text.generate import Generate
from gainstage.rollout.text.prompts import TEMPLATES, PromptTemplate, find_template
from gainstage.rollout.text.rows import Context, closed_text, draw, episode_id
from gainstage.types import Author, Completion, Problem, Request, Sampling, Stop, collate


def problem(text="2+2="):
    return Problem(id=str(text), prompt=text)


def by_key(context_text, key):
    return f"k{key}"


def test_columns_of_a_row():
    policy = ScriptedPolicy(lambda c, k: "4")
    request = Request(problem(), 1, group=7, first=2, hint=characters("hm"))
    (row,) = Generate().collect([request], context(policy), None)
    ids = [*characters("2+2="), *characters("hm"), *characters("4"), END]
    assert row.columns["tokens"].tolist() == ids
    assert row.columns["author"].tolist() == [Author.PROMPT] * 4 + [Author.HINT] * 2 + [Author.POLICY] * 2
    assert row.columns["turn"].tolist() == [-1] * 6 + [0, 0]
    assert row.columns["mask"].tolist() == [False] * 6 + [True] * 2
    expected = [0.0] * 6 + [logprob(7002, 0, characters("4")[0]), logprob(7002, 1, END)]
    assert row.columns["behaviour_logprobs"].tolist() == pytest.approx(expected)
    assert row.columns["behaviour_logprobs"].dtype == torch.float32
    assert (row.group, row.sample, row.version, row.actor, row.stop) == (7, 2, 3, "policy", Stop.EOS)
    assert row.info == {"prompt": "2+2=hm", "completion": "4"}
    assert row.columns["temperature"] == 1 and row.columns["greedy"] == 0


def test_one_call_with_shared_prefill_and_one_key_per_sample():
    policy = ScriptedPolicy(by_key)
    requests = [Request(problem("a"), 3, 1), Request(problem("b"), 2, 2, first=4)]
    rows = Generate().collect(requests, context(policy), None)
    assert len(policy.calls) == 1
    assert [prompt.keys for prompt in policy.calls[0][0]] == [(1000, 1001, 1002), (2004, 2005)]
    assert [row.info["completion"] for row in rows] == ["k1000", "k1001", "k1002", "k2004", "k2005"]
    assert [row.sample for row in rows] == [0, 1, 2, 4, 5]
    assert len({row.episode for row in rows}) == 5


def test_rows_do_not_depend_on_the_batch():
    requests = [Request(problem(p), 2, g) for g, p in enumerate("abc")]
    together = Generate().collect(requests, context(ScriptedPolicy(by_key)), None)
    backwards = Generate().collect(requests[::-1], context(ScriptedPolicy(by_key)), None)
    alone = [row for r in requests for row in Generate().collect([r], context(ScriptedPolicy(by_key)), None)]
    find = {row.episode: row for row in backwards}
    for row, other in zip(together, alone, strict=True):
        for name in row.columns:
            assert torch.equal(row.columns[name], other.columns[name])
            assert torch.equal(row.columns[name], find[row.episode].columns[name])


def test_collates_with_columns_of_declared_kind():
    policy = ScriptedPolicy(lambda c, k: "4" * (1 + k % 2))
    batch = collate(Generate().collect([Request(problem(), 4, 0)], context(policy), None))
    assert batch.steps == 7 and batch.rows == 4
    assert batch["temperature"].shape == batch["greedy"].shape == (4,)
    assert batch["author"][0].tolist()[-1] == -1 and not batch["mask"][0, -1]


def test_length_limit_is_told_from_an_end():
    policy = ScriptedPolicy(lambda c, k: "0123456789")
    (row,) = Generate(max_new=4).collect([Request(problem(), 1, 0)], context(policy), None)
    assert row.stop is Stop.LENGTH and int(row.columns["mask"].sum()) == 4
    (row,) = Generate().collect([Request(problem(), 1, 0)], context(policy), None)
    assert int(row.columns["mask"].sum()) == ScriptedTask.max_new


def test_stop_string_leaves_the_text_and_stays_in_the_ids():
    policy = ScriptedPolicy(lambda c, k: "ab##cd")
    (row,) = Generate(stop=["##"]).collect([Request(problem(), 1, 0)], context(policy), None)
    assert row.info["completion"] == "ab" and row.stop is Stop.EOS
    assert row.columns["tokens"][row.columns["mask"]].tolist() == characters("ab##")


def test_context_limit_shortens_only_the_long_prompt():
    policy = ScriptedPolicy(lambda c, k: "0123456789", context_limit=10)
    requests = [Request(problem("ab"), 1, 0), Request(problem("abcdefgh"), 1, 1), Request(problem("x" * 12), 1, 2)]
    logged = {}
    rows = Generate(max_new=5).collect(requests, context(policy, logged=logged), None)
    assert [int(row.columns["mask"].sum()) for row in rows] == [5, 2, 0]
    assert [row.stop for row in rows] == [Stop.LENGTH, Stop.CONTEXT, Stop.CONTEXT]
    assert logged["failures/context"] == 2
    assert collate(rows)["mask"].sum() == 7


def test_greedy_request_is_answered_and_not_trained():
    policy = ScriptedPolicy(by_key)
    requests = [Request(problem(), 1, 0), Request(problem(), 1, 0, first=1, sampling=Sampling(temperature=0))]
    normal, greedy = Generate(temperature=0.7).collect(requests, context(policy), None)
    assert normal.columns["mask"].any() and normal.columns["temperature"] == pytest.approx(0.7)
    assert not greedy.columns["mask"].any() and greedy.columns["greedy"] == 1 and greedy.columns["temperature"] == 0
    assert greedy.info["completion"] == "k1"


@pytest.mark.parametrize("setting", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_support_cuts_are_refused_in_training(setting):
    with pytest.raises(ValueError, match="importance ratio"):
        Generate(**setting)
    request = Request(problem(), 1, 0, sampling=Sampling(**setting))
    with pytest.raises(ValueError, match="allow_support_cuts"):
        Generate().collect([request], context(ScriptedPolicy(by_key)), None)
    looked_at = dataclasses.replace(Generate(), allow_support_cuts=True, **setting)
    assert looked_at.collect([request], context(ScriptedPolicy(by_key)), None)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="greedily"):
        Generate(temperature=0)
    with pytest.raises(ValueError, match="max_new"):
        Generate(max_new=0)
    with pytest.raises(RecipeError, match="template"):
        build("rollout", "generate", {"template": "thnik"})
    with pytest.raises(ValueError, match="no problem"):
        Generate().collect([Request(None, 1, 0)], context(ScriptedPolicy(by_key)), None)
    assert build("rollout", "generate", {"temperature": 0.8}).sampling.temperature == 0.8


def test_actors_and_a_scratch_model():
    policies = {name: ScriptedPolicy(lambda c, k, n=name: n, role=name) for name in ("policy", "expert")}
    requests = [Request(problem(), 1, 0), Request(problem(), 1, 1, actor="expert"), Request(problem(), 1, 2)]
    rows = Generate().collect(requests, context(policies), None)
    assert [row.actor for row in rows] == [row.info["completion"] for row in rows] == ["policy", "expert", "policy"]
    assert {row.actor for row in Generate(actor="expert").collect(requests, context(policies), None)} == {"expert"}
    scratch = ScriptedPolicy(lambda c, k: "copy")
    rows = Generate().collect(requests, context(policies), None, model=scratch)
    assert [row.info["completion"] for row in rows] == ["copy"] * 3


def test_template_is_applied_and_recorded():
    policy = ScriptedPolicy(lambda c, k: "4")
    (row,) = Generate(template="question").collect([Request(problem("2+2"), 1, 0)], context(policy), None)
    assert row.info["prompt"] == "Question: 2+2\nAnswer:"
    assert row.info["template"] == TEMPLATES["question"].tag
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "a"},
    ]
    rendered = PromptTemplate("own", "<{prompt}> {x}").render(chat)
    assert [m["content"] for m in rendered] == ["s", "<2+2> {x}", "a"] and chat[1]["content"] == "2+2"


def test_templates_are_hashed_data():
    assert len({template.hash for template in TEMPLATES.values()}) == len(TEMPLATES)
    assert PromptTemplate("a", "x{prompt}").hash != PromptTemplate("a", "y{prompt}").hash
    assert find_template("Q {prompt} A").render("{prompt}") == "Q {prompt} A"
    with pytest.raises(ValueError, match="exactly once"):
        PromptTemplate("bad", "none")
    with pytest.raises(ValueError, match="neither"):
        find_template("nothing")
    with pytest.raises(ValueError, match="no user message"):
        TEMPLATES["think"].render([{"role": "system", "content": "x"}])


def test_context_refuses_sampled_ids_without_logprobs():
    with pytest.raises(ValueError, match="log-probs"):
        Context().append([5, 6], Author.POLICY, 0, [-1.0])
    assert episode_id(3, 1) != episode_id(1, 3)
    with pytest.raises(ValueError, match="sample index"):
        episode_id(0, 1 << 20)


def test_closed_text_gives_the_marker_back():
    policy = ScriptedPolicy(by_key)
    done = Completion(characters("go n\n"), [0.0] * 5, Stop.EOS, "go n")
    assert closed_text(policy, done, ["\n"]) == "go n\n"
    assert closed_text(policy, dataclasses.replace(done, stop=Stop.LENGTH), ["\n"]) == "go n"
    ended = Completion([*characters("go n"), END], [0.0] * 5, Stop.EOS, "go n")
    assert closed_text(policy, ended, ["\n"]) == "go n"
    assert draw(policy, [], max_new=3) == []


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_a_temperature_is_finite_and_not_negative(temperature):
    with pytest.raises(ValueError, match="temperature must be >= 0 and finite"):
        Sampling(temperature=temperature)
