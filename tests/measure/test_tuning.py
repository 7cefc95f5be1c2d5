import math

import pytest

from gainstage.measure.tuning import STARTUP, Dimension, Search, Tuned

pytest.importorskip("optuna", reason="needs the extra: tune")
LR = Dimension("lr", 1e-5, 1e-1, log=True)


def climb(search, trials, score):
    """Ask and tell; returns the settings asked for."""
    asked = []
    for batch in search.batches(trials):
        settings = [search.ask(number) for number in batch]
        asked += settings
        for number, chosen in zip(batch, settings, strict=True):
            search.tell(number, score(chosen))
    return asked


def peak(settings):
    """Best at lr = 1e-3; the recipe's own value, where nothing is set, is 1e-4."""
    return -abs(math.log10(settings.get("lr", 1e-4)) + 3)


def test_the_same_answers_bring_the_same_questions():
    """What resuming relies on: no storage, the search is asked again."""
    first, second = (climb(Search([LR], 5, {"lr": 1e-4}), 14, peak) for _ in range(2))
    assert first == second and len(first) == 14
    assert first != climb(Search([LR], 6, {"lr": 1e-4}), 14, peak)
    assert first[STARTUP:] != climb(Search([LR], 5, {"lr": 1e-4}), 14, lambda s: -peak(s))[STARTUP:]


def test_the_first_trial_is_the_recipe_and_the_rest_stay_in_range():
    asked = climb(Search([LR, Dimension("k", 1, 8, integer=True), Dimension("c", choices=(None, 64))], 0, {}), 12, peak)
    assert asked[0] == {}
    for settings in asked[1:]:
        assert 1e-5 <= settings["lr"] <= 1e-1 and settings["k"] in range(1, 9) and settings["c"] in (None, 64)


def test_the_search_comes_near_the_best_value():
    best = max(climb(Search([LR], 1, {"lr": 1e-4}), 40, peak), key=peak)
    assert abs(math.log10(best["lr"]) + 3) < 0.15


def test_trials_that_broke_off_are_left_out():
    asked = climb(Search([LR], 2, {"lr": 1e-4}), 12, lambda s: None if s.get("lr", 0) > 1e-3 else peak(s))
    assert len(asked) == 12
    trials = [{"settings": {}, "score": None}, {"settings": {"lr": 1.0}, "score": 0.2}]
    tuned = Tuned("grpo", trials, {"generated_tokens": 4000.0})
    assert tuned.best["settings"] == {"lr": 1.0}
    note = tuned.note("generated_tokens")
    assert "2 trials" in note and "4 000 generated tokens" in note.replace("\u202f", " ") and "1 broke off" in note
    with pytest.raises(ValueError, match="broke off"):
        _ = Tuned("grpo", trials[:1]).best


def test_of_equal_trials_the_first_is_chosen():
    trials = [{"settings": {}, "score": 0.5}, {"settings": {"lr": 1.0}, "score": 0.5}]
    assert Tuned("grpo", trials).best["settings"] == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"low": 1.0, "high": 1.0}, "below high"), ({"low": 0.0, "high": 1.0, "log": True}, "above 0")],
)
def test_ranges_that_hold_nothing(settings, says):
    with pytest.raises(ValueError, match=says):
        Dimension("lr", **settings)
    with pytest.raises(ValueError, match="nothing to search"):
        Search([], 0, {})
