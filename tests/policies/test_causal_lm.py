"""The policy handle: packing, chunking, temperature, copies, adapters, files; every family on tiny random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gainstage.policies.language import causal_lm
from gainstage.policies.language.causal_lm import CausalPolicy
from gainstage.policies.language.micro import micro
from gainstage.policies.snapshots import Models, parse_role
from gainstage.registry import RecipeError, build
from gainstage.types import Batch, Prompt, Sampling


def config(family: str):
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    common = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip
    return {
        "llama": lambda: LlamaConfig(**common),
        "qwen2": lambda: Qwen2Config(**common),
        "qwen3": lambda: Qwen3Config(**common, head_dim=8),
        "mistral": lambda: MistralConfig(**{**common, "sliding_window": None}),
        "windowed": lambda: MistralConfig(**{**common, "sliding_window": 4}),
        "gpt2": lambda: GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    }[family]()


FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "windowed", "gpt2"]


def policy(family: str, role: str = "policy") -> CausalPolicy:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config(family)).eval()
    tokenizer = AutoTokenizer.from_pretrained(micro())
    return CausalPolicy(model, tokenizer, build("engine", "torch").bind(model, tokenizer), role)


def rows(lengths: list[int], seed: int = 0) -> Batch:
    """Rows of the given lengths, the first three tokens of each a prompt."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    tokens = torch.randint(3, 90, (len(lengths), longest), generator=generator)
    author = torch.full((len(lengths), longest), -1)
    mask = torch.zeros(len(lengths), longest, dtype=torch.bool)
    for row, length in enumerate(lengths):
        author[row, :3], author[row, 3:length], mask[row, 3:length] = 0, 1, True
    return Batch({"tokens": tokens, "author": author, "mask": mask})


