"""The steps of attention as a person reads them: a formula, the numbers, a plain line.

The worked example and the walk through a trained model are written by the same
functions, so that the two read alike. Every number is handed in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

Numbers = NDArray[Any]
MASKED = "·"
"""Stands for the number of a cell that a mask hides; it is never shown as 0."""
_SIDES: dict[str, Literal["left", "center", "right"]] = {
    "l": "left", "c": "center", "r": "right",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a calculation."""

    title: str
    formula: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plain: str
    align: str = ""
    """l, c or r for each column; where it is empty the first is l and the others r."""


@dataclass(frozen=True)
class Part:
    """Steps that follow one another, under a heading."""

    heading: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Query:
    """One token's attention over some keys: a row of an attention map.

    q is (K,), k (S, K), v (S, width of a value); scores, scaled and weights are (S,),
    output is (width of a value,). Keys that `masked` says True of are hidden.
    """

    name: str
    keys: Sequence[str]
    q: Numbers
    k: Numbers
    v: Numbers
    scores: Numbers
    scaled: Numbers
    weights: Numbers
    output: Numbers
    masked: Sequence[bool] = ()

    def hides(self, key: int) -> bool:
        return bool(self.masked) and self.masked[key]


@dataclass(frozen=True)
class Precision:
    """How numbers are written: decimals by name, how much of vectors and of sums."""

    decimals: Mapping[str, int]
    first: int = 99
    terms: int = 99

    def number(self, name: str, value: float) -> str:
        return number(value, self.decimals[name])

    def vector(self, name: str, values: Numbers) -> str:
        return vector(values, self.decimals[name], self.first)


def number(value: float, decimals: int) -> str:
    """Return a number with a fixed count of decimals; what rounds to 0 has no sign."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def vector(values: Numbers, decimals: int, first: int = 99) -> str:
    """Return the first numbers of a vector in brackets."""
    shown = [number(value, decimals) for value in values[:first]]
    return f"[{', '.join(shown)}{', …' if len(values) > first else ''}]"


def attention_steps(query: Query, precision: Precision) -> list[Step]:
    """Return the steps from a query, keys and values to the weighted sum."""
    return [
        _scores(query, precision),
        _scaled(query, precision),
        _weights(query, precision),
        weighted_sum_step(query, precision),
    ]


def concatenation_step(heads: Numbers, precision: Precision) -> Step:
    """Return the step that lines up the outputs of all heads, (H, K)."""
    rows = [
        (f"head {index}", precision.vector("heads", head))
        for index, head in enumerate(heads, start=1)
    ]
    ends = [number(head[0], precision.decimals["heads"]) for head in heads]
    if heads.size <= precision.first:
        line = precision.vector("heads", heads.reshape(-1))
    else:
        line = f"[{', …, '.join(ends)}, …]"
    return Step(
        "Concatenation: the heads side by side",
        "concatenated = [head 1, head 2, …]",
        ("", "output of the head"),
        (*rows, ("in a row", line)),
        "Each head has looked for something of its own; their outputs are lined up "
        f"into one vector of {len(heads)} × {heads.shape[1]} = {heads.size} numbers.",
    )


def projection_step(
    query: str, width: int, rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]
) -> Step:
    """Return the step in which W_O mixes the heads' numbers into `width` numbers."""
    return Step(
        "Projection: W_O mixes the heads",
        "output = concatenated W_O",
        columns,
        tuple(rows),
        f"W_O mixes what the heads found into {width} numbers: what {query} takes away "
        "from this attention.",
    )


def product(
    left: Numbers, right: Numbers, precision: Precision, names: tuple[str, str]
) -> str:
    """Return the arithmetic of a dot product, its first terms where it is long."""
    pairs = list(zip(left, right, strict=True))[: precision.terms]
    terms = [
        f"{_factor(precision.number(names[0], a))}×"
        f"{_factor(precision.number(names[1], b))}"
        for a, b in pairs
    ]
    return " + ".join(terms) + (" + …" if len(left) > len(pairs) else "")


def _factor(number: str) -> str:
    return f"({number})" if number.startswith("-") else number


