"""The torch engine: exact log-probs, samples that do not depend on their neighbours, right ends and texts."""

import math

import pytest
import torch
from torch import nn

from gainstage.ops.noise import mix
from gainstage.rollout.engines import _products
from gainstage.rollout.engines._blocks import read_network
from gainstage.rollout.engines._fallback import CachedDecoder, PlainDecoder, open_decoder
from gainstage.rollout.engines._sampling import Sampler, inverse_cdf
from gainstage.rollout.engines.torch import TorchEngine, survivors
from gainstage.types import Prompt, Sampling, Stop

VOCABULARY = 48
END = 1


def tiny_config(family, **changes):
    import transformers

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
        "eos_token_id": END,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    gpt2 = {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 96,
        "initializer_range": 0.3,
        "eos_token_id": END,
        "bos_token_id": None,
    }
    bloom = {k: sizes[k] for k in ("vocab_size", "hidden_size", "initializer_range", "eos_token_id", "pad_token_id")}
    bloom |= {"n_layer": 2, "n_head": 4}
    neox = {k: v for k, v in sizes.items() if k != "num_key_value_heads"}
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    make = {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "llama-one-kv-head": lambda: transformers.LlamaConfig(**{**sizes, "num_key_value_heads": 1}),
        "llama-tied": lambda: transformers.LlamaConfig(**sizes, tie_word_embeddings=True),
        "llama-biased": lambda: transformers.LlamaConfig(**sizes, attention_bias=True, mlp_bias=True),
        "llama3-rope": lambda: transformers.LlamaConfig(**sizes, rope_parameters=llama3),
        "llama-dynamic-rope": lambda: transformers.LlamaConfig(**sizes, rope_parameters=dynamic),
        "mistral": lambda: transformers.MistralConfig(**sizes, sliding_window=None),
        "mistral-window": lambda: transformers.MistralConfig(**sizes, sliding_window=6),
        "qwen2": lambda: transformers.Qwen2Config(**sizes),
        "qwen3": lambda: transformers.Qwen3Config(**sizes, head_dim=16),
        "qwen3-window": lambda: transformers.Qwen3Config(
            **sizes, head_dim=16, use_sliding_window=True, sliding_window=6, max_window_layers=1
        ),
        "gpt2": lambda: transformers.GPT2Config(**gpt2),
        "gpt2-scaled": lambda: transformers.GPT2Config(**gpt2, scale_attn_by_inverse_layer_idx=True),
        "gemma2": lambda: transformers.Gemma2Config(**sizes, head_dim=8, sliding_window=16),
        "gpt-neox": lambda: transformers.GPTNeoXConfig(**neox),
        "bloom": lambda: transformers.BloomConfig(**bloom),
        "lfm2": lambda: transformers.Lfm2Config(**sizes, full_attn_idxs=[1]),
    }
    config = make[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


FAST = [
    "llama",
    "llama-one-kv-head",
    "llama-tied",
    "llama-biased",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt2-scaled",
]
SLOW = ["llama-dynamic-rope", "mistral-window", "qwen3-window", "gemma2", "gpt-neox", "bloom", "lfm2"]


def tiny_model(family, seed=0):
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases start at ones and zeros, which would hide mistakes
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


class Numbers:
    """A tokenizer that writes ids as numbers."""

    eos_token_id = END
    all_special_tokens = ()

    def __len__(self):
        return VOCABULARY

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids))


PLAIN = Sampling()


def make_prompts(shape, sampling=PLAIN, seed=0):
    """Prompts of random ids: `shape` lists (length, samples)."""
    random = torch.Generator().manual_seed(seed)
    return [
        Prompt(
            torch.randint(2, VOCABULARY, (length,), generator=random).tolist(),
            tuple(mix(seed, group, sample) for sample in range(samples)),
            sampling,
        )
        for group, (length, samples) in enumerate(shape)
    ]


