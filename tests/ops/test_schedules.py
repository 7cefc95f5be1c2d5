"""Schedules: both ends, the middle, and the order in between."""

from __future__ import annotations

import pytest

from gainstage.ops.schedules import Schedule


@pytest.mark.parametrize(
    ("kind", "middle"),
    [("linear", 0.55), ("cosine", 0.55), ("sigmoid", 0.55), ("power", 0.775), ("exponential", 0.1**0.5)],
)
def test_ends_and_middle(kind: str, middle: float):
    schedule = Schedule(kind, 1.0, 0.1)
    assert schedule(0) == pytest.approx(1.0)
    assert schedule(1) == pytest.approx(0.1)
    assert schedule(0.5) == pytest.approx(middle)
    values = [schedule(i / 20) for i in range(21)]
    assert values == sorted(values, reverse=True)
    assert schedule(-1) == schedule(0) and schedule(2) == schedule(1)


def test_constant_stays_and_steps_jump():
    assert Schedule("constant", 3.0, 0.0)(0.7) == 3.0
    steps = Schedule("steps", values=(1.0, 2.0, 4.0))
    assert [steps(f) for f in (0, 0.32, 0.34, 0.66, 0.67, 1)] == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_warmup_rises_to_the_start_and_the_shape_fills_the_rest():
    schedule = Schedule("linear", 2.0, 0.0, warmup=0.2)
    assert [schedule(f) for f in (0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.0, 1.0, 2.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "cubic"}, "kind must be one of"),
        ({"kind": "steps"}, "needs values"),
        ({"kind": "exponential", "end": 0.0}, "one sign"),
        ({"warmup": 1.0}, "warmup"),
    ],
)
def test_wrong_settings_are_named(settings: dict, said: str):
    with pytest.raises(ValueError, match=said):
        Schedule(**settings)
