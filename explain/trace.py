"""One translation's attention, complete and checked.

The trace comes from one teacher-forced pass over a finished translation, one sentence
alone, in eval mode: no beam, cache, dropout or padding can falsify a map. A target row
t *reads* `tokens_in[t]` and *predicts* `tokens_out[t]`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from explain.kinds import SIDES, Kind
from model.attention import MultiHeadAttention, Trace
from model.transformer import Transformer

Array = NDArray[np.float32]

VALUES = (
    "input", "normalised", "q", "k", "v", "scores", "scaled", "context", "output",
)  # fmt: skip
"""What a map can carry besides its weights, in the order in which it is computed."""
TOLERANCE = 1e-5


class TraceError(ValueError):
    """A trace whose numbers contradict each other."""


@dataclass(frozen=True)
class AttentionMap:
    """One attention sub-layer: every head of one layer.

    Where `values` are kept: input and normalised (rows, D), the sub-layer's input
    before and after its layer norm; q (H, rows, K); k and v (H, columns, K); scores and
    scaled (H, rows, columns), before masking; context (H, rows, K), the weighted sums
    of v; output (rows, D), after W_O. Keys and values of a cross map are made of the
    encoder's output, which is in its values as `memory` (columns, D).
    """

    kind: Kind
    layer: int
    weights: Array  # (H, rows, columns)
    values: Mapping[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> str:
        return SIDES[self.kind][0]

    @property
    def columns(self) -> str:
        return SIDES[self.kind][1]


@dataclass(frozen=True)
class Projections:
    """The matrices of one sub-layer, each (D, D), as in Q = X W_Q.

    Head h has columns h*K to (h+1)*K of w_q, w_k and w_v, and the same rows of w_o. Of
    a model in fp32 on a CPU they are its own, not copies.
    """

    kind: Kind
    layer: int
    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array


@dataclass(frozen=True)
class ModelNote:
    """Which model a trace comes from."""

    name: str
    weights_sha256: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """The sentence that was read; the last token is its end mark."""

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """The translation; row t reads tokens_in[t] and predicts tokens_out[t]."""

    text: str
    tokens_in: tuple[str, ...]
    tokens_out: tuple[str, ...]
    ids_in: tuple[int, ...]
    ids_out: tuple[int, ...]
    log_probs: tuple[float, ...]
    """The natural logarithm of the probability of each token of tokens_out."""


@dataclass(frozen=True)
class AttentionTrace:
    """All maps of one translation, and where they came from."""

    model: ModelNote
    source: Source
    target: Target
    maps: tuple[AttentionMap, ...]
    projections: tuple[Projections, ...] = ()
    states: Mapping[str, Array] = field(default_factory=dict)
    """Every intermediate of the pass by its dotted name, also those of the maps. They
    are not written to files."""

    def map(self, kind: Kind, layer: int) -> AttentionMap:
        """Return one map; raises `KeyError` where there is none."""
        for found in self.maps:
            if (found.kind, found.layer) == (kind, layer):
                return found
        raise KeyError(f"no map {kind} of layer {layer}")

    def layers(self, kind: Kind) -> int:
        """Return how many layers have a map of this kind."""
        return sum(found.kind == kind for found in self.maps)

    def without_values(self) -> "AttentionTrace":
        """Return the weights alone."""
        maps = tuple(replace(found, values={}) for found in self.maps)
        return replace(self, maps=maps, projections=(), states={})


@torch.inference_mode()
def trace_attention(
    model: Transformer, note: ModelNote, source: Source, target: Target
) -> AttentionTrace:
    """Run one teacher-forced pass and return all of its attention, checked.

    `target.log_probs` may be empty; the result has them filled in. Raises `TraceError`
    where a check fails (see `check`).
    """
    device = model.positions.device
    source_ids = torch.tensor([source.ids], device=device)
    target_ids = torch.tensor([target.ids_in], device=device)
    trace = Trace()
    memory = model.encode(source_ids, trace)
    mask = model.source_mask(source_ids)
    logits = model.logits(model.decode(target_ids, memory, mask, trace))[0]
    plain = model(source_ids, target_ids)[0]
    if not torch.allclose(logits, plain, atol=1e-4):
        raise TraceError("the traced pass gave other logits than the plain one")
    rows = torch.arange(len(target.ids_out))
    log_probs = logits.log_softmax(dim=-1)[rows, list(target.ids_out)]
    trace.keep(logits=logits[None])
    result = AttentionTrace(
        model=note,
        source=source,
        target=replace(target, log_probs=tuple(log_probs.tolist())),
        maps=tuple(_maps(model, trace.values)),
        projections=tuple(_projections(model)),
        states={name: _array(value[0]) for name, value in trace.values.items()
                if value.dim() > 2},
    )  # fmt: skip
    check(result)
    return result


def check(trace: AttentionTrace) -> None:
    """Raise `TraceError` unless the trace's numbers agree with each other.

    Every row of weights sums to 1; masked cells are exactly 0; shapes fit the tokens;
    and, where the values are there, weights and context follow from q, k and v.
    """
    sizes = {"source": len(trace.source.ids), "target": len(trace.target.ids_in)}
    for found in trace.maps:
        name = f"{found.kind} map of layer {found.layer}"
        weights = found.weights.astype(np.float64)
        shape = (sizes[found.rows], sizes[found.columns])
        if weights.shape[1:] != shape or not weights.size:
            raise TraceError(f"the {name} has shape {weights.shape}, not its tokens'")
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise TraceError(f"the {name} has a weight that is no share")
        if np.abs(weights.sum(axis=2) - 1).max() > TOLERANCE:
            raise TraceError(f"a row of the {name} does not sum to 1")
        if found.kind == "decoder_self" and np.triu(weights, k=1).any():
            raise TraceError(f"the {name} looks at a token not yet written")
        if found.values:
            _check_values(found, weights, name)


def recompute_weights(found: AttentionMap) -> NDArray[np.float64]:
    """Return a map's weights, computed anew from its q and k in double precision."""
    q, k = (found.values[name].astype(np.float64) for name in ("q", "k"))
    scaled = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
    if found.kind == "decoder_self":
        scaled[:, ~np.tri(scaled.shape[1], dtype=bool)] = -np.inf
    exponentials = np.exp(scaled - scaled.max(axis=2, keepdims=True))
    result: NDArray[np.float64] = exponentials / exponentials.sum(axis=2, keepdims=True)
    return result


