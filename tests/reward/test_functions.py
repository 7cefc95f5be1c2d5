"""Reward functions of other libraries run unchanged; the task's verdict becomes a reward."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
import torch

from gainstage import registry
from gainstage.reward.functions import FunctionReward, RewardFunctionError
from gainstage.types import Author, Ctx, Problem, Stop, Trajectory, Verdict, collate


def trajectory(text, answer="4", prompt="2+2?", **meta):
    author = torch.tensor([Author.PROMPT, Author.POLICY, Author.ENV, Author.POLICY])
    return Trajectory(
        Problem("p", prompt, answer, meta=meta),
        0,
        0,
        0,
        "policy",
        0,
        Stop.EOS,
        {"tokens": torch.tensor([9, 5, 8, 6]), "author": author, "mask": author == Author.POLICY},
        info={"completion": text},
    )


def context(judge=None, **task):
    logged = []
    ctx = Ctx(
        {},
        SimpleNamespace(name="sums", **task),
        None,
        None,
        iteration=3,
        judge=judge,
        log=lambda name, value: logged.append((name, value)),
    )
    return ctx, logged


def reward(tmp_path, source, name="my_reward"):
    file = tmp_path / f"user_{abs(hash(source))}.py"
    file.write_text(source)
    return FunctionReward(f"{file}:{name}")


def judge(tmp_path, source, trajs, name="my_reward"):
    return reward(tmp_path, source, name).judge(trajs, context()[0])


BOTH = [trajectory("4", difficulty="easy"), trajectory("5", difficulty="hard")]


def test_trl_function_sees_columns_ids_and_logs(tmp_path):
    source = """
def my_reward(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, difficulty, answer, **kwargs):
    assert prompts == ["2+2?"] * 2 and completion_ids == [[5, 6], [5, 6]]
    assert trainer_state.global_step == 3 and difficulty == ["easy", "hard"] and kwargs["environments"] == [None, None]
    assert kwargs["solution"] == answer == ["4", "4"]
    log_extra("seen", completions)
    log_metric("length", 2)
    return [1.0 if c == a else None for c, a in zip(completions, answer)]
"""
    component = reward(tmp_path, source)
    ctx, logged = context()
    trajs = [trajectory("4", difficulty="easy"), trajectory("5", difficulty="hard")]
    assert component.judge(trajs, ctx) == [1.0, None]
    assert (component.name, component.signature) == ("my_reward", "trl")
    assert [t.info["seen"] for t in trajs] == ["4", "5"]
    assert logged == [("length", 2.0)]


def test_trl_conversational_completions_and_a_column_named_answer(tmp_path):
    source = """
def my_reward(completions, answer, **kwargs):
    return [float(c[0]["content"] == a.split("####")[1].strip()) for c, a in zip(completions, answer)]
"""
    chat = [{"role": "user", "content": "2+2?"}]
    worked = Problem("p", chat, "4", meta={"answer": "so #### 4"})
    trajs = [Trajectory(worked, 0, 0, 0, "policy", 0, Stop.EOS, {}, info={"completion": "4"})]
    assert judge(tmp_path, source, trajs) == [1.0]


@pytest.mark.parametrize("inside_loop", [False, True])
def test_async_functions(tmp_path, inside_loop):
    source = """
import asyncio
async def my_reward(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(c)) for c in completions]
async def single(completion, answer):
    await asyncio.sleep(0)
    return completion == answer
"""
    component, one = reward(tmp_path, source), reward(tmp_path, source, "single")

    def ask():
        return component.judge(BOTH, context()[0]), one.judge(BOTH, context()[0])

    async def inside():
        return ask()

    assert (asyncio.run(inside()) if inside_loop else ask()) == ([1.0, 1.0], [1.0, 0.0])


def test_verl_score_and_dictionary(tmp_path):
    source = """
def my_reward(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k" and extra_info == {"index": 7}
    return {"score": float(solution_str == ground_truth), "format": 0.5, "pred": solution_str}
"""
    trajs = [trajectory(t, data_source="openai/gsm8k", extra_info={"index": 7}) for t in ("4", "5")]
    component = reward(tmp_path, source)
    assert component.judge(trajs, context()[0]) == [1.0, 0.0]
    assert trajs[0].parts == {"my_reward/format": 0.5}
    batch = collate(trajs)
    assert batch["parts/my_reward/format"].tolist() == [0.5, 0.5]


def test_verl_batch(tmp_path):
    source = """
def my_reward(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(s == g)} for s, g in zip(solution_strs, ground_truths)]
"""
    assert judge(tmp_path, source, BOTH) == [1.0, 0.0]


def test_openrlhf_file(tmp_path):
    source = """
import torch
def reward_func(queries, prompts, labels, **kwargs):
    hits = torch.tensor([float(q[len(p):] == l) for q, p, l in zip(queries, prompts, labels)])
    return {"rewards": 2 * hits - 1, "scores": hits, "extra_logs": {"length": [len(q) for q in queries]}}
"""
    trajs = [trajectory("4"), trajectory("5")]
    assert judge(tmp_path, source, trajs, "reward_func") == [1.0, -1.0]
    assert [t.parts for t in trajs] == [
        {"reward_func/score": 1.0, "reward_func/length": 5.0},
        {"reward_func/score": 0.0, "reward_func/length": 5.0},
    ]


def test_verifiers_by_name_and_group(tmp_path):
    source = """
