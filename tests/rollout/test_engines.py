"""The torch engine: exact log-probs, samples that do not depend on their neighbours, right ends and texts."""

import math

import pytest
import torch
from torch import nn

from gainstage.ops.noise import mix
from gainstage.rollout.engines.torch import TorchEngine
from gainstage.types import Prompt, Sampling, Stop

VOCABULARY = 48
END = 1


def tiny_config(family, **changes):
    import transformers

    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, initializer_range=0.3, eos_token_id=END, pad_token_id=0,
        bos_token_id=None,
    )
    gpt2 = dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=96, initializer_range=0.3,
        eos_token_id=END, bos_token_id=None,
    )
    neox = {k: v for k, v in sizes.items() if k != "num_key_value_heads"}
    llama3 = dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16)
    dynamic = dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)
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
    }
    config = make[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


FAST = ["llama", "llama-one-kv-head", "llama-tied", "llama-biased", "llama3-rope", "mistral", "qwen2", "qwen3",
        "gpt2", "gpt2-scaled"]
SLOW = ["llama-dynamic-rope", "mistral-window", "qwen3-window", "gemma2", "gpt-neox"]


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


def make_prompts(shape, sampling=Sampling(), seed=0):
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


@pytest.mark.parametrize("family", FAST + SLOW)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_logprobs_equal_a_plain_forward(family, temperature):
    model = tiny_model(family)
    prompts = make_prompts(SHAPE, Sampling(temperature=temperature))
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=48)
    lengths = {len(c.ids) for row in results for c in row}
    assert len(lengths) > 1, "rows should end at different times"
    assert gap(model, prompts, results) < 3e-5


@pytest.mark.parametrize("family", FAST)
def test_known_families_take_the_fast_path(family):
    from gainstage.rollout.engines._blocks import read_network

    assert read_network(tiny_model(family)) is not None


@pytest.mark.parametrize("family", ["llama-dynamic-rope", "gemma2", "gpt-neox"])
def test_unknown_maths_takes_the_models_own_forward(family):
    from gainstage.rollout.engines._blocks import read_network

    assert read_network(tiny_model(family)) is None


def as_lists(results):
    return [[(c.ids, c.stop) for c in row] for row in results]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt-neox"])
def test_samples_do_not_depend_on_their_neighbours(family):
    model = tiny_model(family)
    prompts = make_prompts(SHAPE * 2)
    engine = TorchEngine().bind(model, Numbers())
    whole = as_lists(engine.generate(prompts, max_new=16))
    backwards = as_lists(engine.generate(prompts[::-1], max_new=16))
    assert backwards[::-1] == whole
    alone = [as_lists(engine.generate([prompt], max_new=16))[0] for prompt in prompts]
    assert alone == whole
    small = as_lists(TorchEngine(max_batch_tokens=70).bind(model, Numbers()).generate(prompts, max_new=16))
    assert small == whole
    parts = [
        Prompt(p.ids, keys, p.sampling) for p in prompts for keys in (p.keys[:1], p.keys[1:3], p.keys[3:])
    ]
    pieces = as_lists(engine.generate(parts, max_new=16))
    assert [sum(pieces[3 * i : 3 * i + 3], []) for i in range(len(prompts))] == whole


def test_keys_decide_the_samples():
    engine = TorchEngine().bind(tiny_model("llama"), Numbers())
    ids = [5, 6, 7]
    rows = engine.generate([Prompt(ids, (3, 4, 3, 3 + 2**64))], max_new=12)[0]
    assert rows[0].ids == rows[2].ids == rows[3].ids != rows[1].ids


@pytest.mark.parametrize("family", FAST + SLOW)
def test_greedy_equals_transformers(family):
    model = tiny_model(family)
    prompts = make_prompts([(4, 1), (11, 1), (30, 1)], Sampling(temperature=0))
    results = TorchEngine().bind(model, Numbers()).generate(prompts, max_new=20)
    for prompt, (completion,) in zip(prompts, results, strict=True):
        reference = model.generate(
            torch.tensor([prompt.ids]), do_sample=False, max_new_tokens=20, eos_token_id=END, pad_token_id=0
        )
        assert completion.ids == reference[0, len(prompt.ids) :].tolist()
    assert gap(model, prompts, results) < 3e-5
