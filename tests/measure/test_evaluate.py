import math

import pytest

from gainstage.measure.evaluate import Answer, EvalRecord, calibration_error, evaluate, rate_interval, summarize
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
