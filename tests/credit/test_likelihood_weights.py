"""Weights of samples by their reward, and what RAFT makes of them."""

from __future__ import annotations

import math

import pytest
import torch
from tests.credit.helpers_credit import batch_of

from gainstage.credit.returns.likelihood_weights import LikelihoodWeights, likelihood_weights

R = torch.tensor([1.0, 0.5, 0.0, -1.0])


@pytest.mark.parametrize(
    ("scheme", "want"),
    [
        ("success", [1, 0, 0, 0]),
        ("return", [1, 0.5, 0, -1]),
        ("positive", [1, 0.5, 0, 0]),
        ("plus_minus", [1, -1, -1, -1]),
        ("exp", [math.e**2, math.e, 1, math.e**-2]),
    ],
)
def test_schemes(scheme, want):
    assert likelihood_weights(R, scheme, temp=0.5).tolist() == pytest.approx(want)


def test_exponential_weights_are_bounded_also_where_exp_overflows():
    assert likelihood_weights(torch.tensor([1000.0]), "exp", max_weight=20.0).tolist() == [20.0]


def test_raft_loss_of_one_right_and_one_wrong_answer():
    """Weights 1 and 0, summed log-likelihood over the three tokens of the batch."""
    batch = batch_of([2, 1], [1.0, 0.0])
    weight = LikelihoodWeights().assign(batch)["advantage"]
    logprobs = torch.tensor([[0.5, 0.5], [0.25, 1.0]]).log()
    loss = -(weight.unsqueeze(1) * logprobs * batch["mask"]).sum() / batch["mask"].sum()
    assert loss.item() == pytest.approx(0.462098, abs=1e-6)


def test_advantages_can_be_weighed_instead():
    batch = batch_of([1, 1], [5.0, 5.0], advantage=[0.0, -1.0])
    entry = LikelihoodWeights(scheme="exp", source="advantage")
    assert entry.assign(batch)["advantage"].tolist() == pytest.approx([1.0, math.exp(-1)])
    assert entry.needs == ("advantage",)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="temp must be positive"):
        LikelihoodWeights(temp=0.0)
    with pytest.raises(ValueError, match="scheme must be"):
        likelihood_weights(R, "best")  # type: ignore[arg-type]
