"""Value maps, reward channels and the targets made of both: worked numbers, inverses, limits, no-op settings."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import huber_loss

from gainstage.credit.returns.td_targets import td_target
from gainstage.credit.returns.value_mapping import MappedTarget, mapped_target
from gainstage.ops.reward_channels import Channels, bins, ensemble, named, polar, stacked, whole
from gainstage.ops.value_maps import Identity, Log, LogLin, OffsetLog, inverse, steps_floor, value_map
from gainstage.registry import RecipeError
from gainstage.reward.compose.channels import Channels as ChannelReward
from gainstage.types import Batch

EPS = 0.96**100
D_BAD = -0.5 * math.log(EPS)
LOG = [Log(0.5, 0.0, EPS), Log(0.5, D_BAD, EPS)]
GOES_ON = torch.tensor([False])


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def column(*values):
    return f64(*values).unsqueeze(1)


# -- maps --------------------------------------------------------------------------------------------------------------


def test_published_constants():
    assert pytest.approx(0.01687032, abs=1e-8) == EPS and pytest.approx(2.0410997, abs=1e-7) == D_BAD
    assert steps_floor(0.96, 100) == EPS
    # an output of 0 stands for 1 on the head of good, and for the least value on that of bad
    assert inverse(LOG, torch.zeros(2, 1))[:, 0].tolist() == pytest.approx([1.0, EPS])
    linear = OffsetLog(c=1.0, offset=0.9**200)
    assert float(linear.forward(f64(0.0))) == pytest.approx(0, abs=1e-12)
    assert float(linear.forward(f64(0.5))) == pytest.approx(20.3789560, abs=1e-7)


def test_loglin_at_the_published_points():
    f = LogLin(0.5, 0.0)
    points = f64(0.01687, 0.5, 1.0, 2.0, 25.0)
    assert f.forward(points).tolist() == pytest.approx([-2.041109, -0.346574, 0, 0.5, 12], abs=1e-6)
    assert torch.allclose(f.inverse(f.forward(points)), points)


MAPS = [Identity(), Log(), LogLin(), LogLin(0.3, 0.7), OffsetLog(offset=1e-6), OffsetLog(2.0, 0.1, 0.5)]


@given(st.sampled_from(MAPS), st.floats(0.017, 100), st.floats(0.017, 100))
def test_maps_rise_and_come_back(f, a, b):
    low, high = sorted((a, b))
    x = f64(low, high)
    y = f.forward(x)
    assert torch.allclose(f.inverse(y), x, rtol=1e-9) and y.dtype == torch.float64
    assert y[1] > y[0] or high - low < 1e-12 * high


def test_loglin_has_one_slope_where_log_turns_into_line():
    f = LogLin(0.3, 0.7)
    x0 = torch.tensor(math.exp(-0.7 / 0.3), dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(f.forward(x0 * factor), x0)[0].item() for factor in (1 - 1e-9, 1 + 1e-9)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)
    assert float(f.forward(x0.detach())) == pytest.approx(0, abs=1e-12)


def test_the_gap_of_two_steps_more_is_the_same_everywhere_in_log_space():
    """Reward at distance D against D + 2: ordinary gaps differ by orders, logarithmic ones do not."""
    for gamma, ordinary, log in ((0.5, (0.375, 0.000732422), 1.386294), (0.9, (0.171, 0.0662489), 0.2107210)):
        f = OffsetLog(offset=gamma**200)
        for distance, wanted in zip((1, 10), ordinary, strict=True):
            near, far = f64(gamma**distance), f64(gamma ** (distance + 2))
            assert float(near - far) == pytest.approx(wanted, rel=1e-5)
            assert float(f.forward(near) - f.forward(far)) == pytest.approx(log, abs=1e-6)


def test_maps_that_are_none_are_refused():
    class Flat(Identity):
        def forward(self, x):
            return x.double().clamp(max=3.0)

    class Skew(Identity):
        def inverse(self, y):
            return y.double() * 1.001

    with pytest.raises(ValueError, match="Flat: not finite and strictly increasing"):
        Flat().check(25)
    with pytest.raises(ValueError, match="Skew: its inverse"):
        Skew().check(25)
    for f in MAPS:
        f.check(25)
    for make, said in (
        (lambda: Log(c=0.0), "c must be positive"), (lambda: LogLin(eps=0.0), "eps must be at least"),
        (lambda: OffsetLog(start=-1.0), "start"), (lambda: steps_floor(0.0, 100), "gamma must be > 0"),
        (lambda: steps_floor(0.001, 101), "fewer steps"), (lambda: value_map("cube"), "no map 'cube'"),
        (lambda: value_map({"log": {"k": 1}}), "maps.log.*'k'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            make()
    assert value_map({"log": {"c": 2.0}}) == Log(c=2.0) and value_map("loglin") == LogLin()


# -- channels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "reward", "channels", "total"),
    [
        (stacked([1, 10, 100]), 37.0, [1, 1, 0.3, 0, 0, 0], 37.0),
        (bins([1, 10, 100]), 37.0, [0, 0, 0.37, 0, 0, 0], 37.0),
        (stacked([1, 10, 100]), -5.0, [0, 0, 0, 1, 0.444444, 0], -5.0),
        (bins([1, 10, 100]), -5.0, [0, 0, 0, 0, 0.5, 0], -5.0),
        (stacked([1, 10, 100]), 250.0, [1, 1, 1, 0, 0, 0], 100.0),
        (bins([1, 10, 100]), 250.0, [0, 0, 1, 0, 0, 0], 100.0),
        (polar(), -0.3, [0, 0.3], -0.3),
        (polar(), 4.0, [1, 0], 1.0),
        (ensemble(2), 0.5, [0.5, 0.5, 0, 0], 0.5),
        (whole(), -7.5, [-7.5], -7.5),
    ],
)
def test_published_splits(scheme, reward, channels, total):
    split = scheme.split(f64(reward))
    assert split[:, 0].tolist() == pytest.approx(channels, abs=1e-6)
    assert float(scheme.total(split)) == pytest.approx(total) and len(scheme) == len(channels)
    assert bool(scheme.clipped(f64(reward))) == (total != reward)


@given(st.sampled_from(["polar", "bins", "stacked", "ensemble", "whole"]), st.floats(-1500, 1500))
def test_channels_are_within_bounds_and_add_up(name, reward):
    scheme = named(name, members=3)
    split = scheme.split(f64(reward))
    if name != "whole":
        assert (split >= 0).all() and (split <= 1).all()
    scheme.check(f64(reward, 0.0))


def test_channels_that_do_not_add_up_name_the_reward():
    lame = Channels((1.0, -1.0), lambda r: torch.stack((r.clamp(min=0), (-r).clamp(min=0, max=2))))
    with pytest.raises(ValueError, match="the reward -3 is not"):
        lame.check(f64(1.0, -1.0, -3.0))
    for make, said in (
        (lambda: bins([]), "rise"), (lambda: stacked([1, 1]), "rise"), (lambda: ensemble(0), "members"),
        (lambda: named("rainbow"), "scheme must be one of"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            make()


def test_the_reward_entry_splits_and_hands_on_what_the_channels_hold():
    seen = {}
    ctx = SimpleNamespace(
        models={"policy": SimpleNamespace(channels=polar())}, store=SimpleNamespace(), log=seen.__setitem__
    )
    batch = Batch({"rewards": torch.tensor([[0.25], [-3.0]]), "mask": torch.ones(2, 1, dtype=torch.bool)})
    entry = ChannelReward()
    entry.start(ctx)
    assert entry.shape(batch, ctx).tolist() == [[0.25], [-1.0]] and seen == {"reward/beyond_channels": 0.5}
    assert batch["channel_rewards"].tolist() == [[[0.25, 0.0]], [[0.0, 1.0]]]
    with pytest.raises(RecipeError, match="net=channel_q"):
        entry.start(SimpleNamespace(models={"policy": object()}))
    with pytest.raises(RecipeError, match=r"n_step=1"):
        ctx.store.n_step = 3
        entry.start(ctx)


# -- targets -----------------------------------------------------------------------------------------------------------


def test_worked_numbers_of_log_q_learning():
    now = inverse(LOG, torch.zeros(2, 1))
    target = mapped_target(column(0.5, 0.0), GOES_ON, column(0.8, 0.1), now, LOG, 0.96, beta=0.1, floor="sample")
    assert target[:, 0].tolist() == pytest.approx([0.0132236, 0.1923069], abs=1e-7)
    loss = huber_loss(torch.zeros(2, 1, dtype=torch.float64), target, reduction="none")
    assert loss[:, 0].tolist() == pytest.approx([8.7432e-05, 0.0184910], rel=1e-5)


def test_worked_numbers_of_loglin_with_both_polar_channels():
    maps = [LogLin(), LogLin()]
    now = inverse(maps, column(0.3, -0.6))
    assert now[:, 0].tolist() == pytest.approx([1.6, 0.301194], abs=1e-6)
    assert float(polar().total(now)) == pytest.approx(1.2988058, abs=1e-7)
    target = mapped_target(column(1.0, 0.0), GOES_ON, column(2.0, 0.05), now, maps, 0.96, beta=0.1)
    assert target[:, 0].tolist() == pytest.approx([0.366, -0.6439041], abs=1e-6)


def test_a_real_end_leaves_the_reward_and_the_floor():
    """The head of bad is asked for 0 there, and gets the least value: eps, not 0."""
    nothing = torch.full((2, 1), float("nan"), dtype=torch.float64)
    target = mapped_target(
        column(1.0, 0.0), torch.tensor([True]), nothing, column(1.0, EPS), LOG, 0.96, beta=1.0, floor="sample"
    )
    assert inverse(LOG, target)[:, 0].tolist() == pytest.approx([1.0, EPS])


def test_one_channel_in_ordinary_space_is_q_learning():
    generator = torch.Generator().manual_seed(0)
    rewards, after, now = (torch.randn(1, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    ends = torch.arange(9) % 3 == 0
    target = mapped_target(rewards, ends, after, now, [Identity()], 0.9, beta=1.0)
    assert torch.equal(target[0], td_target(rewards[0], ends, after[0], 0.9))  # DQN's target
    small = mapped_target(rewards, ends, after, now, [Identity()], 0.9, beta=0.1)
    step = 0.5 * (small - now)  # a step of .5 towards it is a step of .05 of ordinary Q-learning
    assert torch.allclose(step, 0.05 * (target - now))


def test_both_floors_agree_where_values_are_large_and_differ_by_at_most_eps():
    now, after, reward = column(0.5, 0.03), column(0.4, EPS), column(0.2, 0.0)
    by = {f: mapped_target(reward, GOES_ON, after, now, LOG, 0.96, beta=0.1, floor=f) for f in ("sample", "mean")}
    values = {f: inverse(LOG, target)[:, 0] for f, target in by.items()}
    assert values["sample"][0] == values["mean"][0]
    assert 0 < float(values["sample"][1] - values["mean"][1]) <= 0.1 * EPS


def test_bounds_of_the_next_value_of_the_present_one_and_of_the_sample():
    one = [Identity()]
    high = mapped_target(column(1.0), GOES_ON, column(99.0), column(50.0), one, 0.9, beta=0.5, bound=10.0)
    assert float(high) == pytest.approx(10.0)  # .5 * 10 + .5 * (1 + .9 * 10)
    free = mapped_target(column(1.0), GOES_ON, column(99.0), column(50.0), one, 0.9, 0.5, bound=10.0, clip_now=False)
    assert float(free) == pytest.approx(30.0)
    low = mapped_target(column(0.0), GOES_ON, column(-5.0), column(0.0), one, 0.9, bound=10.0)
    assert float(low) == 0.0
    assert float(mapped_target(column(1.0), GOES_ON, column(9.0), column(0.0), one, 0.9, cap=1.0)) == 1.0


def test_averaging_in_log_space_alone_is_biased_low():
    """Half the samples are 1 and half .01: by steps in log space a head settles at .1, by both steps at .505."""
    torch.manual_seed(0)
    ends = {}
    for beta, rate in ((1.0, 0.01), (0.01, 0.5)):
        f, out = Log(1.0, 0.0, 1e-3), torch.zeros(1, 1, dtype=torch.float64)
        tail = []
        for step in range(4000):
            reward = column(1.0 if torch.rand(()) < 0.5 else 0.01)
            target = mapped_target(reward, torch.tensor([True]), out, f.inverse(out), [f], 0.9, beta, floor="sample")
            out = out + rate * (target - out)
            if step > 2000:
                tail.append(float(f.inverse(out)))
        ends[beta] = sum(tail) / len(tail)
    assert ends[1.0] == pytest.approx(0.1, rel=0.2) and ends[0.01] == pytest.approx(0.505, rel=0.1)


def test_numbers_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="1 maps for 2 channels"):
        mapped_target(column(0.0, 0.0), GOES_ON, column(0.0, 0.0), column(0.0, 0.0), [Identity()], 0.9)
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match="beta"):
            mapped_target(column(0.0), GOES_ON, column(0.0), column(0.0), [Identity()], 0.9, beta=wrong)
        with pytest.raises(ValueError, match="beta"):
            MappedTarget(beta=wrong)


class Heads:
    """A role whose channels' values are given: `"L N A"`."""

    maps, gamma, bound = LOG, 0.96, 25.0

    def __init__(self, values):
        self.known = values

    def channel_values(self, obs):
        return self.known

    def total(self, values):
        return polar().total(values)


