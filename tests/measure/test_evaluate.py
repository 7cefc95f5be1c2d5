import math

import pytest

from gainstage.measure.audits.calibration import calibration_error
from gainstage.measure.evaluate import Answer, EvalRecord, evaluate, rate_interval, summarize
from gainstage.types import Problem, Stop


def problems(n):
    return [Problem(str(i), f"{i}+{i}?", str(2 * i)) for i in range(n)]


def answer(right, **more):
    return Answer(float(right), bool(right), **more)


def test_evaluate_keeps_order_in_batches():
    asked = []

    def sample(part, k):
        asked.append(len(part))
        return [[answer(int(p.id) % 2 == 0, length=int(p.id))] * k for p in part]

    records = evaluate(sample, problems(5), 3, batch=2)
    assert asked == [2, 2, 1]
    assert [r.problem_id for r in records] == list("01234")
    assert [sum(r.correct) for r in records] == [3, 0, 3, 0, 3]


def test_lost_answers_are_counted_and_are_no_verdict():
    rows = [[answer(1), answer(0, stop=Stop.FAILED)], [answer(0, stop=Stop.FAILED)] * 2]
    records = evaluate(lambda part, k: rows, problems(2), 2)
    assert [r.failed for r in records] == [1, 2] and [r.n for r in records] == [1, 0]
    out = summarize(records)
    assert out["pass@1"] == 1.0 and out["failed"] == 3


def test_evaluate_refuses_wrong_requests_and_answers():
    with pytest.raises(ValueError, match="no problems"):
        evaluate(lambda part, k: [], [], 2)
    with pytest.raises(ValueError, match="samples"):
        evaluate(lambda part, k: [], problems(1), 0)
    with pytest.raises(ValueError, match="asked for 2 x 2"):
        evaluate(lambda part, k: [[answer(1)]] * 2, problems(2), 2)


def test_summary_by_hand():
    records = [
        EvalRecord("a", (answer(1, length=4, entropy=0.5, kl=0.1), answer(0, length=8, stop=Stop.LENGTH))),
        EvalRecord("b", (answer(0, length=6), answer(0, length=2))),
    ]
    out = summarize(records, ks=(1, 2, 16), task="sum")
    assert out["eval/sum/pass@1"] == 0.25 and out["eval/sum/pass@2"] == 0.5
    assert "eval/sum/pass@16" not in out
    assert out["eval/sum/length/mean"] == 5 and out["eval/sum/length/truncated"] == 0.25
    assert out["eval/sum/entropy/mean"] == 0.5 and out["eval/sum/kl/start"] == 0.1
    assert out["eval/sum/pass@1/low"] < 0.25 < out["eval/sum/pass@1/high"]


def test_interval_is_wilsons_for_one_answer_a_problem():
    nothing = rate_interval([EvalRecord(str(i), (answer(0),)) for i in range(25)])
    assert (nothing.low, nothing.high) == pytest.approx((0, 0.133), abs=5e-4)
    all_right = summarize([EvalRecord(str(i), (answer(1),)) for i in range(10)])
    assert all_right["pass@1/low"] == pytest.approx(0.722, abs=5e-4) and all_right["pass@1/high"] == 1


def test_honesty_counts_wrong_among_attempts_only():
    rows = [answer(right, abstained=silent) for right, silent in ((1, False), (0, False), (0, True), (0, True))]
    out = summarize([EvalRecord("a", tuple(rows))])
    assert out["abstention"] == 0.5 and out["hallucination"] == 0.5
    silent = summarize([EvalRecord("a", (answer(0, abstained=True),))])
    assert silent["abstention"] == 1 and "hallucination" not in silent and "ece" not in silent


def test_calibration_error_of_six_answers():
    confidence, correct = [0.95, 0.9, 0.85, 0.6, 0.55, 0.3], [1, 0, 1, 1, 0, 0]
    assert calibration_error(confidence, correct) == pytest.approx(0.375)
    assert calibration_error([1.0, 1.0], [True, True]) == 0
    with pytest.raises(ValueError, match="verdicts"):
        calibration_error([], [])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        calibration_error([1.2], [True])


