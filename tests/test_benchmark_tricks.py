"""The plain ways that stand in for tricks are in use, and compute the same thing."""

from collections.abc import Callable
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from benchmarks.tricks import OFF, switched_off
from data.batching import Batch, encode_pairs, make_batch
from model import layers
from model.config import ModelConfig
from model.packing import Packing
from model.training import Recipe, TrainingState
from model.transformer import Transformer

DRAWS_OTHERWISE = {
    "one row of numbers for a pass's dropout",
    "masks from 16 random bits",
}


def _batch() -> Batch:
    random = np.random.default_rng(1)
    lengths = random.integers(1, 9, (2, 11))
    sides = [[random.integers(4, 40, n).tolist() for n in row] for row in lengths]
    return make_batch(encode_pairs(sides[0], sides[1], 1, 2), np.arange(11), padding=0)


def _train(dropout: float) -> tuple[list[float], torch.Tensor]:
    """Return the losses of three steps, and all weights after them."""
    torch.manual_seed(1)
    config = ModelConfig(40, 40, width=32, heads=4, feed_forward=48, dropout=dropout)
    recipe = Recipe(optimizer="muon", learning_rate=1e-3, warmup=1)
    state, batch = TrainingState(Transformer(config), recipe, "fp32"), _batch()
    ids = (batch.source, batch.target_in, batch.target_out)
    losses = [state.train_step(*ids, steps=10) for _ in range(3)]
    return losses, torch.cat([p.detach().flatten() for p in state.model.parameters()])


@pytest.mark.parametrize("trick", sorted(set(OFF) - DRAWS_OTHERWISE - {"bf16"}))
def test_plain_arithmetic_is_the_same(trick: str) -> None:
    losses, weights = _train(dropout=0.0)
    with switched_off(trick):
        plain_losses, plain_weights = _train(dropout=0.0)
    assert plain_losses == pytest.approx(losses, rel=1e-5)
    # Muon's products may be in bf16, so that a last bit becomes a hundredth of a step.
    torch.testing.assert_close(plain_weights, weights, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (name, plain)
        for names in OFF.values()
        for name, plain in names.items()
        if callable(plain) and not isinstance(plain, type)
    ],
)
def test_what_stands_in_is_called(name: str, plain: Callable[..., object]) -> None:
    stand_in = Mock(wraps=plain)
    with patch(name, stand_in):
        _train(dropout=0.2)
    assert stand_in.called


def test_shapes_do_not_recur_without_that_trick() -> None:
    assert _batch().source.shape[1] == 16
    with switched_off("shapes that recur"):
        assert _batch().source.shape[1] < 11


@pytest.mark.parametrize("trick", sorted(DRAWS_OTHERWISE))
def test_other_masks_keep_the_mean(trick: str) -> None:
    torch.manual_seed(1)
    packing = Packing.of(torch.ones(50, 7, dtype=torch.bool), torch.float32)
    with switched_off(trick):
        drawn = layers.dropout_mask(torch.ones(packing.N, 100), 0.2, packing)
    assert drawn.mean().item() == pytest.approx(1, abs=0.03)
    assert set(drawn.unique().tolist()) == {0.0, 1.25}