def score(model, prompt, completion, temperature=1.0):
    """Log-probs of a completion by one plain forward of the model."""
    ids = torch.tensor([prompt.ids + completion.ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt.ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(completion.ids).unsqueeze(1)).squeeze(1)


def gap(model, prompts, results):
    """Largest difference between the engine's and the model's log-probs."""
    worst = 0.0
    for prompt, completions in zip(prompts, results, strict=True):
        for completion in completions:
            assert len(completion.ids) == len(completion.logprobs) > 0
            exact = score(model, prompt, completion, prompt.sampling.temperature or 1.0)
            worst = max(worst, float((exact - torch.tensor(completion.logprobs)).abs().max()))
    return worst


SHAPE = [(3, 4), (17, 2), (40, 5), (1, 1), (9, 3)]
TEMPERATURES = (0.7, 1.0, 1.5, 0.0, 1.0)


@pytest.mark.parametrize("family", FAST + SLOW)
def test_logprobs_equal_a_plain_forward(family):
    model = tiny_model(family)
    prompts = [
        Prompt(p.ids, p.keys, Sampling(temperature=t)) for p, t in zip(make_prompts(SHAPE), TEMPERATURES, strict=True)
    ]
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=40)
    lengths = {len(c.ids) for row in results for c in row}
    assert len(lengths) > 1, "rows should end at different times"
    assert gap(model, prompts, results) < 3e-5


@pytest.mark.parametrize("family", FAST + SLOW)
def test_greedy_equals_transformers(family):
    model = tiny_model(family)
    prompts = make_prompts([(4, 1), (11, 1), (30, 1)], Sampling(temperature=0))
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=10)
    for prompt, (completion,) in zip(prompts, results, strict=True):
        reference = model.generate(
            torch.tensor([prompt.ids]), do_sample=False, max_new_tokens=10, eos_token_id=END, pad_token_id=0
        )
        assert completion.ids == reference[0, len(prompt.ids) :].tolist()


@pytest.mark.parametrize("family", FAST)
def test_known_families_take_the_fast_path(family):
    assert read_network(tiny_model(family), 10) is not None


@pytest.mark.parametrize("family", ["llama-dynamic-rope", "gemma2", "gpt-neox", "bloom", "lfm2"])
def test_unknown_maths_takes_the_models_own_forward(family):
    assert read_network(tiny_model(family), 10) is None


def test_states_that_padding_would_spoil_are_recomputed():
    kinds = {
        family: type(open_decoder(tiny_model(family), [[5]], [1])) for family in ("gpt-neox", "gemma2", "bloom", "lfm2")
    }
    assert kinds == {"gpt-neox": CachedDecoder, "gemma2": CachedDecoder, "bloom": PlainDecoder, "lfm2": PlainDecoder}


def test_a_sliding_window_counts_only_where_it_cuts():
    network = read_network(tiny_model("mistral-window"), 10)
    assert network is not None and network.window == 6
    assert read_network(tiny_model("mistral"), 10).window is None


def test_hooks_and_overridden_forwards_are_not_bypassed():
    model = tiny_model("llama")
    handle = model.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
    prompts = make_prompts([(5, 3)])
    assert gap(model, prompts, TorchEngine().bind(model, Numbers()).generate(prompts, max_new=6)) < 3e-5
    handle.remove()
    assert read_network(model, 10) is not None
    layer = model.model.layers[0].mlp
    plain = type(layer).forward
    layer.forward = lambda x: 2 * plain(layer, x)
    assert read_network(model, 10) is None
    assert gap(model, prompts, TorchEngine().bind(model, Numbers()).generate(prompts, max_new=6)) < 3e-5


def test_many_short_rows_leave_the_batch_in_any_order():
    """Rows that end at almost every step: gaps are filled, prompts without rows are dropped, caches grow."""
    model = tiny_model("llama-one-kv-head")
    model.generation_config.eos_token_id = [1, 2, 3]
    prompts = make_prompts([(4 + i % 5, 1 + i % 7) for i in range(24)], seed=3)
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=80)
    lengths = [len(c.ids) for row in results for c in row]
    assert len(set(lengths)) > 8 and max(lengths) > 34
    assert gap(model, prompts, results) < 3e-5
    ended = [c.ids for row in results for c in row if c.stop is Stop.EOS]
    assert all(ids[-1] in (1, 2, 3) and not {1, 2, 3} & set(ids[:-1]) for ids in ended)


