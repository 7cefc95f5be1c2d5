"""The ring: what comes out is what went in, across its end, episode ends, time limits and a restart."""

import copy
from types import SimpleNamespace

import pytest
import torch

from gainstage.registry import RecipeError
from gainstage.store.replay import Replay
from gainstage.types import Batch, Index


def fragment(first, copies=2, steps=4, ends=(), cuts=(), holes=(), **more):
    """Steps `first ..` of every copy: obs and reward tell copy and step (100 copy + step)."""
    step = torch.arange(first, first + steps + 1).expand(copies, steps + 1)
    name = (100 * torch.arange(copies).unsqueeze(1) + step).float()

    def flags(places):
        marked = torch.zeros(copies, steps, dtype=torch.bool)
        for c, s in places:
            if first <= s < first + steps:
                marked[c, s - first] = True
        return marked

    terminated, cut = flags(ends), flags(cuts)
    after = name[:, 1:].clone()
    after[terminated | cut] = -name[:, :-1][terminated | cut] - 1  # the true observation is not the next row's
    return Batch({
        "obs": name.unsqueeze(2), "next_obs": after.unsqueeze(2), "actions": name[:, :-1].long(),
        "rewards": name[:, :-1].clone(), "terminated": terminated, "cut": cut, "mask": ~flags(holes), **more,
    })  # fmt: skip


def filled(store, fragments):
    for piece in fragments:
        store.add(piece, None)
    return store


def all_rows(store):
    steps = torch.arange(store.oldest, store.clock).repeat_interleave(store.copies)
    return Index(torch.arange(store.copies).repeat(len(steps) // store.copies), steps)


def test_every_transition_comes_back_as_it_was_also_after_the_ring_has_turned():
    store = filled(Replay(capacity=12), [fragment(f, ends=[(1, 9)], cuts=[(0, 10)]) for f in (0, 4, 8)])
    assert len(store) == 12 and (store.length, store.oldest, store.clock) == (6, 6, 12)
    batch = store.draw(all_rows(store))
    copy_, step = batch.origin
    name = (100 * copy_ + step).float()
    assert torch.equal(batch["obs"][:, 0, 0], name) and torch.equal(batch["rewards"][:, 0], name)
    assert torch.equal(batch["actions"][:, 0], name.long())
    over = (copy_ == 1) & (step == 9) | (copy_ == 0) & (step == 10)
    assert torch.equal(batch["obs"][:, 1, 0], torch.where(over, -name - 1, name + 1))
    assert torch.equal(batch["terminated"][:, 0], (copy_ == 1) & (step == 9))
    assert torch.equal(batch["cut"][:, 0], (copy_ == 0) & (step == 10))
    assert "discount" not in batch and batch["mask"].all()


def test_a_ring_that_is_not_divisible_by_its_copies_holds_whole_steps():
    store = filled(Replay(capacity=7), [fragment(0, steps=3)])
    assert (store.length, len(store)) == (3, 6)


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_n_step_sums_against_a_loop(gamma):
    ends, cuts, total, n = [(0, 3), (1, 8)], [(1, 5)], 14, 4
    pieces = [fragment(f, steps=7, ends=ends, cuts=cuts) for f in (0, 7)]
    store = filled(Replay(capacity=100, n_step=n, gamma=gamma), pieces)
    batch = store.draw(all_rows(store))
    for row in range(batch.rows):
        c, s = int(batch.origin[0][row]), int(batch.origin[1][row])
        reward, counts, last = 0.0, 1.0, s
        for k in range(s, min(s + n, total)):
            reward, counts, last = reward + counts * (100 * c + k), counts * gamma, k
            if (c, k) in ends or (c, k) in cuts:
                break
        over = (c, last) in ends or (c, last) in cuts
        after = -(100 * c + last) - 1 if over else 100 * c + last + 1
        assert float(batch["rewards"][row, 0]) == pytest.approx(reward)
        assert float(batch["discount"][row, 0]) == pytest.approx(counts)
        assert float(batch["obs"][row, 1, 0]) == after and float(batch["obs"][row, 0, 0]) == 100 * c + s
        assert bool(batch["terminated"][row, 0]) == ((c, last) in ends)
        assert bool(batch["cut"][row, 0]) == ((c, last) in cuts)


def test_n_step_stops_at_the_newest_step_of_a_ring_that_has_turned():
    """The place after the newest step holds the oldest one, which must not be added."""
    store = filled(Replay(capacity=8, n_step=3, gamma=1.0), [fragment(f, copies=1, steps=4) for f in (0, 4, 8)])
    batch = store.draw(Index(torch.zeros(3, dtype=torch.long), torch.tensor([9, 10, 11])))
    assert batch["rewards"][:, 0].tolist() == [30.0, 21.0, 11.0]
    assert batch["obs"][:, 1, 0].tolist() == [12.0] * 3


def test_draws_are_uniform_and_repeat_with_seed_and_iteration():
    store = filled(Replay(capacity=40), [fragment(f, steps=10) for f in (0, 10)])
    plan = SimpleNamespace(updates=3, minibatch=4000)

    def drawn(seed, iteration):
        ctx = SimpleNamespace(seed=seed, iteration=iteration, choose=None, device=torch.device("cpu"))
        return [batch["rewards"] for batch in store.rounds(plan, ctx)]

    first = drawn(0, 0)
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(0, 0), strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], drawn(0, 1)[0])
    assert not torch.equal(first[0], drawn(1, 0)[0])
    counts = torch.cat(first).unique(return_counts=True)[1]
    assert len(counts) == 40 and counts.min() > 220 and counts.max() < 380  # 300 each, within 5 standard deviations


