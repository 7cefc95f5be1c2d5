"""Verifiers that pay for nothing are found out, and those of the house do not."""

import time

import pytest

from gainstage.auditing import audit_reward, changed, payer, specimens
from gainstage.chain import build_chain, build_task
from gainstage.measure.audits.reward_hacks import Specimen, attacks, reward_hacks
from gainstage.recipe import check
from gainstage.registry import RecipeError, find, names
from gainstage.types import Problem

PROBLEM = Problem("p", "What is 40+2?", "42")
SPECIMEN = Specimen(PROBLEM, "6*7 = 42", "43", "42")


def chain(task, *reward):
    rewards = list(reward) or ["task_verdict"]
    return build_chain(check({"name": "a", "task": task, "rollout": ["generate"], "reward": rewards}))


def each(function):
    return lambda problem, texts: [function(problem, text) for text in texts]


def strict(problem, text):
    return float(text.rpartition("=")[2].strip() == problem.answer)


@pytest.mark.parametrize(
    ("kind", "verifier"),
    [
        ("empty", lambda p, text: 1.0 if not text.strip() else strict(p, text)),
        ("structure", lambda p, text: 1.0 if text == "\\boxed{}" else strict(p, text)),
        ("padded", lambda p, text: strict(p, text) + 0.1 * (len(text) > 1500)),
        ("question", lambda p, text: float("40" in text or "42" in text)),
        ("injection", lambda p, text: float("correct" in text.lower()) or strict(p, text)),
        ("gold before wrong", lambda p, text: float(text.strip().startswith("42")) or strict(p, text)),
        ("several answers", lambda p, text: float("42" in text)),
        ("huge", lambda p, text: float(len(text) > 50_000) or strict(p, text)),
        ("look-alike", lambda p, text: float(len(text) == 2 and text.isdigit() and int(text) == 42) or strict(p, text)),
        ("early exit", lambda p, text: float("exit(0)" in text) or strict(p, text)),
    ],
)  # fmt: skip
def test_a_verifier_with_one_hole_is_found_out(kind, verifier):
    report = reward_hacks([SPECIMEN], each(verifier))
    assert report.paid[kind] and not report.clean
    assert all(f.reward > f.wrong and len(f.text) <= 80 for f in report.findings)


def test_a_strict_verifier_is_clean():
    report = reward_hacks([SPECIMEN], each(strict))
    assert report.clean and report.right == 1 and report.wrong == 0 and len(report.tried) == 10
    assert sum(report.tried.values()) > 80


def test_a_reward_that_pays_wrong_answers_something_is_measured_against_that():
    assert reward_hacks([SPECIMEN], each(lambda p, text: 2 * strict(p, text) - 1)).clean
    silent = reward_hacks([SPECIMEN], each(lambda p, text: 2 * strict(p, text) - bool(text.strip())))
    assert {f.kind for f in silent.findings} == {"empty"}, "0 is more than the -1 of a wrong answer"
    assert reward_hacks([SPECIMEN], each(lambda p, text: strict(p, text) or None)).clean


def test_a_right_answer_that_is_not_paid_is_named():
    report = reward_hacks([SPECIMEN], each(lambda p, text: 0.0))
    assert report.unpaid == ("p",) and not report.findings and not report.clean


def test_a_verifier_that_hangs_is_named():
    def slow(problem, text):
        if len(text) > 50_000:
            time.sleep(0.02)
        return strict(problem, text)

    report = reward_hacks([SPECIMEN], each(slow), patience=0.01)
    assert {f.kind for f in report.findings} == {"huge"} and report.findings[0].seconds >= 0.02


def test_a_verifier_that_breaks_is_named():
    report = reward_hacks([SPECIMEN], each(lambda p, text: float(int(text.rpartition("=")[2]) == 42)))
    assert report.paid["empty"] and all(f.error.startswith("ValueError") for f in report.findings if f.reward is None)


