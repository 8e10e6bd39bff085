"""What BertViz is handed, against a hand-written expectation and the real package."""

import numpy as np
import pytest
import torch

from explain.files import to_bertviz
from explain.kinds import Kind
from explain.trace import AttentionMap, AttentionTrace, ModelNote, Source, Target


def _trace(encoder_layers: int, decoder_layers: int) -> AttentionTrace:
    """Two heads; 2 source and 3 target tokens; every cell says where it is."""
    sizes: dict[Kind, tuple[int, int, int]] = {
        "encoder_self": (encoder_layers, 2, 2),
        "decoder_self": (decoder_layers, 3, 3),
        "cross": (decoder_layers, 3, 2),
    }
    maps = tuple(
        AttentionMap(kind, layer, _weights(layer, rows, columns))
        for kind, (layers, rows, columns) in sizes.items()
        for layer in range(layers)
    )
    source = Source("I", ("▁I", "</s>"), (4, 2))
    tokens_in, tokens_out = ("<s>", "私", "は"), ("私", "は", "</s>")
    target = Target("私は", tokens_in, tokens_out, (1, 5, 6), (5, 6, 2), (0.0,) * 3)
    return AttentionTrace(ModelNote("test", "", {}), source, target, maps)


def _weights(layer: int, rows: int, columns: int) -> np.ndarray:
    cells = np.arange(2 * rows * columns, dtype=np.float32) + 100 * layer
    return cells.reshape(2, rows, columns)


def test_equal_depths_make_one_call() -> None:
    (call,) = to_bertviz(_trace(2, 2))
    assert call["encoder_tokens"] == ["▁I", "</s>"]
    assert call["decoder_tokens"] == ["<s>", "私", "は"]
    assert set(call) == {
        "encoder_attention", "decoder_attention", "cross_attention",
        "encoder_tokens", "decoder_tokens",
    }  # fmt: skip
    cross = call["cross_attention"]
    assert len(cross) == 2 and cross[1].dtype == torch.float32
    # Batch, heads, target rows, source columns.
    assert cross[1].tolist() == [
        [
            [[100.0, 101.0], [102.0, 103.0], [104.0, 105.0]],
            [[106.0, 107.0], [108.0, 109.0], [110.0, 111.0]],
        ]
    ]
    assert call["encoder_attention"][0].tolist() == [
        [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]
    ]


def test_unequal_depths_make_three_calls() -> None:
    calls = to_bertviz(_trace(3, 2))
    assert [sorted(call) for call in calls] == [
        ["encoder_attention", "encoder_tokens"],
        ["decoder_attention", "decoder_tokens"],
        ["cross_attention", "decoder_tokens", "encoder_tokens"],
    ]
    assert len(calls[0]["encoder_attention"]) == 3
    assert len(calls[1]["decoder_attention"]) == len(calls[2]["cross_attention"]) == 2


@pytest.mark.parametrize("depths", [(1, 1), (2, 2), (3, 2), (1, 3)])
@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_bertviz_shows_every_layer(depths: tuple[int, int], view: str) -> None:
    bertviz = pytest.importorskip("bertviz")
    show = getattr(bertviz, view)
    pages = [
        show(**call, html_action="return").data for call in to_bertviz(_trace(*depths))
    ]
    shown = "".join(pages)
    assert "\\u79c1" in shown or "私" in shown
    # The last cell of each kind's last layer is in the page's data.
    for layers, cells in zip(
        (depths[0], depths[1], depths[1]), (8, 18, 12), strict=True
    ):
        assert str(float(cells - 1 + 100 * (layers - 1))) in shown