def test_episodes_without_a_verdict_have_rewards_only():
    out = summarize([EvalRecord("start-0", (Answer(-3.0, length=200, stop=Stop.TIME_LIMIT),))])
    assert out["reward/mean"] == -3 and out["length/truncated"] == 1 and "pass@1" not in out
    assert not any(math.isnan(v) for v in out.values())


def test_records_survive_json():
    record = EvalRecord("a", (answer(1, length=3, stop=Stop.TURNS, confidence=0.5), Answer(0.2)), failed=1)
    assert EvalRecord.from_dict(record.to_dict()) == record


def named(*answers, right="7", **more):
    """Answers by their text; None gives no answer."""
    return tuple(Answer(float(a == right), a == right, answer=a, **more) for a in answers)


def test_confidence_is_the_share_of_the_most_frequent_answer():
    records = [
        EvalRecord("sure", named("7", "7", "7", "7")),
        EvalRecord("wrong", named("8", "8", "8", None)),
        EvalRecord("split", named("7", "7", "8", "9")),
    ]
    out = summarize(records)
    assert out["ece"] == pytest.approx((0 + 0.75 + 0.5) / 3)
    assert out["brier"] == pytest.approx((0 + 0.75**2 + 0.25) / 3)
    assert out["aurc"] == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
    assert out["diversity"] == pytest.approx((1 + 2 + 3) / 3)


def test_three_answers_are_too_few_for_a_share_and_one_is_not_diverse():
    out = summarize([EvalRecord("a", named("7", "7", "8"))])
    assert "ece" not in out and out["diversity"] == 2
    assert not {"ece", "diversity"} & set(summarize([EvalRecord("a", named("7"))]))
    assert not {"ece", "diversity"} & set(summarize([EvalRecord("a", tuple(answer(1) for _ in range(4)))]))


def test_a_stated_confidence_goes_before_the_share():
    out = summarize([EvalRecord("a", named("7", "7", "7", "7", confidence=0.25))])
    assert out["ece"] == pytest.approx(0.75) and out["confidence/mean"] == 0.25


def test_a_problem_that_most_samples_decline_is_no_attempt():
    mixed = EvalRecord("declined", (*named(None, None, abstained=True), *named("7", "8", abstained=False)))
    out = summarize([mixed, EvalRecord("tried", named("7", "7", "7", "8", abstained=False))])
    assert out["ece"] == pytest.approx(0.25) and out["abstention"] == 0.25 and out["hallucination"] == 2 / 6


def test_answerable_and_unanswerable_problems_are_told_apart():
    records = [
        EvalRecord("a", named("7", "8", abstained=False)),
        EvalRecord("b", (*named(None, abstained=True), *named("9", abstained=False)), answerable=False),
    ]
    out = summarize(records)
    assert out["abstention/unanswerable"] == 0.5 and out["pass@1/answerable"] == 0.5 and out["pass@1"] == 0.25
    assert out["abstention"] == 0.25 and out["abstention/answerable"] == 0
    timid = [EvalRecord("a", (*named(None, abstained=True), *named("7", abstained=False))), records[1]]
    out = summarize(timid)
    assert out["abstention/answerable"] == out["abstention/unanswerable"] == out["pass@1/answerable"] == 0.5
    assert not {"abstention/unanswerable", "abstention/answerable"} & set(summarize(records[:1]))
    assert [EvalRecord.from_dict(r.to_dict()) for r in records] == records


def test_the_largest_k_is_always_measured():
    out = summarize([EvalRecord("a", named("7", *"888888"))], ks=(1, 4, 16))
    assert out["pass@7"] == 1 and out["pass@4"] == pytest.approx(4 / 7) and "pass@16" not in out


def test_prompts_without_room_are_counted_and_an_evaluation_of_nothing_else_is_refused():
    problems = [Problem(str(n), "p") for n in range(3)]
    full, cut, done = Answer(0.0, False, 0, Stop.CONTEXT), Answer(0.0, False, 2, Stop.CONTEXT), Answer(1.0, True, 1)

    def ask(answers):
        return evaluate(lambda asked, k: [answers] * len(asked), problems, 2, batch=2)

    assert summarize(ask([full, done]))["dropped/no_room"] == 3
    assert "dropped/no_room" not in summarize(ask([cut, done]))
    with pytest.raises(ValueError, match=r"all 3 prompts fill the model's context"):
        ask([full, full])