def _check_shapes(found: AttentionMap, name: str) -> None:
    """Raise `TraceError` unless a map's values have the shapes of `AttentionMap`."""
    H, rows, columns = found.weights.shape
    K = found.values["q"].shape[-1] if found.values["q"].ndim else 0
    if not K:
        raise TraceError(f"q of the {name} has no numbers")
    by_row, by_column = (rows, H * K), (columns, H * K)
    shapes = {
        "input": by_row, "normalised": by_row, "output": by_row, "memory": by_column,
        "q": (H, rows, K), "k": (H, columns, K), "v": (H, columns, K),
        "scores": (H, rows, columns), "scaled": (H, rows, columns),
        "context": (H, rows, K),
    }  # fmt: skip
    for value, array in found.values.items():
        if array.shape != shapes.get(value) or not np.isfinite(array).all():
            raise TraceError(
                f"{value} of the {name} has shape {array.shape}, not "
                f"{shapes.get(value)}, or a number that is not finite"
            )


def _check_values(found: AttentionMap, weights: NDArray[np.float64], name: str) -> None:
    _check_shapes(found, name)
    if np.abs(recompute_weights(found) - weights).max() > TOLERANCE:
        raise TraceError(f"the weights of the {name} do not follow from its q and k")
    context = weights @ found.values["v"].astype(np.float64)
    if np.abs(context - found.values["context"]).max() > 1e-4:
        raise TraceError(f"the context of the {name} does not follow from its v")


def sub_layers(model: Transformer) -> Sequence[tuple[Kind, int, str, Any]]:
    """Return (kind, layer, name in a `Trace`, module) of each attention sub-layer."""
    encoder = [
        ("encoder_self", index, f"encoder.{index}.self_attention", layer.self_attention)
        for index, layer in enumerate(model.encoder)
    ]
    decoder = [
        (kind, index, f"decoder.{index}.{part}", getattr(layer, part))
        for kind, part in (
            ("decoder_self", "self_attention"),
            ("cross", "cross_attention"),
        )
        for index, layer in enumerate(model.decoder)
    ]
    return [*encoder, *decoder]  # type: ignore[list-item]


def _maps(model: Transformer, values: Mapping[str, Tensor]) -> list[AttentionMap]:
    maps = []
    for kind, layer, name, _ in sub_layers(model):
        kept = {v: values[f"{name}.{'x' if v == 'input' else v}"][0] for v in VALUES}
        if kind == "cross":
            kept["memory"] = values["memory"][0]
        weights = _array(values[f"{name}.weights"][0])
        arrays = {value: _array(tensor) for value, tensor in kept.items()}
        maps.append(AttentionMap(kind, layer, weights, arrays))
    return maps


def _projections(model: Transformer) -> list[Projections]:
    found = []
    for kind, layer, _, module in sub_layers(model):
        assert isinstance(module, MultiHeadAttention)
        w_q, w_k, w_v = (_view(stored.T) for stored in module.w_qkv)
        found.append(Projections(kind, layer, w_q, w_k, w_v, _view(module.w_o.T)))
    return found


def _view(tensor: Tensor) -> Array:
    """Return a matrix, not to be written to; a copy only where it must be one."""
    result: Array = tensor.float().cpu().numpy()
    result.flags.writeable = False
    return result


def _array(tensor: Tensor) -> Array:
    result: Array = np.ascontiguousarray(tensor.float().cpu().numpy())
    return result