def test_bfloat16_stays_close_to_the_plain_forward():
    model = tiny_model("qwen3").to(torch.bfloat16)
    prompts = make_prompts(SHAPE)
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=10)
    differences = []
    for prompt, completions in zip(prompts, results, strict=True):
        for c in completions:
            ids = torch.tensor([prompt.ids + c.ids])
            with torch.no_grad():
                logits = model(ids).logits[0, len(prompt.ids) - 1 : -1].float()
            exact = logits.log_softmax(-1).gather(1, torch.tensor(c.ids).unsqueeze(1)).squeeze(1)
            differences.append((exact - torch.tensor(c.logprobs)).abs())
    assert torch.cat(differences).mean() < 0.1  # logits of size 10 have steps of 0.06


def as_lists(results):
    return [[(c.ids, c.stop) for c in row] for row in results]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox"])
def test_samples_do_not_depend_on_their_neighbours(family):
    model = tiny_model(family)
    prompts = make_prompts(SHAPE)
    engine = TorchEngine().bind(model, Numbers())
    whole = as_lists(engine.generate(prompts, max_new=12))
    assert as_lists(engine.generate(prompts[::-1], max_new=12))[::-1] == whole
    assert [as_lists(engine.generate([prompt], max_new=12))[0] for prompt in prompts] == whole
    small = TorchEngine(max_batch_tokens=70).bind(model, Numbers())
    assert as_lists(small.generate(prompts, max_new=12)) == whole
    parts = [Prompt(p.ids, keys) for p in prompts for keys in (p.keys[:1], p.keys[1:3], p.keys[3:])]
    pieces = as_lists(engine.generate(parts, max_new=12))
    assert [a + b + c for a, b, c in zip(*[iter(pieces)] * 3, strict=True)] == whole
    shorter = [[ids[:5] for ids, _ in row] for row in whole]
    assert [[c.ids for c in row] for row in engine.generate(prompts, max_new=5)] == shorter


def test_waves_fit_the_cache_and_keep_like_prompts_together():
    engine = TorchEngine(max_batch_tokens=1000).bind(tiny_model("llama"), Numbers())

    def waves(shape, limit=10):
        prompts = make_prompts(shape)
        found = list(engine._waves(prompts, [limit] * len(prompts)))
        drawn = [(p.index, p.first + i) for wave in found for p in wave for i in range(len(p.keys))]
        assert sorted(drawn) == [(i, s) for i, (_, samples) in enumerate(shape) for s in range(samples)]
        return [[(len(p.request.ids), len(p.keys)) for p in wave] for wave in found]

    assert waves([(20, 4), (30, 4), (25, 4)]) == [[(20, 4), (25, 4), (30, 4)]]
    assert waves([(20, 4)] * 18) == [[(20, 4)] * 16 + [(20, 2)], [(20, 2), (20, 4)]], "16 x (20 + 40) + 20 + 20"
    assert waves([(90, 100), (90, 100)]) == [[(90, 91)], [(90, 9), (90, 73)], [(90, 27)]]
    assert waves([(10, 1)] * 9 + [(90, 1)]) == [[(10, 1)] * 9, [(90, 1)]], "one long prompt does not pad the rest"
    assert waves([(10, 1)] * 9 + [(10, 40)]) == [[(10, 1)] * 9, [(10, 40)]], "nor does one large group"
    assert waves([(10, 1)], limit=5000) == [[(10, 1)]], "one row always runs"


def test_keys_decide_the_samples():
    engine = TorchEngine().bind(tiny_model("llama"), Numbers())
    rows = engine.generate([Prompt([5, 6, 7], (3, 4, 3, 3 + 2**64))], max_new=12)[0]
    assert rows[0].ids == rows[2].ids == rows[3].ids != rows[1].ids


def test_workers_with_one_run_seed_draw_different_answers():
    """Two workers that are given samples 0-3 and 4-7 of one group: no stream is drawn twice."""
    engine = TorchEngine().bind(tiny_model("llama"), Numbers())

    def group(seed):
        keys = [mix(seed, 0, 0, sample) for sample in range(8)]
        workers = [Prompt([5, 6, 7], tuple(keys[:4])), Prompt([5, 6, 7], tuple(keys[4:]))]
        return [tuple(c.ids) for request in workers for c in engine.generate([request], max_new=8)[0]]

    assert len(set(group(0))) == 8
    assert group(0) == group(0) != group(1)


