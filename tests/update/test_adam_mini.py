"""Adam-mini: worked numbers, the cut of real architectures, degenerate gradients, state."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from gainstage.update.optimizers.adam_mini import AdamMini
from gainstage.update.optimizers.build import build_optimizer
from gainstage.update.optimizers.partition import Partition

START, GRADIENTS = [[1.0, 2.0], [3.0, 4.0]], ([[0.1, 0.3], [-0.4, 0.0]], [[0.2, -0.1], [0.4, 0.2]])


def matrix_run(rule, weight_decay=0.0, gradients=GRADIENTS, dtype=torch.float64):
    weight = nn.Parameter(torch.tensor(START, dtype=dtype))
    optimizer = build_optimizer(
        [("w.weight", weight)], "adam_mini", 0.1, (0.9, 0.99), weight_decay=weight_decay, rules={"*": rule}
    )
    seen = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
        seen.append(weight.detach().flatten().tolist())
    return seen, optimizer.state[weight]["exp_avg_sq"]


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("rows", [0.955279, 1.865836, 3.141421, 4], [0.876394, 1.819593, 3.134406, 3.964922]),
        ("tensor", [0.960777, 1.882330, 3.156893, 4], [0.900323, 1.846892, 3.148554, 3.958308]),
        ("element", [0.9, 1.9, 3.1, 4], [0.803613, 1.859905, 3.094737, 3.925754]),
    ],
)
def test_two_steps_by_hand(rule, first, second):
    seen, moments = matrix_run(rule)
    assert seen[0] == pytest.approx(first, abs=1e-6)
    assert seen[1] == pytest.approx(second, abs=1e-6)
    if rule == "rows":
        assert moments.tolist() == pytest.approx([0.000745, 0.001792], abs=1e-6)


def test_decoupled_decay_by_hand():
    seen, _ = matrix_run("rows", weight_decay=0.1)
    assert seen[0] == pytest.approx([0.945279, 1.845836, 3.111421, 3.96], abs=1e-6)


def test_columns_are_rows_of_the_transpose():
    turned = [[list(row) for row in zip(*g)] for g in GRADIENTS]
    weight = nn.Parameter(torch.tensor(START).T.contiguous())
    optimizer = build_optimizer([("w", weight)], "adam_mini", 0.1, (0.9, 0.99), rules={"w": "columns"})
    for gradient in turned:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    assert weight.detach().T.flatten().tolist() == pytest.approx(matrix_run("rows")[0][1], abs=1e-5)


def test_elements_are_adamw():
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(4, 3)), None
    b = nn.Parameter(a.detach().clone())
    mini = build_optimizer([("w", a)], "adam_mini", 0.03, weight_decay=0.1, rules={"w": "element"})
    adam = build_optimizer([("w", b)], "adamw", 0.03, weight_decay=0.1)
    for _ in range(10):
        a.grad = torch.randn(4, 3)
        b.grad = a.grad.clone()
        mini.step()
        adam.step()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["rows", "columns", "tensor"])
def test_equal_magnitudes_in_every_block_step_as_adamw(rule):
    gradients = [[[0.2, -0.2], [-0.2, 0.2]], [[-0.1, 0.1], [0.1, 0.1]]]
    assert matrix_run(rule, gradients=gradients)[0][1] == pytest.approx(
        matrix_run("element", gradients=gradients)[0][1]
    )


# --- the cut --------------------------------------------------------------------------------------------------------


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 64,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
    }
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes), bos_token_id=1, eos_token_id=2))


def test_blocks_of_a_small_transformer():
    module = llama()
    optimizer = build_optimizer([("policy." + n, p) for n, p in module.named_parameters()], "adam_mini", module=module)
    assert optimizer.numbers() == (1_057_920, 5_737)
    assert sum(optimizer.numbers()) / (2 * 1_057_920) == pytest.approx(0.503, abs=5e-4)
    table = optimizer.table().splitlines()
    assert table[0].split() == ["tensor", "shape", "rule", "blocks"] and table[-1].endswith("5,737")
    line = next(row for row in table if "layers.2.self_attn.k_proj" in row)
    assert line.split() == ["policy.model.layers.2.self_attn.k_proj.weight", "128x128", "heads(4)", "4"]


def rules_of(module, **settings):
    partition = Partition(module, **settings)
    return {name: partition(name, parameter) for name, parameter in module.named_parameters()}


def test_grouped_queries_have_fewer_key_blocks_and_values_may_share_one():
    module = llama(num_key_value_heads=2, num_hidden_layers=1)
    found = rules_of(module)
    prefix = "model.layers.0.self_attn."
    counts = {key: found[f"{prefix}{key}_proj.weight"].count for key in "qkvo"}
    assert counts == {"q": 4, "k": 2, "v": 64, "o": 128}
    assert rules_of(module, value="tensor")[f"{prefix}v_proj.weight"].count == 1


def test_fused_matrices_are_cut_first():
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=1)
    )
    blocks = rules_of(gpt2)["transformer.h.0.attn.c_attn.weight"]
    assert (blocks.axis, blocks.count) == (1, 2 + 2 + 8)
    assert blocks.index.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + list(range(4, 12))
    assert rules_of(gpt2)["transformer.h.0.mlp.c_fc.weight"].rule == "columns"
    neox = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=16,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            bos_token_id=1,
        )
    )
    side_by_side = rules_of(neox)["gpt_neox.layers.0.attention.query_key_value.weight"].index.tolist()
    assert side_by_side == [0] * 4 + [2] * 4 + [4, 5, 6, 7] + [1] * 4 + [3] * 4 + [8, 9, 10, 11]
    attention = nn.MultiheadAttention(8, 2)
    assert rules_of(attention)["in_proj_weight"].count == 2 + 2 + 8


def test_other_layers():
    net = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 5, 2),
            "up": nn.ConvTranspose2d(3, 5, 2),
            "q": nn.Linear(4, 6),
            "norm": nn.LayerNorm((2, 3)),
            "scale": nn.ParameterList([nn.Parameter(torch.zeros(1))]),
        }
    )
    found = {name: (b.rule, b.count) for name, b in rules_of(net).items()}
    assert found["conv.weight"] == ("rows", 5) and found["up.weight"] == ("columns", 5)
    assert found["q.weight"] == ("rows", 6)  # a Q-network's layer is no attention query
    assert found["q.bias"] == ("element", 6) and found["norm.weight"] == ("tensor", 1)
    assert found["scale.0"] == ("element", 1)


def test_low_rank_adapters_are_cut_by_rows():
    pair = nn.ModuleDict({"lora_A": nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})})
    net = nn.ModuleDict({"self_attn": nn.ModuleDict({"q_proj": pair})})
    assert rules_of(net)["self_attn.q_proj.lora_A.default.weight"].rule == "rows"


class Attention(nn.Module):
    def __init__(self, heads=None):
        super().__init__()
        self.query = nn.Linear(6, 6, bias=False)
        if heads:
            self.num_heads = heads


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3, 4))


class Long(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(70_000))


@pytest.mark.parametrize(
    ("module", "settings", "words"),
    [
        (nn.ModuleDict({"a": Attention()}), {}, "heads of a.query.weight is not known; set `heads`"),
        (nn.ModuleDict({"a": Attention(4)}), {}, "4 heads do not divide the 6 outputs"),
        (Experts(), {}, "has 3 axes"),
        (Long(), {}, "would be a single block"),
        (Long(), {"rules": {"*": "blocks"}}, "unknown rule 'blocks'"),
    ],
)
def test_what_cannot_be_cut_is_named(module, settings, words):
    with pytest.raises(ValueError, match=words):
        rules_of(module, **settings)


def test_a_rule_of_the_users_own_settles_it():
    assert rules_of(Experts(), rules={"weight": "rows"})["weight"].count == 2
    assert rules_of(nn.ModuleDict({"a": Attention(4)}), heads=3)["a.query.weight"].count == 3


# --- degenerate gradients -------------------------------------------------------------------------------------------


def test_a_tensor_without_gradient_stays_as_it_is():
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer([("a", a), ("b", b)], "adam_mini", 0.1, weight_decay=0.5)
    for _ in range(3):
        a.grad = torch.ones(2, 2)
        optimizer.step()
    assert torch.equal(b, torch.ones(2, 2)) and not optimizer.state[b]
    b.grad = torch.ones(2, 2)
    optimizer.step()
    assert float(optimizer.state[b]["step"]) == 1 and float(optimizer.state[a]["step"]) == 4


def test_rows_that_are_never_used_never_move():
    embedding = nn.Embedding(4, 3)
    before = embedding.weight.detach().clone()
    optimizer = build_optimizer(embedding.named_parameters(), "adam_mini", 0.1, module=embedding)
    for _ in range(5):
        optimizer.zero_grad()
        embedding(torch.tensor([1])).sum().backward()
        optimizer.step()
    moved = (embedding.weight != before).any(1)
    assert moved.tolist() == [False, True, False, False]


def test_a_row_that_falls_silent_comes_to_rest():
    """Its second moment decays to nothing long before eps would hold it: no explosion, in float32, with eps 0."""
    weight = nn.Parameter(torch.zeros(1, 2))
    optimizer = build_optimizer([("w", weight)], "adam_mini", 0.1, (0.9, 0.5), eps=0.0)
    weight.grad = torch.tensor([[1e-3, 1e-3]])
    optimizer.step()
    for _ in range(400):
        weight.grad = torch.zeros(1, 2)
        optimizer.step()
        assert bool(torch.isfinite(weight).all())
    rest = weight.detach().clone()
    optimizer.step()
    assert torch.equal(weight, rest)


# --- state ----------------------------------------------------------------------------------------------------------


def test_a_state_cut_by_another_rule_is_refused():
    def of(rule):
        return build_optimizer([("w.weight", nn.Parameter(torch.zeros(4, 4)))], "adam_mini", rules={"*": rule})

    with pytest.raises(ValueError, match=r"w\.weight was saved with the rule 'rows', this run cuts it by 'columns'"):
        of("columns").load_state_dict(of("rows").state_dict())


def test_adamw_state_is_averaged_over_the_blocks():
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    adam = build_optimizer(net.named_parameters(), "adamw", 0.01, module=net)
    for _ in range(3):
        adam.zero_grad()
        net(torch.randn(5, 3)).pow(2).sum().backward()
        adam.step()
    mini = build_optimizer(net.named_parameters(), "adam_mini", 0.01, module=net)
    mini.load_state_dict(copy.deepcopy(adam.state_dict()))
    weight, norm, bias = net[0].weight, net[1].weight, net[0].bias
    torch.testing.assert_close(mini.state[weight]["exp_avg_sq"], adam.state[weight]["exp_avg_sq"].mean(1))
    torch.testing.assert_close(mini.state[norm]["exp_avg_sq"], adam.state[norm]["exp_avg_sq"].mean().reshape(1))
    assert torch.equal(mini.state[bias]["exp_avg_sq"], adam.state[bias]["exp_avg_sq"])
    assert torch.equal(mini.state[weight]["exp_avg"], adam.state[weight]["exp_avg"])
    assert float(mini.state[weight]["step"]) == 3
    again = build_optimizer(net.named_parameters(), "adam_mini", 0.01, module=net)
    again.load_state_dict(copy.deepcopy(mini.state_dict()))
    assert torch.equal(again.state[weight]["exp_avg_sq"], mini.state[weight]["exp_avg_sq"])


def test_second_moments_stay_in_float32_beside_half_precision_weights():
    net = nn.Linear(4, 3, bias=False).bfloat16()
    optimizer = build_optimizer(net.named_parameters(), "adam_mini", 0.01, module=net)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(5, 4).bfloat16()).pow(2).sum().backward()
        optimizer.step()
    moments = optimizer.state[net.weight]["exp_avg_sq"].clone()
    assert moments.dtype == torch.float32
    again = build_optimizer(net.named_parameters(), "adam_mini", 0.01, module=net)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(again.state[net.weight]["exp_avg_sq"], moments)


def test_betas_are_checked():
    with pytest.raises(ValueError, match="betas must lie"):
        AdamMini([("w", nn.Parameter(torch.zeros(2, 2)))], Partition(), betas=(0.9, 1.0))
    assert math.isfinite(AdamMini([("w", nn.Parameter(torch.zeros(2, 2)))], Partition()).numbers()[1])


def test_layers_cut_alike_share_a_line_of_the_table():
    net = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 3, bias=False) for _ in range(3)])})
    net["head"] = nn.Linear(3, 2, bias=False)
    optimizer = build_optimizer(net.named_parameters(), "adam_mini", module=net)
    lines = [line.split() for line in optimizer.table(fold=True).splitlines()]
    assert lines[1] == ["layers.*.weight", "3x4", "rows", "9"] and lines[2] == ["head.weight", "2x3", "rows", "2"]
    assert lines[-1] == ["sum", "42", "weights", "11"] and len(lines) == 4
    assert len(optimizer.table().splitlines()) == 6


def test_the_plan_of_a_run_shows_the_blocks():
    from gainstage.cli.train import describe
    from gainstage.recipe import load
    from gainstage.running import Run

    said = describe(Run(load("grpo_adam_mini")))
    assert "model.layers.*.self_attn.q_proj.weight" in said and "heads(" in said
    assert "second moment" not in describe(Run(load("grpo")))