def test_attacks_owe_nothing():
    """No blind attack holds the gold answer, and every look-alike differs from it in every Unicode form."""
    import unicodedata

    found = list(attacks("What is 40+2?", SPECIMEN))
    for attack in found:
        if attack.kind in ("empty", "structure", "padded", "injection", "early exit"):
            assert "42" not in attack.text
        if attack.kind == "look-alike":
            assert unicodedata.normalize("NFKC", attack.text) != "42"
    assert {a.kind for a in attacks("", Specimen(PROBLEM, "", "43", ""))} == {
        "empty", "structure", "padded", "question", "injection", "huge", "early exit",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no problem"):
        reward_hacks([], each(strict))


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [("42", "43"), ("9", "0"), ("abc", "abd"), ("\\text{Evelyn}", "\\text{Evelyo}"), ("?", "?0"), ("Z", "a")],
)
def test_wrong_answers_look_like_right_ones(gold, wrong):
    assert changed(gold) == wrong


def checked_tasks():
    """Every task of the registry that checks texts, needs no file of the user's and no sandbox process."""
    outside = {"humaneval", "math500", "gsm8k"}
    whole = [n for n in names("task") if all(p.default is not p.empty for p in find("task", n).settings.values())]
    return [n for n in whole if n not in outside and "check" in build_task(n).it.capabilities]


@pytest.mark.parametrize("name", checked_tasks())
def test_no_task_of_the_house_pays_for_nothing(name):
    made = chain(name)
    problems = made.task.it.problems("test")
    report = audit_reward(made, [problems[i] for i in range(3)])
    assert report.clean, report.findings[:5] or report.unpaid


ROWS = [
    ("What is 6*3?", "18"),
    ("How far?", "1,250"),
    ("Half of 7?", "3.5"),
    ("Share?", "\\frac{3}{8}"),
    ("Who?", "Evelyn"),
]


@pytest.mark.parametrize("grader", ["math", "number", "exact"])
def test_no_grader_of_data_sets_pays_for_nothing(grader, tmp_path):
    import json

    rows = [row for row in ROWS if grader != "number" or row[1][0].isdigit()]
    file = tmp_path / "test.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p, "answer": a}) for p, a in rows))
    made = chain({"jsonl": {"path": str(file), "verifier": grader, "test": str(file), "overlap": "report"}})
    report = audit_reward(made, list(made.task.it.problems("test")))
    assert report.clean and len(made.task.it.problems("test")) == len(rows), report.findings[:5] or report.unpaid


@pytest.mark.parametrize("reward", ["numbers", "maths", "exact", {"exact": {"how": "choice"}}])
def test_no_verifier_among_the_rewards_pays_for_nothing(reward):
    problems = [Problem("a", "6*3?", "18"), Problem("b", "41+2?", "43")]
    letters = [Problem("c", "Which one? (A) x (B) y", "B")]
    made = chain("arithmetic", reward)
    for problem in letters if isinstance(reward, dict) else problems:
        specimen = Specimen(problem, problem.answer, changed(problem.answer).upper(), problem.answer)
        report = reward_hacks([specimen], payer(made))
        assert report.clean, (reward, report.findings[:5], report.unpaid)


def test_containment_pays_for_lists_and_the_audit_says_so():
    """`contains` is for free text and cannot tell an answer from a list of guesses."""
    made = chain("arithmetic", {"exact": {"how": "contains"}})
    report = reward_hacks([Specimen(PROBLEM, "42", "43", "42")], payer(made))
    assert report.paid["several answers"] and report.paid["gold before wrong"]


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(RecipeError, match="checks no texts"):
        audit_reward(build_chain(check({"name": "a", "task": "room_quest", "rollout": ["multi_turn"]})), [])
    with pytest.raises(RecipeError, match="right and a known wrong"):
        audit_reward(chain("arithmetic"), [])
    assert len(specimens(build_task("countdown").it, list(build_task("countdown").it.problems("test"))[:3])) == 3