def render(parts: Sequence[Part]) -> list[RenderableType]:
    """Return what `rich` prints for some parts, their steps numbered through."""
    shown: list[RenderableType] = []
    for part in parts:
        shown += [Rule(Text(part.heading, style="bold")), Text("")]
        shown += [
            _render(index, step) for index, step in enumerate(part.steps, start=1)
        ]
    return shown


def _render(index: int, step: Step) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    align = step.align or "l".ljust(len(step.columns), "r")
    for name, side in zip(step.columns, align, strict=True):
        table.add_column(Text(name), justify=_SIDES[side], overflow="fold")
    for row in step.rows:
        table.add_row(*(Text(cell) for cell in row))
    title = Text.assemble((f"{index}  ", "bold cyan"), (step.title, "bold"))
    formula = Text(step.formula, style="cyan")
    body = Padding(Group(formula, Text(""), table, Text(step.plain)), (0, 0, 1, 3))
    return Group(title, body)


def _scores(query: Query, precision: Precision) -> Step:
    rows = [
        (key, MASKED, MASKED)
        if query.hides(i)
        else (
            key,
            product(query.q, query.k[i], precision, ("q", "k")),
            precision.number("scores", query.scores[i]),
        )
        for i, key in enumerate(query.keys)
    ]
    return Step(
        f"Scores: how well does each key answer the query of {query.name}?",
        "score = q · k",
        ("key of", "q · k", "score"),
        tuple(rows),
        f"The query of {query.name} meets every key: number times number, added up. "
        f"The larger the score, the better the match.{_hidden(query)}",
        "llr",
    )


def _scaled(query: Query, precision: Precision) -> Step:
    width = len(query.q)
    decimals = precision.decimals["scores"]
    rows = [
        (key, MASKED, MASKED)
        if query.hides(i)
        else (
            key,
            f"{number(query.scores[i], decimals)} ÷ {math.sqrt(width):.4f}",
            number(query.scaled[i], decimals),
        )
        for i, key in enumerate(query.keys)
    ]
    return Step(
        f"Scaling: divide by √{width}",
        f"scaled = score / √d_k, and d_k = {width} is how many numbers a key has",
        ("key of", f"score ÷ √{width}", "scaled"),
        tuple(rows),
        "The more numbers a key has, the larger scores become. Dividing by √d_k takes "
        "that out again, so that the softmax does not put everything on one token.",
    )


def _weights(query: Query, precision: Precision) -> Step:
    rows = [
        (key, MASKED, "")
        if query.hides(i)
        else (
            key,
            precision.number("weights", query.weights[i]),
            bar(query.weights[i]),
        )
        for i, key in enumerate(query.keys)
    ]
    total = precision.number("weights", query.weights.sum())
    best = query.keys[int(query.weights.argmax())]
    return Step(
        "Softmax: scores become shares",
        "weight = exp(scaled) / sum of exp(scaled) over all keys",
        ("key of", "weight", ""),
        (*rows, ("sum", total, "")),
        f"Now they are shares that add up to 1: {query.name} gives most, "
        f"{query.weights.max():.1%}, to {best}.{_hidden(query)}",
        "lrl",
    )


def weighted_sum_step(query: Query, precision: Precision) -> Step:
    """Return the step that adds up the values, each by its weight."""
    rows = [
        (key, MASKED)
        if query.hides(i)
        else (
            key,
            f"{precision.number('weights', query.weights[i])} × "
            f"{precision.vector('v', query.v[i])}",
        )
        for i, key in enumerate(query.keys)
    ]
    return Step(
        "Weighted sum: the values, each by its share",
        "output = sum of weight × v over all keys",
        ("value of", "weight × v"),
        (*rows, ("sum = output", precision.vector("output", query.output))),
        f"Each value counts as much as its weight says; their sum is what {query.name} "
        "takes from the tokens it looked at.",
    )


def bar(share: float) -> str:
    """Return a bar whose length shows a share of 1, at most 20 characters."""
    return "█" * round(20 * float(share))


def _hidden(query: Query) -> str:
    if not any(query.masked):
        return ""
    return (
        f" A dot ({MASKED}) marks a token that is not yet written: its score becomes "
        "−∞, and its weight exactly 0."
    )
