"""Every environment that is drawn gives a picture that follows its state; others say what to do."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tasks.control import worlds

from gainstage.registry import build
from gainstage.tasks.control.drawing import picture

NAMES = ["cart_pole", "pendulum", "acrobot", "mountain_car", "mountain_car_continuous", "point_maze", "reach"]


@pytest.mark.parametrize("name", [*NAMES, "grid_world"])
def test_picture_follows_the_state(name: str) -> None:
    task = build("task", name)
    env = task.make(2)
    env.reset([1, 2])
    before = picture(env, 1)
    assert before.dtype == np.uint8 and before.shape == (320, 320, 3)
    assert len(np.unique(before.reshape(-1, 3), axis=0)) > 1
    for action in worlds.actions(task, 2, 15):
        env.step(action)
    assert not np.array_equal(before, picture(env, 1))


def test_what_is_not_drawn_says_so() -> None:
    with pytest.raises(ValueError, match=r"bit_flip cannot be drawn.*render"):
        picture(build("task", "bit_flip").make(1))