def test_draws_follow_the_distribution():
    model = tiny_model("llama")
    ids = [5, 6, 7]
    keys = tuple(mix("draws", i) for i in range(20_000))
    rows = TorchEngine().bind(model, Numbers()).generate([Prompt(ids, keys, Sampling(temperature=2.0))], max_new=1)[0]
    counts = torch.bincount(torch.tensor([c.ids[0] for c in rows]), minlength=VOCABULARY)
    with torch.no_grad():
        expected = (model(torch.tensor([ids])).logits[0, -1] / 2).softmax(-1) * len(keys)
    big = expected > 5
    statistic = float(((counts - expected)[big] ** 2 / expected[big]).sum())
    assert statistic < big.sum() + 4 * math.sqrt(2 * big.sum())


def test_weights_are_shared_and_stay_trainable():
    model = tiny_model("llama").train()
    engine = TorchEngine().bind(model, Numbers())
    prompts = make_prompts([(5, 4)])
    before = engine.generate(prompts, max_new=8)
    loss = model(torch.tensor([prompts[0].ids])).logits.logsumexp(-1).sum()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad / parameter.grad.norm()
    changed = engine.generate(prompts, max_new=8)
    assert as_lists(before) != as_lists(changed) and gap(model.eval(), prompts, changed) < 3e-5
    for parameter in model.parameters():
        parameter.data.mul_(1.1)  # leaves no trace in version counters
    assert gap(model, prompts, engine.generate(prompts, max_new=8)) < 3e-5


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox"])
def test_dropout_is_off_while_drawing_and_modes_come_back(family):
    model = tiny_model(family).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    frozen = next(module for module in model.modules() if isinstance(module, nn.LayerNorm)).eval()
    prompts = make_prompts([(5, 3)])
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=6)
    assert model.training and not frozen.training
    assert gap(model.eval(), prompts, results) < 3e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_adapters_take_the_fast_path(family):
    peft = pytest.importorskip("peft")
    targets = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}[family]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.3,
                             fan_in_fan_out=family == "gpt2")  # fmt: skip
    model = peft.get_peft_model(tiny_model(family), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    prompts = make_prompts(SHAPE)
    engine = TorchEngine().bind(model, Numbers())
    assert read_network(model, 10) is not None
    results = engine.generate(prompts, max_new=10)
    assert gap(model.eval(), prompts, results) < 3e-5
    with model.disable_adapter():
        plain = engine.generate(prompts, max_new=10)
        assert gap(model, prompts, plain) < 3e-5
    assert as_lists(plain) != as_lists(results)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"use_rslora": True}, {"lora_bias": True}])
