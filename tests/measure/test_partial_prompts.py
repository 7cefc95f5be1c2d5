"""The audit by partial prompts, on sources whose memory is known."""

import random

import pytest

from gainstage.measure.audits.partial_prompts import PartialPromptAudit, Recovery, cut_at
from gainstage.types import Problem


def problems(seed, count=100, length=20):
    rng = random.Random(seed)
    return [Problem(f"{seed}-{i}", "".join(rng.choice("abcdefgh") for _ in range(length)), "ok") for i in range(count)]


def encode(problem):
    return [ord(x) for x in problem.prompt]


def source(known, chance=1.0, seed=0):
    """Continues a text that it knows, with probability `chance`; else writes at random."""
    rng = random.Random(seed)
    texts = [encode(problem) for problem in known]

    def complete(prefixes, sizes):
        out = []
        for prefix, size in zip(prefixes, sizes, strict=True):
            found = next((t for t in texts if t[: len(prefix)] == prefix), None)
            noise = [rng.choice(b"abcdefgh") for _ in range(size)]
            out.append(found[len(prefix) :] if found and rng.random() < chance else noise)
        return out

    return complete


LEAKED, FRESH, CONTROL = problems(1), problems(2), problems(3)


def test_the_leaked_set_is_flagged_and_the_fresh_one_is_not():
    audit, model = PartialPromptAudit(), source(LEAKED)
    leaked = audit.run(LEAKED, CONTROL, encode, model)
    assert leaked.flagged and all(row.flagged for row in leaked.rows) and leaked.examples[0] == "1-0"
    assert all(row.value == 1 for row in leaked.rows)
    fresh = audit.run(FRESH, CONTROL, encode, model)
    assert not fresh.flagged and fresh.examples == () and fresh.problems == fresh.controls == 100


def test_a_fifth_known_by_heart_is_enough():
    assert PartialPromptAudit().run(LEAKED, CONTROL, encode, source(LEAKED, chance=0.2)).flagged


def test_rests_that_are_guessed_in_the_control_as_well_flag_nothing():
    """A source that always writes the same ends recovers both sets alike."""
    sets = [[Problem(str(i), f"{side}{i:03d} is it so", None) for i in range(50)] for side in "ab"]
    ending = [ord(x) for x in " is it so"]
    report = PartialPromptAudit((0.4,)).run(*sets, encode, lambda prefixes, sizes: [ending[-n:] for n in sizes])
    assert report.rows[1].value == report.rows[1].control == 1 and not report.flagged


def test_both_thresholds_have_to_be_passed():
    def side(values):
        return [Recovery(str(i), v, v) for i, v in enumerate(values)]

    few = [side([1.0] * 9 + [0.0] * 991), side([0.0] * 1000)]
    row = PartialPromptAudit(errors=2.5).judge(0.4, "exact", *few)
    assert row.difference == pytest.approx(0.009) and row.difference > 2.5 * row.standard_error and not row.flagged
    row = PartialPromptAudit().judge(0.4, "exact", side([1.0] * 3 + [0.0] * 7), side([0.0] * 10))
    assert row.difference > 0.02 and row.difference < 3 * row.standard_error and not row.flagged
    assert PartialPromptAudit(errors=0, least=0).judge(0.4, "exact", side([1.0, 0.0]), side([0.0, 0.0])).flagged


def test_answers_without_the_rest_are_counted_where_they_can_be_checked():
    report = PartialPromptAudit((0.6,)).run(
        LEAKED, CONTROL, encode, source(LEAKED), solved=lambda problem, ids, rest: float(problem.id.startswith("1"))
    )
    assert report.solved == {0.6: (1.0, 0.0)}
    assert PartialPromptAudit((0.6,)).run(LEAKED, CONTROL, encode, source(LEAKED)).solved == {}


@pytest.mark.parametrize(
    ("length", "fraction", "want"), [(10, 0.4, 4), (10, 0.8, 8), (2, 0.1, 1), (2, 0.9, 1), (3, 0.99, 2)]
)
def test_both_parts_hold_a_token(length, fraction, want):
    assert cut_at(length, fraction) == want


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match="at least 10"):
        PartialPromptAudit().run(LEAKED[:9], CONTROL, encode, source([]))
    with pytest.raises(ValueError, match="control problems"):
        PartialPromptAudit().run(LEAKED, [Problem(str(i), "x") for i in range(50)], encode, source([]))
    with pytest.raises(ValueError, match="fractions"):
        PartialPromptAudit(fractions=(1.0,))