def test_the_next_action_is_the_best_of_all_channels_together():
    """By itself the head of good prefers action 0 and that of bad action 1 or 2; together it is action 2."""
    good, bad = [0.9, 0.3, 0.8], [0.8, 0.1, 0.1]
    after = f64([good], [bad])
    now = f64([[0.2, 0.5, 0.2]], [[0.1, 0.3, 0.1]])
    ctx = SimpleNamespace(models={"policy": Heads(now), "policy_target": Heads(after)})
    batch = Batch({
        "obs": torch.zeros(1, 2, 1), "actions": torch.tensor([[1]]), "terminated": GOES_ON.unsqueeze(1),
        "mask": torch.ones(1, 1, dtype=torch.bool), "channel_rewards": f64([[0.5, 0.0]]),
    })  # fmt: skip
    target = MappedTarget(beta=0.1, floor="sample").estimate(batch, ctx)["mapped_targets"]
    wanted = mapped_target(
        column(0.5, 0.0), GOES_ON, column(0.8, 0.1), column(0.5, 0.3), LOG, 0.96, 0.1, floor="sample"
    )
    assert target.shape == (1, 1, 2) and torch.allclose(target[0, 0], wanted[:, 0])


def test_a_channel_that_is_never_paid_falls_to_its_least_value():
    for f, least in ((Log(0.5, D_BAD, EPS), EPS), (LogLin(), 0.01687), (Identity(), 0.0)):
        out = f.forward(column(3.0))
        for _ in range(400):
            values = f.inverse(out)
            target = mapped_target(column(0.0), GOES_ON, values, values, [f], 0.9, bound=10.0)
            out = out + 0.5 * (target - out)
        assert float(f.inverse(out)) == pytest.approx(least, abs=1e-6)