def single(completion, answer, info, state, difficulty=None):
    return float(completion == answer == state["answer"]) + (info["difficulty"] == difficulty == "hard")
def group(completions, answers, states):
    return [float(c == a) - len(states) for c, a in zip(completions, answers)]
"""
    assert judge(tmp_path, source, BOTH, "single") == [1.0, 1.0]
    assert judge(tmp_path, source, BOTH, "group") == [-1.0, -2.0]


def test_own_signature_with_verdict(tmp_path):
    source = """
from gainstage.types import Verdict
def my_reward(problem, text):
    return Verdict(1.0, {"short": 1.0}, "well done") if text == problem.answer else None
"""
    trajs = [trajectory("4"), trajectory("5")]
    assert judge(tmp_path, source, trajs) == [1.0, None]
    assert [t.parts["my_reward/short"] for t in trajs] == [1.0, None]
    assert trajs[0].info["feedback"] == "well done" and "feedback" not in trajs[1].info


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "-float('inf')", "'high'", "10**400"])
def test_what_is_no_number_names_function_and_row(tmp_path, value):
    source = f"def my_reward(completions, **kwargs):\n    return [0.0, {value}]\n"
    with pytest.raises(RewardFunctionError, match=r"(?s)'my_reward'.*row 1.*completion: '5'"):
        judge(tmp_path, source, BOTH)


@pytest.mark.parametrize("value", ["[1.0]", "[1.0] * 3", "1.0", "'ab'"])
def test_wrong_length_is_an_error(tmp_path, value):
    with pytest.raises(RewardFunctionError, match="2"):
        judge(tmp_path, f"def my_reward(completions, **kwargs):\n    return {value}\n", BOTH)


def test_an_exception_shows_line_and_sample(tmp_path):
    source = "def my_reward(completions, **kwargs):\n    return [1 / (5 - int(c)) for c in completions]\n"
    with pytest.raises(RewardFunctionError) as caught:
        judge(tmp_path, source, BOTH)
    message = str(caught.value)
    assert "ZeroDivisionError" in message and ":2 in" in message and "1 / (5 - int(c))" in message
    assert "row 1" in message and "completion: '5'" in message


@pytest.mark.parametrize("call", ["sys.exit(7)", "raise SystemExit(7)", "exit(7)"])
def test_a_function_that_ends_the_program_is_named_with_its_line(tmp_path, call):
    source = (
        f"import sys\ndef my_reward(completions, **kw):\n    if '5' in completions:\n        {call}\n    return [0]\n"
    )
    with pytest.raises(RewardFunctionError) as caught:
        judge(tmp_path, source, BOTH)
    message = str(caught.value)
    assert "'my_reward'" in message and "exit 7" in message and ":4 in" in message and "row 1" in message
    with pytest.raises(ValueError, match=r"does not run: it asked the whole program to end"):
        reward(tmp_path, f"import sys\n{call}\n")


def test_missing_column_is_named(tmp_path):
    with pytest.raises(RewardFunctionError, match="'level'"):
        judge(tmp_path, "def my_reward(completions, level):\n    return level\n", BOTH)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("nowhere.py:f", "no file"),
        ("my_reward", "write it as"),
        ("{dir}/bad.py:f", "SyntaxError"),
        ("{dir}/ok.py:f", "it has other"),
        ("{dir}/ok.py:other", "fit no known signature"),
    ],
)
def test_wrong_paths(tmp_path, path, match):
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "ok.py").write_text("def other(a, b):\n    return 1\n")
    with pytest.raises(ValueError, match=match):
        FunctionReward(path.format(dir=tmp_path))


def test_registered_by_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def f(problem, text):\n    return 1.0\n")
    assert registry.build("reward", "function", {"path": f"{file}:f"}).judge(BOTH, context()[0]) == [1.0, 1.0]
    with pytest.raises(registry.RecipeError, match="no function"):
        registry.build("reward", "function", {"path": f"{file}:g"})


class TestTaskVerdict:
    def ask(self, verdicts, **task):
        trajs = [trajectory(str(i)) for i in range(len(verdicts))]
        ctx, logged = context(lambda problem, text: verdicts[int(text)], **task)
        return registry.build("reward", "task_verdict").judge(trajs, ctx), trajs, logged

    @pytest.mark.parametrize("threads", [1, 3])
    def test_rewards_parts_and_feedback(self, threads):
        verdicts = [Verdict(1.0, {"format": 1.0}), Verdict(None, feedback="time limit"), Verdict(0.0)]
        rewards, trajs, logged = self.ask(verdicts, concurrent_checks=threads)
        assert rewards == [1.0, None, 0.0]
        assert [t.parts for t in trajs] == [{"format": 1.0}, {"format": None}, {"format": None}]
        assert trajs[1].info["feedback"] == "time limit"
        assert logged == [("failures/verifier", 1.0)]

    @pytest.mark.parametrize("verdict", [Verdict(math.nan), Verdict(1.0, {"format": math.inf})])
    def test_a_verdict_that_is_not_finite_is_an_error(self, verdict):
        with pytest.raises(ValueError, match="problem p"):
            self.ask([verdict])
