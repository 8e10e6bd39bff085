"""Attention maps as a picture to print: PNG and SVG, through matplotlib.

The Japanese font is the one inside the matplotlib-fontja package (IPAex Gothic), taken
from its file, so that no font need be installed and matplotlib's own settings stay as
they are. The same trace gives the same bytes.
"""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from explain.kinds import Kind
from explain.trace import AttentionMap, AttentionTrace
from explain.views import KIND_NAMES, choose, column_labels, printable, row_labels
from model.checkpoint import write_atomically

_SUFFIXES = {".png": "png", ".svg": "svg"}
_MISSING = (
    "figures need matplotlib and a Japanese font: install them with "
    "`pip install -c constraints.txt '.[figures]'`"
)
_ROWS_ARE: dict[Kind, str] = {
    "encoder_self": "each source token looks at the source",
    "decoder_self": "each target token looks at those already written",
    "cross": "each target token looks at the source",
}
_ROW, _ROW_NAME = "{} → {}", "reads → predicts"
_POINTS = 72  # to an inch, as matplotlib has it
_MOST_PIXELS = 40_000_000
_MOST_DRAWN = 40  # tokens; the cells of a longer map are an image, also in an SVG
_MARGIN, _GAP, _LINE = 0.3, 0.16, 0.2  # inches
_TITLE = 11  # points
_STYLE = {
    "svg.hashsalt": "tiny-enja",
    "svg.fonttype": "path",
    "hatch.linewidth": 0.4,
    "axes.linewidth": 0.6,
}