def plain_logprobs(made: CausalPolicy, batch: Batch) -> torch.Tensor:
    """One row at a time through the plain model: no padding, no packing."""
    out = torch.zeros(batch["mask"].shape)
    for row in range(batch.rows):
        length = int(batch.real()[row].sum())
        ids = batch["tokens"][row : row + 1, :length]
        logp = made.module(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        out[row, 1:length] = logp[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return out * batch["mask"]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logprobs_equal_the_plain_forward(family: str) -> None:
    made, batch = policy(family), rows([9, 20, 5, 14])
    assert made.packable == (family != "windowed")
    with torch.no_grad():
        assert torch.allclose(made.evaluate(batch).logprobs, plain_logprobs(made, batch), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_row_does_not_change_when_a_longer_one_joins(family: str) -> None:
    """Learned positions count real tokens only, whatever stands beside or behind a row."""
    made, batch = policy(family), rows([6, 30])
    with torch.no_grad():
        alone = made.evaluate(batch.take([0])).logprobs
        beside = made.evaluate(batch).logprobs[:1, : alone.shape[1]]
    assert torch.allclose(alone, beside, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_and_trainer_agree(family: str) -> None:
    made = policy(family)
    prompts = [Prompt([5, 6, 7], (1, 2), Sampling(0.7)), Prompt([8, 9, 10, 11, 12], (3, 4), Sampling(0.7))]
    found = [(p, c) for p, group in zip(prompts, made.generate(prompts, max_new=12), strict=True) for c in group]
    longest = max(len(p.ids) + len(c.ids) for p, c in found)
    tokens = torch.zeros(len(found), longest, dtype=torch.long)
    author = torch.full((len(found), longest), -1)
    old = torch.zeros(len(found), longest)
    for row, (p, c) in enumerate(found):
        start, end = len(p.ids), len(p.ids) + len(c.ids)
        tokens[row, :end] = torch.tensor([*p.ids, *c.ids])
        author[row, :start], author[row, start:end] = 0, 1
        old[row, start:end] = torch.tensor(c.logprobs)
    batch = Batch(
        {"tokens": tokens, "author": author, "mask": author == 1, "temperature": torch.full((len(found),), 0.7)}
    )
    with torch.no_grad():
        assert float((made.evaluate(batch).logprobs - old).abs().max()) < 1e-4


def test_temperature_of_the_card() -> None:
    """Logits 2, 1, 0 at temperature 0.5: the log-prob of token 0 is -0.14293, not -0.40761."""
    made = policy("llama")
    head = torch.nn.Linear(32, 3, bias=False)
    made.module.set_output_embeddings(head)
    hidden = torch.zeros(1, 32)
    with torch.no_grad():
        hidden[0, 0] = 1
        head.weight.zero_()
        head.weight[:, 0] = torch.tensor([2.0, 1.0, 0.0])
        found, _ = made.head_logprobs(hidden, torch.tensor([0]), torch.tensor([0.5]), entropy=False)
        plain, _ = made.head_logprobs(hidden, torch.tensor([0]), None, entropy=False)
    assert float(found) == pytest.approx(-0.14293, abs=1e-5)
    assert float(plain) == pytest.approx(-0.40761, abs=1e-5)


def test_chunked_head_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    made, batch = policy("llama"), rows([25, 30, 18])

    def gradient() -> list[torch.Tensor]:
        made.module.zero_grad()
        out = made.evaluate(batch, want=("entropy",))
        (out.logprobs.sum() + out.entropy.sum()).backward()
        return [p.grad.clone() for p in made.module.parameters() if p.grad is not None]

    whole = gradient()
    monkeypatch.setattr(causal_lm, "CHUNK", 7 * 99)
    for a, b in zip(whole, gradient(), strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-4)


def test_entropy_is_that_of_the_distribution() -> None:
    made, batch = policy("qwen2"), rows([8])
    with torch.no_grad():
        out = made.evaluate(batch, want=("entropy",))
        logp = made.module(input_ids=batch["tokens"][:, :8]).logits.log_softmax(-1)
    expected = -(logp.exp() * logp).sum(-1)[0, 2:7]
    assert torch.allclose(out.entropy[0, 3:8], expected, atol=1e-5)


def test_logprobs_of_fixed_continuations() -> None:
    made = policy("gpt2")
    found = made.logprobs([[5, 6], [7, 8, 9, 10]], [[11, 12, 13], [14]])
    assert [len(f) for f in found] == [3, 1]
    ids = torch.tensor([[5, 6, 11, 12, 13]])
    with torch.no_grad():
        logp = made.module(input_ids=ids).logits.log_softmax(-1)[0]
    assert torch.allclose(found[0], torch.stack([logp[1, 11], logp[2, 12], logp[3, 13]]), atol=1e-5)
    assert made.logprobs([], []) == []


def test_snapshot_does_not_follow_and_scratch_leaves_no_trace() -> None:
    models = Models(
        {"policy": {"load": "micro"}, "reference": {"of": "policy", "on": "start"}}, ["reference"], ["policy"]
    )
    first = {k: v.clone() for k, v in models["policy"].module.state_dict().items()}
    with torch.no_grad(), models.scratch("policy") as copy:
        for parameter in copy.module.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(first[k], v) for k, v in models["policy"].module.state_dict().items())
    with torch.no_grad():
        next(models["policy"].module.parameters()).add_(1.0)
    assert all(torch.equal(first[k], v) for k, v in models["reference"].module.state_dict().items())
    assert not any(p.requires_grad for p in models["reference"].module.parameters())


def test_lagging_copies_follow_their_clock() -> None:
    specs = {
        "policy": {"load": "micro"},
        "old": {"of": "policy", "on": "iteration"},
        "ema": {"of": "policy", "on": "step", "tau": 0.25},
    }
    models = Models(specs, ["old", "ema"], ["policy"])
    key = "model.norm.weight"
    start = models["policy"].module.state_dict()[key].clone()
    with torch.no_grad():
        models["policy"].module.state_dict()[key].add_(4.0)
    models.event("step")
    assert torch.equal(models["old"].module.state_dict()[key], start)
    assert torch.allclose(models["ema"].module.state_dict()[key], start + 1.0)
    models.event("iteration")
    assert torch.equal(models["old"].module.state_dict()[key], start + 4.0)
    assert models.moving() == ["ema", "old", "policy"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "one of load"),
        ({"load": "micro", "net": "value_head"}, "one of load"),
        ({"of": "policy", "on": "tuesday"}, "clock"),
        ({"of": "policy", "tau": 2}, "tau"),
        ({"of": "policy", "onn": "start"}, "no setting"),
    ],
)
def test_role_mistakes(spec: dict, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        parse_role("x", spec)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r": 8}, "no such setting: r"),
        ({"rank": 0}, "lora.rank must be at least 1"),
        ({"alpha": float("nan")}, "lora.alpha must be positive"),
    ],
)
def test_settings_of_lora_are_checked(settings: dict, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        Models({"policy": {"load": "micro", "lora": settings}}, ["policy"])


def test_weights_that_do_not_fill_the_model_are_refused(tmp_path: Path) -> None:
    policy("llama").save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, says in (
        ({"num_hidden_layers": config["num_hidden_layers"] + 1}, "lack"),
        ({"vocab_size": config["vocab_size"] + 1}, "hold in another shape"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(RecipeError, match=says):
            Models({"policy": {"load": str(tmp_path)}}, ["policy"])


def test_a_net_for_environments_is_no_language_model(tmp_path: Path) -> None:
    from gainstage.policies.language.sources import load_causal_lm
    from gainstage.recipe import load
    from gainstage.trainer import Trainer

    Trainer(load("ppo")).models["policy"].save(tmp_path)
    with pytest.raises(RecipeError, match="acts in an environment and writes no text; use gainstage play"):
        load_causal_lm(str(tmp_path))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    made = policy("llama")
    made.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(made.module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(RecipeError, match=r"no file named model\.safetensors"):
        Models({"policy": {"load": str(tmp_path)}}, ["policy"])


def test_unknown_and_circular_roles() -> None:
    with pytest.raises(RecipeError, match="'policy'"):
        Models({"policy": "micro"}, ["polciy"])
    with pytest.raises(RecipeError, match="copy one another"):
        Models({"a": {"of": "b"}, "b": {"of": "a"}}, ["a"])


def test_lora_trains_adapters_only_and_the_reference_is_free(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    specs = {"policy": {"load": "micro", "lora": True}, "reference": {"of": "policy", "on": "start"}}
    models = Models(specs, ["reference"], ["policy"])
    made, reference = models["policy"], models["reference"]
    assert reference.module is made.module
    trained = [n for n, p in made.module.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    batch = rows([12, 9])
    with torch.no_grad():
        before = reference.evaluate(batch).logprobs
        for name, parameter in made.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5)
        moved, after = made.evaluate(batch).logprobs, reference.evaluate(batch).logprobs
    assert torch.equal(before, after) and not torch.allclose(moved, before)
    with torch.no_grad():
        drawn = made.generate([Prompt([5, 6, 7], (1,), Sampling(1.0))], max_new=6)[0][0]
        scored = made.logprobs([[5, 6, 7]], [drawn.ids])[0]
    assert torch.allclose(scored, torch.tensor(drawn.logprobs), atol=1e-4)
    made.save(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file() and (tmp_path / "adapter_config.json").is_file()
    again = Models({"policy": {"load": str(tmp_path)}}, ["policy"])["policy"]
    with torch.no_grad():
        assert torch.allclose(again.evaluate(batch).logprobs, moved, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_saved_folder_loads_as_any_other_and_trains(family: str, tmp_path: Path) -> None:
    policy(family).save(tmp_path)
    from gainstage.recipe import load
    from gainstage.trainer import Trainer

    overrides = [f"models.policy.load={tmp_path}", "iterations=1", "plan.groups=2", "plan.minibatch=null"]
    rows_: list[dict[str, float]] = []
    Trainer(load("grpo", overrides), on_row=rows_.append).run()
    assert abs(rows_[0]["kl/sampler"]) < 1e-4
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_chat_template_of_the_run_is_the_one_that_is_saved(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}think:"
    made = Models({"policy": {"load": "micro", "chat_template": template}}, ["policy"])["policy"]
    prompt = [{"role": "user", "content": "test"}]
    ids = made.encode(prompt)
    made.save(tmp_path)
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.chat_template == template
    assert loaded.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False) == ids


def test_mixed_precision_keeps_full_precision_weights() -> None:
    models = Models(
        {"policy": {"load": "micro", "mixed": True}, "plain": {"load": "micro"}}, ["policy", "plain"], ["policy"]
    )
    batch = rows([14, 9])
    mixed = models["policy"].evaluate(batch).logprobs
    with torch.no_grad():
        plain = models["plain"].evaluate(batch).logprobs
    assert 0 < float((mixed.detach() - plain).abs().max()) < 0.5
    mixed.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in models["policy"].module.parameters())
    drawn = models["policy"].generate([Prompt([5, 6, 7], (1,), Sampling(1.0))], max_new=4)[0][0]
    assert len(drawn.ids) == len(drawn.logprobs)


@pytest.mark.slow
def test_compiled_trunk_gives_the_same_numbers() -> None:
    models = Models({"policy": {"load": "micro", "compile": True}, "plain": {"load": "micro"}}, ["policy", "plain"])
    batch = rows([14, 9])
    with torch.no_grad():
        assert torch.allclose(
            models["policy"].evaluate(batch).logprobs, models["plain"].evaluate(batch).logprobs, atol=1e-4
        )


def test_a_hub_name_without_a_network_fails_at_once(monkeypatch):
    """Neither the probe nor the loading waits for the many retries of the hub's client."""
    import time

    import huggingface_hub
    from huggingface_hub import constants

    from gainstage.policies.language import sources

    class Silent:
        def head(self, url, timeout):
            time.sleep(30)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", Silent)
    started = time.monotonic()
    with pytest.raises(RecipeError, match="hub cannot be reached"):
        sources.load_causal_lm("nobody/nothing-of-that-name")
    assert 2 <= time.monotonic() - started < 6
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: type("Here", (), {"head": lambda *a, **k: None})())
    assert sources.hub_answers()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not sources.hub_answers()


def test_a_model_in_the_cache_is_loaded_without_the_network(monkeypatch, tmp_path):
    import huggingface_hub

    from gainstage.policies.language import sources

    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, local_files_only: sources.locate("micro"))
    module, _, _ = sources.load_causal_lm("somebody/micro")
    assert module.config.name_or_path == "somebody/micro"