def test_kinds_of_adapters(settings):
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "k_proj"] if "lora_bias" in settings else ["q_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **settings)
    model = peft.get_peft_model(tiny_model("qwen2"), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    prompts = make_prompts(SHAPE)
    assert gap(model, prompts, TorchEngine().bind(model, Numbers()).generate(prompts, max_new=8)) < 3e-5
    model.merge_adapter()
    assert gap(model, prompts, TorchEngine().bind(model, Numbers()).generate(prompts, max_new=8)) < 3e-5


@pytest.mark.parametrize("family", ["llama-biased", "qwen3", "gpt2"])
@pytest.mark.parametrize("limits", [{"_PACK_FROM": 1}, {"_COPY_BYTES": 0}])
def test_layouts_of_weights_do_not_change_the_maths(monkeypatch, family, limits):
    for name, value in limits.items():
        monkeypatch.setattr(_products, name, value)
    model = tiny_model(family)
    prompts = make_prompts(SHAPE)
    assert gap(model, prompts, TorchEngine().bind(model, Numbers()).generate(prompts, max_new=8)) < 3e-5


def cut(logits, sampling):
    """A slow reference of the support cuts: probabilities of one row."""
    probabilities = (logits.double() / sampling.temperature).softmax(-1)
    order = probabilities.argsort(descending=True).tolist()
    if sampling.top_k:
        order = order[: sampling.top_k]
    kept, mass, whole = [], 0.0, float(probabilities[order].sum())
    for token in order:
        if mass / whole >= sampling.top_p:
            break
        kept.append(token)
        mass += float(probabilities[token])
    kept = [t for t in kept if probabilities[t] >= sampling.min_p * probabilities.max()]
    out = torch.zeros_like(probabilities)
    out[kept] = probabilities[kept]
    return out / out.sum()


@pytest.mark.parametrize("size", [48, 3000])
def test_support_cuts_and_their_logprobs(size):
    torch.manual_seed(1)
    settings = [
        Sampling(), Sampling(top_k=3), Sampling(top_p=0.5), Sampling(min_p=0.2), Sampling(temperature=0.6, top_k=10),
        Sampling(temperature=2.0, top_p=0.9), Sampling(top_k=20, top_p=0.7, min_p=0.05), Sampling(top_k=10**6),
        Sampling(temperature=8.0, top_p=0.99), Sampling(top_k=1), Sampling(top_p=1e-6),
    ]  # fmt: skip
    logits = 3 * torch.randn(len(settings), size)
    rows = 200
    sampler = Sampler([s for s in settings for _ in range(rows)], range(rows * len(settings)), torch.device("cpu"))
    ids, logprobs, entropy = sampler.draw(logits.repeat_interleave(rows, 0), 0, entropy=True)
    for index, sampling in enumerate(settings):
        exact = cut(logits[index], sampling)
        mine = slice(index * rows, (index + 1) * rows)
        assert (exact[ids[mine]] > 0).all(), sampling
        assert torch.allclose(logprobs[mine].double(), exact[ids[mine]].log(), atol=2e-5), sampling
        assert torch.allclose(entropy[mine].double(), -torch.special.xlogy(exact, exact).sum(), atol=2e-5), sampling


def test_greedy_rows_ignore_cuts_and_record_the_full_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    sampler = Sampler([Sampling(temperature=0, top_k=1), Sampling(temperature=0.5)], (0, 1), torch.device("cpu"))
    ids, logprobs, _ = sampler.draw(logits, 0)
    assert ids[0] == 0 and math.isclose(logprobs[0], -0.40761, abs_tol=1e-5)
    expected = {0: -0.14293, 1: -2.14293, 2: -4.14293}[int(ids[1])]
    assert math.isclose(logprobs[1], expected, abs_tol=1e-5)


@pytest.mark.parametrize("size", [5, 256, 257, 1000])
def test_inverse_cdf_never_draws_a_token_without_mass(size):
    torch.manual_seed(0)
    mass = torch.rand(64, size)
    mass[torch.rand(64, size) < 0.7] = 0
    mass[:, 1] += 1e-3
    for noise in (2.0**-53, 0.3, 0.5, 1 - 2.0**-53):
        ids, total = inverse_cdf(mass, torch.full((64,), noise, dtype=torch.float64))
        assert (mass.gather(1, ids.unsqueeze(1)) > 0).all()
        below = (mass.double().cumsum(1) <= noise * mass.double().sum(1, keepdim=True)).sum(1)
        assert (below - ids).abs().max() <= (1 if noise < 0.9 else size)
        assert torch.allclose(total, mass.sum(1), rtol=1e-5)


def test_entropy_comes_only_when_asked():
    model = tiny_model("llama")
    prompts = make_prompts([(5, 3)])
    engine = TorchEngine().bind(model, Numbers())
    assert all(c.extras == {} for c in engine.generate(prompts, max_new=5)[0])
    for c in engine.generate(prompts, max_new=5, want=["entropy"])[0]:
        with torch.no_grad():
            logits = model(torch.tensor([prompts[0].ids + c.ids])).logits[0, len(prompts[0].ids) - 1 : -1]
        exact = torch.distributions.Categorical(logits=logits).entropy()
        assert torch.allclose(torch.tensor(c.extras["entropy"]), exact, atol=3e-5)


def test_context_and_length_limits():
    model = tiny_model("gpt2")  # 96 positions, learned: one more would be an error
    engine = TorchEngine().bind(model, Numbers())
    model.generation_config.eos_token_id = None
    tokenizer = Numbers()
    tokenizer.eos_token_id = None
    engine.bind(model, tokenizer)
    prompts = make_prompts([(4, 2), (92, 2), (96, 2), (120, 1)])
    rows = engine.generate(prompts, max_new=8)
    assert [[(len(c.ids), c.stop) for c in row] for row in rows] == [
        [(8, Stop.LENGTH)] * 2, [(4, Stop.CONTEXT)] * 2, [(0, Stop.CONTEXT)] * 2, [(0, Stop.CONTEXT)],
    ]  # fmt: skip


def test_nothing_asked_nothing_drawn():
    engine = TorchEngine().bind(tiny_model("llama"), Numbers())
    assert engine.generate([], max_new=4) == []
    assert engine.generate([Prompt([5], ())], max_new=4) == [[]]
    rows = engine.generate([Prompt([5], ()), Prompt([6], (1,))], max_new=4)
    assert [len(row) for row in rows] == [0, 1]


def test_wrong_calls_say_what_to_change():
    with pytest.raises(ValueError, match="bind"):
        TorchEngine().generate([Prompt([5], (1,))], max_new=4)
    engine = TorchEngine().bind(tiny_model("llama"), Numbers())
    with pytest.raises(ValueError, match="max_new"):
        engine.generate([Prompt([5], (1,))], max_new=0)
    with pytest.raises(ValueError, match=r"entropie.*entropy"):
        engine.generate([Prompt([5], (1,))], max_new=1, want=["entropie"])
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        engine.generate([Prompt([5], (1,)), Prompt([], (1,))], max_new=1)
    with pytest.raises(ValueError, match="48 embeddings"):
        engine.generate([Prompt([VOCABULARY], (1,))], max_new=1)
    with pytest.raises(ValueError, match="stop"):
        engine.generate([Prompt([5], (1,))], max_new=1, stop=[""])
    with pytest.raises(ValueError, match="max_batch_tokens"):
        TorchEngine(max_batch_tokens=0)


def test_broken_weights_are_an_error():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="NaN"):
        TorchEngine().bind(model, Numbers()).generate(make_prompts([(5, 3)]), max_new=4)


class Script(nn.Module):
    """An unknown architecture that writes a fixed text: `lines[first id of the prompt]`."""

    def __init__(self, lines, vocabulary, end):
        super().__init__()
        from types import SimpleNamespace

        self.lines, self.end = lines, end
        self.table = nn.Embedding(vocabulary, 2)
        self.config = SimpleNamespace(num_hidden_layers=1, hidden_size=2, max_position_embeddings=None)
        self.generation_config = SimpleNamespace(eos_token_id=[end])
        self.rows = []

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, use_cache=False):
        from types import SimpleNamespace

        self.rows.append(len(input_ids))
        logits = torch.zeros(*input_ids.shape, self.table.num_embeddings)
        for row, ids in enumerate(input_ids.tolist()):
            line = self.lines[ids[0]] + [self.end]
            for position in range(len(ids)):
                logits[row, position, line[min(position, len(line) - 1)]] = 80.0
        return SimpleNamespace(logits=logits)


