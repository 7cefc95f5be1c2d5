"""The embedded model: tokenizer, shipped weights, reproducible pre-training."""

import hashlib
import json
import random

import pytest
import torch

from gainstage import registry
from gainstage.policies.language import micro as module
from gainstage.policies.language.micro import (
    MIX,
    SIZES,
    Part,
    Size,
    buckets,
    demonstration,
    demonstrations,
    micro,
    pretrain,
)
from gainstage.policies.language.micro_tokenizer import CHARACTERS, END, VOCABULARY, build_tokenizer, encode

SHIPPED = ["micro", "micro-half"]


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(micro())


def test_every_prompt_and_demonstration_round_trips(tokenizer):
    rng = random.Random(0)
    for name in dict.fromkeys(part.task for part in MIX):
        task = registry.build("task", name)
        for problem in task.problems("train")[:40]:
            text = problem.prompt + task.demonstrate(problem, rng, noise=0.2)
            ids = tokenizer(text)["input_ids"]
            assert ids == encode(text) and len(ids) == len(text)
            assert VOCABULARY["<unk>"] not in ids
            assert tokenizer.decode(ids) == text
            assert tokenizer(problem.prompt)["input_ids"] == ids[: len(problem.prompt)]


def test_tokenizer_covers_ascii_and_keeps_white_space(tokenizer):
    text = CHARACTERS + "  two  spaces , and\n\nlines "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("12345")["input_ids"] == [VOCABULARY[digit] for digit in "12345"]
    assert tokenizer("\u00e9")["input_ids"] == [VOCABULARY["<unk>"]]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_chat_template_only_appends(tokenizer):
    chat = [
        {"role": "user", "content": "12+34="},
        {"role": "assistant", "content": "64=46"},
        {"role": "user", "content": "1+1="},
    ]
    texts = [
        tokenizer.apply_chat_template(chat[:n], tokenize=False, add_generation_prompt=chat[n - 1]["role"] == "user")
        for n in (1, 2, 3)
    ]
    assert texts[0] == "12+34="
    assert texts[1] == f"12+34=64=46{END}"
    assert texts[2] == texts[1] + "1+1="


@pytest.mark.parametrize("size", SHIPPED)
def test_shipped_weights_load_and_are_small(size):
    transformers = pytest.importorskip("transformers")
    folder = micro(size)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= (8e6 if size == "micro" else 1e6)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    card = json.loads((folder / "card.json").read_text())
    assert model.num_parameters() == card["parameters"] <= 3e6
    assert next(model.parameters()).dtype == torch.float32
    assert model.config.vocab_size == len(VOCABULARY)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (VOCABULARY[END], 0)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_shipped_base_rates_leave_room():
    rates = json.loads((micro() / "card.json").read_text())["base_rates"]
    assert 0.15 <= rates["arithmetic"]["pass@1"] <= 0.45
    assert rates["arithmetic"]["pass@16"] > 0.75
    for task, measured in rates.items():
        assert measured["pass@1"] > 0.05, task
        assert measured["pass@16"] > max(0.3, measured["pass@1"]), task


def test_shipped_weights_still_have_their_base_rate():
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(micro())
    card = json.loads((micro() / "card.json").read_text())
    measured = module.base_rates(model, "arithmetic", problems=48)
    assert abs(measured["pass@1"] - card["base_rates"]["arithmetic"]["pass@1"]) < 0.12


def weights_hash(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_pretraining_is_reproducible(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setitem(SIZES, "tiny", Size(hidden=16, layers=1, heads=2, inner=16, batch=16))
    monkeypatch.setattr(
        module, "MIX", (Part("reverse", 0.5, 0.1, {"lengths": (2, 3)}), Part("arithmetic", 0.5, 0.2, {}))
    )
    monkeypatch.setattr(module, "base_rates", lambda model, name, seed: {})
    state, seen = torch.random.get_rng_state(), []
    card = pretrain(tmp_path / "a", seed=3, steps=6, size="tiny", progress=lambda *at: seen.append(at))
    assert torch.equal(state, torch.random.get_rng_state())
    assert [at[:2] for at in seen] == [(n, 6) for n in range(1, 7)]
    assert seen[-1][2] < seen[0][2]
    assert card["steps"] == 6 and card["seed"] == 3
    torch.rand(5)
    pretrain(tmp_path / "b", seed=3, steps=6, size="tiny")
    pretrain(tmp_path / "c", seed=4, steps=6, size="tiny")
    assert weights_hash(tmp_path / "a") == weights_hash(tmp_path / "b") != weights_hash(tmp_path / "c")


def test_pretraining_shows_only_train_problems():
    stream = demonstrations((Part("reverse", 1.0, 0.0, {"lengths": (3,), "letters": 3}),), seed=0)
    task = registry.build("task", "reverse", {"lengths": (3,), "letters": 3})
    rows = [next(stream) for _ in range(500)]
    shown = {"".join(CHARACTERS[i - 3] for i in ids[: flags.index(True)]) for ids, flags in rows}
    held = {p.prompt for split in ("validation", "test") for p in task.problems(split)}
    assert held and not shown & held
    assert len(shown) > 10


def test_buckets_keep_every_learnt_token():
    rows = [(encode("ab" + "cd"[:n]) + [1], [False, False] + [True] * (n + 1)) for n in (0, 1, 2, 1, 2)]
    found = [token for _, targets in buckets(rows, slack=1.2) for token in targets[targets >= 0].tolist()]
    learnt = [token for ids, flags in rows for token, flag in zip(ids, flags, strict=True) if flag]
    assert sorted(found) == sorted(learnt)
    for ids, targets in buckets(rows, slack=1.2):
        asked = targets[:, :-1] >= 0
        assert torch.equal(targets[:, :-1][asked], ids[:, 1:][asked])


def test_what_the_world_says_is_not_learnt():
    task, rng = registry.build("task", "calculator"), random.Random(0)
    ids, learnt = demonstration(task, task.problems("train")[0], rng, 0.0)
    written = "".join(CHARACTERS[i - 3] if i > 2 else "|" for i, flag in zip(ids, learnt, strict=True) if flag)
    assert written.startswith("<calc ") and written.endswith("|") and "=" in written
    assert "\n" not in written


def test_wrong_size_and_steps_are_named(tmp_path):
    with pytest.raises(ValueError, match="no embedded model 'huge'"):
        micro("huge")
    with pytest.raises(ValueError, match="steps must be >= 1"):
        pretrain(tmp_path, steps=0)
