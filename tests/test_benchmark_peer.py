"""torch.nn.Transformer in our search: what is kept of a hypothesis is its own."""

import pytest
import torch

from benchmarks.peers import END, PADDING, START, TorchTransformer
from benchmarks.train_peer import Decoding
from model.config import ModelConfig

CONFIG = ModelConfig(30, 30, width=16, heads=2, feed_forward=32, max_length=12)
SOURCES = [[5, 6, END], [7, END], [8, 9, 10, 11, END], [12, 5, 7, END]]


@pytest.fixture(scope="module")
def decoding() -> Decoding:
    torch.manual_seed(3)
    return Decoding(TorchTransformer(CONFIG))


@torch.inference_mode()
def test_greedy_is_the_best_token_each_time(decoding: Decoding) -> None:
    for source, [found] in zip(SOURCES, decoding.translate(SOURCES), strict=True):
        ids = [START]
        while len(ids) <= CONFIG.max_length and ids[-1] != END:
            logits = decoding.model(torch.tensor([source]), torch.tensor([ids]))[0, -1]
            if len(ids) == 1:
                logits[END] = -torch.inf
            ids.append(int(logits.argmax()))
        assert list(found.ids) == [token for token in ids[1:] if token != END]


def test_a_beam_does_not_depend_on_the_batch(decoding: Decoding) -> None:
    together = decoding.translate(SOURCES, beam=3)
    for source, ranked in zip(SOURCES, together, strict=True):
        [alone] = decoding.translate([source], beam=3)
        assert [found.ids for found in ranked] == [found.ids for found in alone]
        for one, other in zip(ranked, alone, strict=True):
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)


@torch.inference_mode()
def test_padding_changes_nothing(decoding: Decoding) -> None:
    source, target = torch.tensor([[5, 6, END]]), torch.tensor([[START, 9]])
    padded = torch.tensor([[5, 6, END, PADDING, PADDING]])
    torch.testing.assert_close(
        decoding.model(source, target), decoding.model(padded, target)
    )