@pytest.fixture(scope="module")
def bytewise():
    """A byte-level tokenizer with some longer pieces, and the id of a piece."""
    import tokenizers
    import transformers

    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def spell(text):
        return "".join(piece for piece, _ in level.pre_tokenize_str(text))

    pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces += [spell(text) for text in (">>>>>>> UPD", "ATED", "ok", "UPDATED;", "\n\n")]
    thumb = spell("\N{THUMBS UP SIGN}")
    pieces += [thumb[:2], thumb[2:], "<|end|>", "<|stop|>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = level, tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|stop|>"]})

    def line(*texts):
        return [vocabulary[text if text.startswith("<|") else spell(text)] for text in texts]

    return tokenizer, line, [vocabulary[thumb[:2]], vocabulary[thumb[2:]]]


def write(bytewise, lines, max_new=16, stop=()):
    tokenizer = bytewise[0]
    model = Script(lines, len(tokenizer), tokenizer.eos_token_id)
    engine = TorchEngine().bind(model, tokenizer)
    rows = engine.generate([Prompt([number], (number,)) for number in range(len(lines))], max_new=max_new, stop=stop)
    return [row[0] for row in rows], model


def test_a_stop_string_may_span_tokens(bytewise):
    _, line, _ = bytewise
    lines = [
        line("ok", ">>>>>>> UPD", "ATED", "ok"),
        line("ok", ">>>>>>> UPD", "ok"),
        line(*">>>>>>> ", "UPDATED;", "ok"),
        line("ok", "ok", "ok", "ok", "ok"),
    ]
    rows, model = write(bytewise, lines, max_new=12, stop=[">>>>>>> UPDATED"])
    assert [c.text for c in rows] == ["ok", "ok>>>>>>> UPDok", "", "ok" * 5]
    assert [c.stop for c in rows] == [Stop.EOS] * 4
    assert rows[0].ids == lines[0][:3] and rows[2].ids == lines[2][:9], "ids keep the stop string"
    assert all(len(c.ids) == len(c.logprobs) for c in rows)
    assert rows[0].extras == {"stop_string": ">>>>>>> UPDATED"} and rows[1].extras == {}
    assert rows[1].ids == lines[1] + [model.end], "the end token is a sampled token"