@given(st.integers(0, 10_000))
def test_log_q_learnings_update_written_out(seed):
    """Steps 3 to 6 of the method for one row and random numbers, in plain arithmetic."""
    draw = torch.Generator().manual_seed(seed)
    after = torch.rand(2, 1, 3, generator=draw, dtype=torch.float64) * 3 + EPS
    now = torch.rand(2, 1, 3, generator=draw, dtype=torch.float64) * 3 + EPS
    reward, over = float(torch.rand((), generator=draw)) * 2 - 1, bool(torch.rand((), generator=draw) < 0.3)
    good, bad = after[0, 0].tolist(), after[1, 0].tolist()
    best = max(range(3), key=lambda a: good[a] - bad[a])
    wanted = []
    heads = ((max(reward, 0), good[best], now[0, 0, 2], 0.0), (max(-reward, 0), bad[best], now[1, 0, 2], D_BAD))
    for paid, value, q, d in heads:
        sample = max(EPS, paid + (0 if over else 0.96 * min(max(value, 0), 25)))
        wanted.append(0.5 * math.log(float(q) + 0.1 * (sample - float(q))) + d)
    ctx = SimpleNamespace(models={"policy": Heads(now), "policy_target": Heads(after)})
    batch = Batch({
        "obs": torch.zeros(1, 2, 1), "actions": torch.tensor([[2]]), "terminated": torch.tensor([[over]]),
        "mask": torch.ones(1, 1, dtype=torch.bool), "channel_rewards": polar().split(f64(reward)).T.unsqueeze(0),
    })  # fmt: skip
    target = MappedTarget(beta=0.1, floor="sample", bounded_now=False).estimate(batch, ctx)["mapped_targets"]
    assert target[0, 0].tolist() == pytest.approx(wanted, abs=1e-9)