def draw(
    trace: AttentionTrace,
    path: Path,
    kinds: Sequence[Kind] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write the maps that are asked for (all by default) to a .png or .svg file.

    Layer and head count from 1. Raises `ValueError` where one is not there, where the
    file's name ends otherwise, and where matplotlib is not installed.
    """
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"{path}: give a figure's file that ends in .png or .svg")
    chosen = choose(trace, kinds, layer, head)
    try:
        import matplotlib
    except ImportError:
        raise ValueError(_MISSING) from None
    picture = _Picture(trace, chosen, _font())
    written = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = picture.draw()
        dpi = min(200.0, (_MOST_PIXELS / figure.get_size_inches().prod()) ** 0.5)
        form = _SUFFIXES[path.suffix]
        when = {"Date": None} if form == "svg" else {}  # the same bytes every time
        figure.savefig(written, format=form, dpi=dpi, metadata=when)
    write_atomically(path, lambda beside: beside.write_bytes(written.getvalue()))


def _font() -> Path:
    """Return the file of the Japanese font; the package is found, not imported.

    To import it would change the font of every figure of the process.
    """
    package = importlib.util.find_spec("matplotlib_fontja")
    if package is None or package.origin is None:
        raise ValueError(_MISSING)
    return Path(package.origin).with_name("fonts") / "ipaexg.ttf"


@dataclass(frozen=True)
class _Size:
    """Inches of a cell and points of its text; a small map has its numbers printed."""

    cell: float
    text: float
    numbers: bool


def _size(panels: int, tokens: int) -> _Size:
    if panels == 1 and tokens <= 24:
        return _Size(0.42, 9, True)
    if tokens <= 9:
        return _Size(0.3, 7.5, True)
    if tokens <= _MOST_DRAWN:
        return _Size(0.15, 7, False)
    return _Size(0.09, 5, False)


class _Picture:
    """One figure: a row of panels for each map, a panel for each head."""

    def __init__(
        self,
        trace: AttentionTrace,
        chosen: Sequence[tuple[AttentionMap, tuple[int, ...]]],
        font: Path,
    ) -> None:
        from matplotlib.font_manager import FontProperties
        from matplotlib.ft2font import FT2Font

        self.chosen = chosen
        self.font = FontProperties(fname=str(font))
        self.known = frozenset(FT2Font(str(font)).get_charmap())
        kinds = {found.kind for found, _ in chosen}
        self.rows = {
            kind: [self._written(label) for label in row_labels(trace, kind, _ROW)]
            for kind in kinds
        }
        self.columns = {
            kind: [self._written(label) for label in column_labels(trace, kind)]
            for kind in kinds
        }
        longest = max(max(found.weights.shape[1:]) for found, _ in chosen)
        self.size = _size(sum(len(heads) for _, heads in chosen), longest)
        labels = [_ROW_NAME, *(label for kind in kinds for label in self.rows[kind])]
        self.left = _MARGIN + max(map(self._width, labels)) + 0.1
        self.below = {
            kind: max(map(self._width, self.columns[kind])) + 0.08 for kind in kinds
        }
        self.text = self._written(
            f"{printable(trace.source.text)} → {printable(trace.target.text)}"
        )

    def draw(self) -> Any:
        from matplotlib.figure import Figure

        self.inches = width, height = self._inches()
        self.figure = Figure(figsize=(width, height), facecolor="white")
        y = height - _MARGIN
        for line in self.title:
            self._text(_MARGIN, y, line, _TITLE, va="top")
            y -= _LINE * 1.3
        before = None
        for found, heads in self.chosen:
            if found.kind != before:
                y -= _LINE * 0.6
                self._text(_MARGIN, y, self._heading(found.kind), 9.5, va="top")
                y -= _LINE * 1.5
            before = found.kind
            y = self._row_of_panels(found, heads, y)
        self._legend()
        return self.figure

    def _inches(self) -> tuple[float, float]:
        """Return the width and height that everything takes."""
        cell = self.size.cell
        panels = [
            len(heads) * (found.weights.shape[2] * cell + _GAP)
            for found, heads in self.chosen
        ]
        heights = [
            _LINE + found.weights.shape[1] * cell + self.below[found.kind] + _GAP
            for found, _ in self.chosen
        ]
        kinds = len({found.kind for found, _ in self.chosen})
        width = max(self.left + max(panels) + _MARGIN, 6.2)
        self.title = self._lines(self.text, width - 2 * _MARGIN)
        above = len(self.title) * _LINE * 1.3 + kinds * _LINE * 2.1
        return width, _MARGIN + above + sum(heights) + 0.75

    def _row_of_panels(
        self, found: AttentionMap, heads: Sequence[int], top: float
    ) -> float:
        """Draw one map's heads side by side; return where the next row begins."""
        _, rows, columns = found.weights.shape
        cell = self.size.cell
        bottom: float = top - _LINE - rows * cell
        for place, head in enumerate(heads):
            x = self.left + place * (columns * cell + _GAP)
            title = f"layer {found.layer + 1}, head {head}"
            self._text(x, top - _LINE * 0.8, title, self.size.text, va="bottom")
            axes = self._axes(x, bottom, columns * cell, rows * cell)
            self._panel(axes, found, head)
            if place == 0:
                axes.set_yticks(
                    np.arange(rows) + 0.5, self.rows[found.kind], font=self.font,
                    fontsize=self.size.text, parse_math=False,
                )  # fmt: skip
        if found.rows == "target":
            at = bottom + rows * cell + 0.03
            self._text(self.left - 0.06, at, _ROW_NAME, self.size.text - 1, va="bottom",
                       ha="right", color="0.4")  # fmt: skip
        return bottom - self.below[found.kind] - _GAP

    def _panel(self, axes: Any, found: AttentionMap, head: int) -> None:
        weights = found.weights[head - 1]
        rows, columns = weights.shape
        hidden = np.triu(np.full(weights.shape, found.kind == "decoder_self"), k=1)
        if hidden.any():
            # What a mask hides is not drawn: the hatched ground shows through.
            axes.patch.set(facecolor="white", edgecolor="0.7", hatch="//////")
        shown = np.ma.array(weights, mask=hidden)
        how: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": 1}
        if max(rows, columns) > _MOST_DRAWN:
            axes.imshow(shown, aspect="auto", extent=(0, columns, rows, 0),
                        interpolation="nearest", **how)  # fmt: skip
        else:
            axes.pcolormesh(shown, edgecolor="0.88", linewidth=0.3, **how)
        axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
        for column, label in enumerate(self.columns[found.kind]):
            axes.annotate(
                label, (column + 0.5, rows), (0, -2), textcoords="offset points",
                ha="center", va="top", font=self.font, fontsize=self.size.text,
                rotation=90 if self._width(label) > self.size.cell else 0,
                parse_math=False,
            )  # fmt: skip
        if self.size.numbers:
            for row, column in zip(*np.nonzero(~hidden), strict=True):
                weight = weights[row, column]
                axes.text(
                    column + 0.5, row + 0.5, f"{weight:.2f}", ha="center", va="center",
                    color="white" if weight > 0.68 else "black",
                    font=self.font, fontsize=self.size.text * 0.8,
                )  # fmt: skip

    def _legend(self) -> None:
        """Draw the scale and the mask's hatching along the lower edge."""
        from matplotlib.patches import Rectangle

        width, height = self.inches
        y = _MARGIN + 0.2
        axes = self._axes(_MARGIN, y, 1.6, 0.13)
        axes.pcolormesh(np.linspace(0, 1, 65)[None], cmap="Blues", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        for x, number in ((0.0, "0"), (0.8, "0.5"), (1.6, "1")):
            self._text(_MARGIN + x, y - 0.05, number, 7, va="top", ha="center")
        text = "share of a row's attention; a row adds up to 1"
        self._text(_MARGIN + 1.75, y + 0.06, text, 7, va="center")
        if any(found.kind == "decoder_self" for found, _ in self.chosen):
            x = _MARGIN + 4.1
            self.figure.add_artist(
                Rectangle(
                    (x / width, y / height), 0.2 / width, 0.13 / height,
                    facecolor="white", edgecolor="0.7", hatch="//////",
                    transform=self.figure.transFigure,
                )
            )  # fmt: skip
            text = "masked: not yet written"
            self._text(x + 0.27, y + 0.06, text, 7, va="center")

    def _axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Return axes at a place given in inches."""
        across, up = self.inches
        axes = self.figure.add_axes((x / across, y / up, width / across, height / up))
        axes.tick_params(length=0, pad=2)
        axes.set(xticks=[], yticks=[])
        return axes

    def _text(self, x: float, y: float, text: str, size: float, **how: Any) -> None:
        across, up = self.inches
        self.figure.text(
            x / across, y / up, self._written(text), font=self.font, fontsize=size,
            parse_math=False, **how,
        )  # fmt: skip

    def _heading(self, kind: Kind) -> str:
        return f"{KIND_NAMES[kind]}: {_ROWS_ARE[kind]}"

    def _written(self, text: str) -> str:
        """Return text with every character that the font lacks given by its number."""
        return "".join(c if ord(c) in self.known else f"U+{ord(c):04X}" for c in text)

    def _width(self, label: str) -> float:
        """Return about how many inches a label takes."""
        return float(cell_len(label) * 0.53 * self.size.text / _POINTS)

    def _lines(self, text: str, inches: float) -> list[str]:
        """Return the title cut into lines of at most so many inches."""
        most = int(inches * _POINTS / _TITLE / 0.53)
        return [
            line.plain for line in Text(text).wrap(Console(), most, overflow="fold")
        ]