def test_a_part_of_a_stop_string_at_the_limit_is_kept(bytewise):
    _, line, _ = bytewise
    (row,), _ = write(bytewise, [line("ok", ">>>>>>> UPD", "ATED")], max_new=2, stop=[">>>>>>> UPDATED"])
    assert row.text == "ok>>>>>>> UPD" and row.stop is Stop.LENGTH and len(row.ids) == 2
    (row,), _ = write(bytewise, [line("ok", ">>>>>>> UPD", "ATED")], max_new=3, stop=[">>>>>>> UPDATED"])
    assert row.text == "ok" and row.stop is Stop.EOS


def test_the_first_stop_string_in_the_text_counts(bytewise):
    _, line, _ = bytewise
    rows, _ = write(bytewise, [line(*"abc"), line("UPDATED;"), line(*"a b")], stop=["c", "b", "DATE", "a "])
    assert [c.text for c in rows] == ["a", "UP", ""]
    assert [c.extras["stop_string"] for c in rows] == ["b", "DATE", "a "]


def test_characters_that_span_tokens_come_out_whole(bytewise):
    _, line, thumb = bytewise
    lines = [thumb + line("ok"), line("ok") + thumb[:1], line("a") + thumb + line("b")]
    rows, _ = write(bytewise, lines)
    assert rows[0].text == "\N{THUMBS UP SIGN}ok" and rows[2].text == "a\N{THUMBS UP SIGN}b"
    assert rows[1].text == "ok\ufffd", "half a character stays half a character"
    (row,), _ = write(bytewise, [line("a") + thumb + line("b")], stop=["\N{THUMBS UP SIGN}"])
    assert row.text == "a" and row.ids == line("a") + thumb and row.stop is Stop.EOS


def test_a_special_token_as_stop_string_is_an_end_token(bytewise):
    _, line, _ = bytewise
    (row,), _ = write(bytewise, [line("ok", "<|stop|>", "ok")], stop=["<|stop|>"])
    assert row.text == "ok" and row.stop is Stop.EOS and row.ids == line("ok", "<|stop|>")
    (row,), _ = write(bytewise, [line("ok", "<|stop|>", "ok")])
    assert row.text == "okok", "special tokens leave no text"


def test_ended_rows_are_not_paid_for(bytewise):
    _, line, _ = bytewise
    lines = [line(*"x" * length) for length in (1, 2, 3, 9)]
    rows, model = write(bytewise, lines)
    assert [len(c.ids) for c in rows] == [2, 3, 4, 10]
    assert model.rows == [4, 4, 3, 2, 1, 1, 1, 1, 1, 1]


def test_long_texts_find_late_stop_strings(bytewise):
    _, line, _ = bytewise
    text = "ab\n" * 30 + "\n"
    (row,), _ = write(bytewise, [line(*text, "ok")], max_new=200, stop=["\n\n"])
    assert row.text == text[:-2] and len(row.ids) == len(text)
    (row,), _ = write(bytewise, [line(*"ab" * 30, "\n\n", "ok")], max_new=200, stop=["\n\n"])
    assert row.text == "ab" * 30


def test_survivors_fill_gaps_from_behind():
    over = torch.tensor([True, False, True, False, False, True, False])
    assert survivors(over).tolist() == [4, 1, 6, 3]
    assert survivors(torch.tensor([False, False])).tolist() == [0, 1]
    assert survivors(torch.tensor([True])).tolist() == []