def test_steps_that_are_no_transitions_are_never_drawn():
    holes = [(0, s) for s in range(0, 20, 2)]
    store = filled(Replay(capacity=40, n_step=2), [fragment(0, steps=20, holes=holes, ends=[(0, 7)])])
    index = store.uniform(2000, torch.Generator().manual_seed(0))
    assert store.at("mask", index.step, index.row).all() and len(index.step.unique()) == 20
    none = filled(Replay(capacity=8), [fragment(0, steps=4, holes=[(c, s) for c in (0, 1) for s in range(4)])])
    with pytest.raises(RecipeError, match="is a transition"):
        none.uniform(4, torch.Generator())


def test_nothing_is_drawn_before_the_least_number_is_there():
    store = Replay(capacity=100, least=10)
    plan = SimpleNamespace(updates=2, minibatch=3)
    ctx = SimpleNamespace(seed=0, iteration=0, choose=None, device=torch.device("cpu"))
    store.add(fragment(0), None)
    assert list(store.rounds(plan, ctx)) == []
    store.add(fragment(4), None)
    assert [batch.rows for batch in store.rounds(plan, ctx)] == [3, 3]


def test_a_choice_of_rows_brings_its_weights():
    store = filled(Replay(capacity=100), [fragment(0)])
    chosen = Index(torch.tensor([1, 0]), torch.tensor([2, 3]), torch.tensor([0.5, 1.0]))
    plan = SimpleNamespace(updates=1, minibatch=2)
    ctx = SimpleNamespace(seed=0, iteration=0, choose=lambda n: chosen, device=torch.device("cpu"))
    (batch,) = store.rounds(plan, ctx)
    assert batch["rewards"][:, 0].tolist() == [102.0, 3.0] and batch["weight_draw"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_restart_goes_on_bit_for_bit(cut, tmp_path):
    """At whatever point, also while the ring turns, and from a file into memory."""
    pieces = [fragment(f, ends=[(0, f + 1)], **{"info/cost": torch.rand(2, 4)}) for f in range(0, 16, 4)]
    straight = filled(Replay(capacity=20, keep=["info/cost"], on_disk=str(tmp_path)), pieces)
    broken = filled(Replay(capacity=20, keep=["info/cost"]), pieces[:cut])
    saved = copy.deepcopy(broken.state_dict())
    again = Replay(capacity=20, keep=["info/cost"])
    again.load_state_dict(saved)
    filled(again, pieces[cut:])
    assert (again.clock, again.oldest, len(again)) == (straight.clock, straight.oldest, len(straight))
    one, other = straight.draw(all_rows(straight)), again.draw(all_rows(again))
    assert one.columns.keys() == other.columns.keys() and "info/cost" in one.columns
    assert all(torch.equal(one[name], other[name]) for name in one.columns)


def test_the_state_is_no_larger_than_what_is_there():
    store = filled(Replay(capacity=1000), [fragment(0)])
    history = store.state_dict()["steps"]
    pieces = list(history.read(history.start, history.stop))
    assert [first for first, _ in pieces] == [0] and (history.start, history.stop) == (0, 4)
    size = sum(value.numel() * value.element_size() for value in pieces[0][1].values())
    assert size == history.step_bytes * 4 == 8 * (4 + 4 + 8 + 4 + 3)


def test_memory_is_that_of_the_arrays():
    """Half-cheetah: 17 numbers before and after, 6 of an action, a reward, three flags: 167 bytes a transition."""
    copies, steps = 4, 25
    obs = torch.zeros(copies, steps + 1, 17)
    flags = torch.zeros(copies, steps, dtype=torch.bool)
    piece = Batch({
        "obs": obs, "next_obs": obs[:, 1:], "actions": torch.zeros(copies, steps, 6), "rewards": flags.float(),
        "terminated": flags, "cut": flags, "mask": ~flags, "behaviour_logprobs": flags.float(),
    })  # fmt: skip
    store = filled(Replay(capacity=10_000), [piece])
    assert store.nbytes == 10_000 * (4 * (17 + 17 + 6 + 1) + 3)
    assert "behaviour_logprobs" not in store.columns


def test_a_ring_on_disk_takes_no_memory_and_leaves_no_file(tmp_path):
    place = tmp_path / "ring"
    store = filled(Replay(capacity=2_000_000, on_disk=str(place)), [fragment(f) for f in (0, 4)])
    assert list(place.iterdir()) == []  # it has no name, so it cannot be left behind
    mapped = sum(size for line, size in _mappings() if str(place) in line)
    assert mapped >= store.nbytes
    assert store.draw(Index(torch.tensor([1]), torch.tensor([6])))["rewards"].item() == 106.0


def test_a_ring_in_the_folder_of_the_run(tmp_path, monkeypatch):
    store = Replay(capacity=1000, on_disk=True)
    store.start(SimpleNamespace(folder=tmp_path / "run"))
    filled(store, [fragment(0)])
    assert any(str(tmp_path / "run") in line for line, _ in _mappings()) and not list((tmp_path / "run").iterdir())
    again = Replay(capacity=1000, on_disk=True)
    again.start(SimpleNamespace(folder=tmp_path / "run"))
    again.load_state_dict(store.state_dict())
    assert torch.equal(again.draw(all_rows(again))["obs"], store.draw(all_rows(store))["obs"])
    with pytest.raises(RecipeError, match="folder of the run, which has none; name a folder"):
        Replay(on_disk=True).start(SimpleNamespace(folder=None))

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(RecipeError, match=r"cannot take 500 steps \(No space left on device\); lower capacity"):
        filled(Replay(capacity=1000, on_disk=str(tmp_path)), [fragment(0)])
    assert not list(tmp_path.glob(".tensor*"))


def test_sums_of_rewards_stop_where_an_episode_could_not_be_resumed():
    store = filled(Replay(capacity=100, n_step=3, gamma=1.0), [fragment(0)])
    anew = fragment(4)
    anew["start"] = torch.tensor([[True, False, False, False], [False] * 4])
    store.add(anew, None)
    batch = store.draw(Index(torch.tensor([0, 1, 0]), torch.tensor([2, 2, 4])))
    assert batch["rewards"][:, 0].tolist() == [2.0 + 3, 102.0 + 103 + 104, 4.0 + 5 + 6]
    assert batch["cut"][:, 0].tolist() == [True, False, False] and batch["obs"][0, 1, 0] == 4
    assert not batch["terminated"].any()


def _mappings():
    """The process's mapped regions and their sizes in bytes."""
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = line.split()[0].split("-")
            yield line, int(high, 16) - int(low, 16)


def test_wrong_settings_and_experience_are_told():
    for wrong in ({"capacity": 0}, {"least": 0}, {"n_step": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Replay(**wrong)
    with pytest.raises(ValueError, match="gamma must lie"):
        Replay(gamma=1.5)
    with pytest.raises(ValueError, match="more than the ring holds"):
        Replay(capacity=10, least=11)
    with pytest.raises(RecipeError, match="rollout such as env_steps"):
        Replay().add([], None)
    with pytest.raises(RecipeError, match="8 steps"):
        Replay(capacity=6).add(fragment(0), None)
    with pytest.raises(RecipeError, match="holds 2 copies, the rollout brings 3"):
        filled(Replay(capacity=100), [fragment(0), fragment(4, copies=3)])
    with pytest.raises(RecipeError, match="fewer than least"):
        Replay(capacity=7, least=7).add(fragment(0, steps=3), None)  # two copies share it: three steps, six rows
    with pytest.raises(RecipeError, match="no column 'info/cost'"):
        Replay(keep=["info/cost"]).add(fragment(0), None)
