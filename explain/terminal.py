"""Attention in the terminal: heat maps whose every cell shows its number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from explain.glossary import Entry, Glossary
from explain.kinds import Kind
from explain.steps import MASKED
from explain.trace import Array, AttentionMap, AttentionTrace
from explain.views import (
    KIND_NAMES,
    choose,
    column_labels,
    default_row,
    entries,
    printable,
    row_labels,
    target_labels,
)

_NARROWEST, _WIDEST = 5, 10  # columns of a terminal that a cell may take
_LOW, _HIGH = (247, 251, 255), (8, 48, 107)  # the ends of matplotlib's "Blues"
_SHADES = " ░▒▓█"


def show(
    trace: AttentionTrace,
    glossary: Glossary,
    kinds: Sequence[Kind] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> list[RenderableType]:
    """Return a trace's maps as `rich` prints them.

    Where nothing is chosen: the tokens, the mean over the heads of each layer's
    cross-attention, and the row that reads 私は (else the first after the start mark)
    in every layer and head. Otherwise all maps that are chosen. Layer and head count
    from 1. Raises `ValueError` where a layer or head is not there.
    """
    text = f"{printable(trace.source.text)} → {printable(trace.target.text)}"
    shown: list[RenderableType] = [Text(text, style="bold"), Text("")]
    if kinds or layer is not None or head is not None:
        chosen = choose(trace, kinds, layer, head)
        maps = [
            _map(trace, glossary, found, h) for found, heads in chosen for h in heads
        ]
    else:
        shown += [_tokens(trace, glossary), Text("")]
        cross = choose(trace, ["cross"])
        maps = [_map(trace, glossary, found, None) for found, _ in cross]
        maps.append(_one_row(trace, cross))
    return [*shown, *maps]


@dataclass(frozen=True)
class HeatMap:
    """A table of shares of 1, cut into pieces that fit the terminal.

    In colour a cell is shaded; without colour a block before its number is.
    """

    title: str
    rows: Sequence[Text]
    columns: Sequence[Text]
    weights: Array
    masked: np.ndarray

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        yield Text(self.title, style="bold cyan")
        for columns in self._pieces(options.max_width):
            yield self._piece(columns, options.max_width, colour)
            yield Text("")

    def _row_width(self, most: int) -> int:
        return min(max(map(_width, self.rows)), max(most // 2 - 1, 1))

    def _pieces(self, most: int) -> list[range]:
        """Return which columns stand side by side, in pieces of much the same width."""
        widths = [_column_width(label) for label in self.columns]
        room = most - self._row_width(most) - 1
        pieces = _cut(widths, room)
        narrower = (_cut(widths, least) for least in range(max(widths), room))
        return next((cut for cut in narrower if len(cut) == len(pieces)), pieces)

    def _piece(self, columns: range, most: int, colour: bool) -> Table:
        table = Table(box=None, padding=0, pad_edge=False, collapse_padding=True)
        width = self._row_width(most) + 1
        table.add_column(width=width, overflow="fold")
        for column in columns:
            table.add_column(
                self.columns[column],
                width=_column_width(self.columns[column]),
                overflow="fold",
                justify="center",
                vertical="top",
            )
        for row, label in enumerate(self.rows):
            cells = (
                _cell(
                    float(self.weights[row, column]),
                    bool(self.masked[row, column]),
                    _column_width(self.columns[column]),
                    colour,
                )
                for column in columns
            )
            table.add_row(label, *cells)
        return table


def _cut(widths: Sequence[int], room: int) -> list[range]:
    """Return pieces of consecutive columns, each as wide as there is room for."""
    starts, used = [0], 0
    for index, width in enumerate(widths):
        if used and used + width > room:
            starts.append(index)
            used = 0
        used += width
    return list(map(range, starts, [*starts[1:], len(widths)]))


def _cell(weight: float, masked: bool, width: int, colour: bool) -> Text:
    if masked:
        return Text(MASKED.center(width), style="dim")
    if not colour:
        shade = _SHADES[min(int(weight * len(_SHADES)), len(_SHADES) - 1)]
        return Text(f"{shade}{weight:.2f}".center(width))
    red, green, blue = (
        round(low + (high - low) * weight)
        for low, high in zip(_LOW, _HIGH, strict=True)
    )
    ink = 255 if weight > 0.65 else 0  # where white begins to be the clearer one
    style = f"rgb({ink},{ink},{ink}) on rgb({red},{green},{blue})"
    return Text(f"{weight:.2f}".center(width), style)


def _map(
    trace: AttentionTrace, glossary: Glossary, found: AttentionMap, head: int | None
) -> HeatMap:
    """Return the heat map of one head, or of the mean of all where head is None."""
    heads = len(found.weights)
    which = f"mean of {heads} heads" if head is None else f"head {head}"
    weights = found.weights.mean(axis=0) if head is None else found.weights[head - 1]
    rows, columns = row_labels(trace, found.kind), column_labels(trace, found.kind)
    causal = found.kind == "decoder_self"
    reads = entries(trace.target.tokens_in, glossary)
    predicts = entries(trace.target.tokens_out, glossary)
    target_rows, target_columns = found.rows == "target", found.columns == "target"
    return HeatMap(
        title=f"{KIND_NAMES[found.kind]}, layer {found.layer + 1}, {which}",
        rows=[
            _row_label(label, reads[i], predicts[i]) if target_rows else Text(label)
            for i, label in enumerate(rows)
        ],
        columns=[
            _with_entry(label, reads[i] if target_columns else None)
            for i, label in enumerate(columns)
        ],
        weights=weights,
        masked=np.triu(np.full(weights.shape, causal), k=1),
    )


def _one_row(
    trace: AttentionTrace, cross: Sequence[tuple[AttentionMap, tuple[int, ...]]]
) -> HeatMap:
    """Return one row of the cross-attention as every layer and head has it."""
    row = default_row(trace)
    label = row_labels(trace, "cross")[row]
    weights = np.concatenate([found.weights[:, row] for found, _ in cross])
    rows = [
        Text(f"layer {found.layer + 1} head {head}")
        for found, heads in cross
        for head in heads
    ]
    columns = [Text(column) for column in column_labels(trace, "cross")]
    return HeatMap(
        title=f"Cross-attention of the row that {label}, in every head",
        rows=rows,
        columns=columns,
        weights=weights,
        masked=np.zeros(weights.shape, dtype=bool),
    )


def _tokens(trace: AttentionTrace, glossary: Glossary) -> Table:
    """Return what each target row reads, what it predicts and how surely."""
    target = trace.target
    reads, predicts = target_labels(target.tokens_in), target_labels(target.tokens_out)
    known = entries(target.tokens_out, glossary)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    names = ["row", "reads", "predicts", "P"] + ["reading", "meaning"] * any(known)
    for name in names:
        right = name in {"row", "P"}
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row, log_prob in enumerate(target.log_probs):
        entry = known[row] or Entry("", "")
        cells = (str(row + 1), reads[row], predicts[row], f"{np.exp(log_prob):.2f}",
                 entry.reading, entry.meaning)  # fmt: skip
        table.add_row(*(Text(cell) for cell in cells[: len(names)]))
    return table


def _row_label(label: str, reads: Entry | None, predicts: Entry | None) -> Text:
    """Return a target row's label, and under it what the glossary says of both."""
    if reads is None and predicts is None:
        return Text(label)
    under = f"{_gloss(reads)} → {_gloss(predicts)}"
    return Text.assemble(label, "\n", (f"  {under.strip()}", "dim"))


def _with_entry(label: str, entry: Entry | None) -> Text:
    if entry is None:
        return Text(label)
    lines = "\n".join(part for part in (entry.reading, entry.meaning) if part)
    return Text.assemble(label, "\n", (lines, "dim"))


def _gloss(entry: Entry | None) -> str:
    if entry is None:
        return ""
    return f"{entry.reading} {entry.meaning}".strip()


def _width(label: Text) -> int:
    return max(cell_len(line) for line in label.plain.split("\n"))


def _column_width(label: Text) -> int:
    """Return a column's width; a wider label is folded."""
    return min(max(_width(label) + 1, _NARROWEST + 1), _WIDEST)
