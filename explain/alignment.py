"""What words attend to, and how well that agrees with a true word alignment.

A map of tokens becomes a map of words (`word_matrix`; `explain.words` says which tokens
make a word), a map of words becomes links (`links`), and links are held against gold
ones (Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment
Models"). docs/alignment.md states every rule.

A link is (source word, target word), both counted from 0. An alignment reads the row
that *predicts* a target token, so its target words are those of `tokens_out`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from explain.words import Word

if TYPE_CHECKING:  # torch is slow to import, and nearly nothing here needs it
    from explain.trace import AttentionTrace
    from model.transformer import Transformer

Array = NDArray[np.float64]
Link = tuple[int, int]

_LINK = re.compile("([0-9]+)([-?])([0-9]+)")


# ------------------------------------------------------------------ words to links


def word_matrix(
    weights: ArrayLike,
    row_words: Sequence[Word],
    column_words: Sequence[Word],
    renormalise: bool = False,
) -> Array:
    """Return how much each row's word attends to each column's word.

    Weights are (…, rows, columns), the result (…, row words, column words): summed over
    a column word's tokens and averaged over a row word's, a token that two words share
    counting for each by its share. Rows sum to 1 where the column words cover every
    token; leave out the end mark, and `renormalise` makes them sum to 1 again.
    """
    maps = np.asarray(weights, dtype=np.float64)
    rows = _shares(row_words, maps.shape[-2])
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    words: Array = rows @ maps @ _shares(column_words, maps.shape[-1]).T
    return _renormalised(words) if renormalise else words


def _shares(words: Sequence[Word], tokens: int) -> Array:
    """Return each word's share of each token, (words, tokens)."""
    shares = np.zeros((len(words), tokens))
    for word, row in zip(words, shares, strict=True):
        for index, share in word.parts:
            row[index] = share
    return shares


def _renormalised(words: Array) -> Array:
    """Return rows that sum to 1; a row of zeros stays one."""
    totals = words.sum(axis=-1, keepdims=True)
    result: Array = np.divide(words, totals, out=np.zeros_like(words), where=totals > 0)
    return result


def links(words: Array) -> set[Link]:
    """Return one link for each row (target word): to the column of its largest weight.

    Of equal weights the leftmost counts; a row of zeros gives no link.
    """
    if not words.shape[1]:
        return set()
    chosen = words.argmax(axis=1)
    return {(int(s), t) for t, s in enumerate(chosen) if words[t, s] > 0}


def cross_weights(trace: "AttentionTrace") -> Array:
    """Return a trace's cross-attention, (layers, H, rows, columns)."""
    layers = range(trace.layers("cross"))
    return np.array([trace.map("cross", i).weights for i in layers], dtype=np.float64)


def forced_weights(
    model: "Transformer", pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[NDArray[np.float32]]:
    """Return the cross-attention over translations that are given, in their order.

    A pair is the ids of a source, its end mark included, and those that the decoder
    reads, its start mark included. A result is (layers, H, rows, columns), and equals
    that of a trace of the pair alone: it is computed in batches of like length, in eval
    mode, and the padding is cut off.
    """
    order = sorted(range(len(pairs)), key=lambda i: tuple(map(len, pairs[i])))
    found: dict[int, NDArray[np.float32]] = {}
    training = model.training
    model.eval()
    for first in range(0, len(order), _FORCED_BATCH):
        rows = order[first : first + _FORCED_BATCH]
        weights = _batch_weights(model, [pairs[row] for row in rows])
        for row, padded in zip(rows, weights, strict=True):
            S, T = map(len, pairs[row])
            found[row] = padded[:, :, :T, :S].copy()
    model.train(training)
    return [found[row] for row in range(len(pairs))]


_FORCED_BATCH = 64


def _batch_weights(
    model: "Transformer", pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> NDArray[np.float32]:
    """Return a batch's cross-attention, padded: (B, layers, H, T, S)."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from model.attention import Trace

    source, target = (
        pad_sequence(
            [torch.tensor(pair[side]) for pair in pairs],
            batch_first=True,
            padding_value=model.config.padding_id,
        ).to(model.positions.device)
        for side in (0, 1)
    )
    trace = Trace()
    with torch.inference_mode():
        memory = model.encode(source)
        model.decode(target, memory, model.source_mask(source), trace)
    names = [f"decoder.{i}.cross_attention.weights" for i in range(len(model.decoder))]
    layers = torch.stack([trace.values[name] for name in names], dim=1)
    weights: NDArray[np.float32] = layers.float().cpu().numpy()
    return weights


def align(
    trace: "AttentionTrace",
    source: Sequence[Word],
    target: Sequence[Word],
    heads: "Heads | None" = None,
) -> set[Link]:
    """Return a trace's alignment: one link for each target word.

    The words are those of `source.tokens` and `target.tokens_out`; the end mark, which
    is no word, is left out. The mean of all heads is read unless others are chosen.
    """
    weights = (heads or Heads()).of(cross_weights(trace))
    return links(word_matrix(weights, target, source))


def diagonal(source: int, target: int) -> list[int]:
    """Return, for each target word, the source word at the same relative place."""
    return [(2 * t + 1) * source // (2 * target) for t in range(target)]


def pharaoh(found: Iterable[Link]) -> str:
    """Return links as `source-target` numbers from 0, in order: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in sorted(found))


@dataclass(frozen=True)
class Gold:
    """A true alignment: links that must be found, and links that may be."""

    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()

    @property
    def allowed(self) -> frozenset[Link]:
        """Och and Ney's P: the possible links and the sure ones."""
        return self.sure | self.possible


def parse_links(text: str) -> Gold:
    """Return the links of a line such as `0-0 1?2`: `-` joins sure ones, `?` possible.

    Raises `ValueError` that names what is no link.
    """
    found: dict[str, set[Link]] = {"-": set(), "?": set()}
    for link in text.split():
        match = _LINK.fullmatch(link)
        if match is None:
            raise ValueError(f"{link!r} is no link: write 0-0 (sure) or 0?0 (possible)")
        found[match[2]].add((int(match[1]), int(match[3])))
    return Gold(frozenset(found["-"]), frozenset(found["?"]))


# ------------------------------------------------------------------ heads and scores


@dataclass(frozen=True)
class Heads:
    """Which heads are read: one, the mean of a layer's, or the mean of all.

    Both are counted from 0, as in a trace; as text they are counted from 1.
    """

    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        if self.layer is None:
            return "mean of all"
        what = "mean" if self.head is None else f"head {self.head + 1}"
        return f"layer {self.layer + 1}, {what}"

    def of(self, weights: ArrayLike) -> Array:
        """Return the chosen map, (rows, columns).

        weights is (layers, H, rows, columns). Raises `ValueError` where there is no
        such layer or head.
        """
        maps = np.asarray(weights, dtype=np.float64)
        if self.layer is None and self.head is not None:
            raise ValueError(f"head {self.head + 1} of which layer? give a layer too")
        chosen: Any = maps
        for what, number in (("layer", self.layer), ("head", self.head)):
            if number is None:
                continue
            if not 0 <= number < len(chosen):
                raise ValueError(
                    f"{what} {number + 1}: give one from 1 to {len(chosen)}"
                )
            chosen = chosen[number]
        mean: Array = chosen.reshape(-1, *maps.shape[2:]).mean(axis=0)
        return mean


@dataclass(frozen=True)
class Scores:
    """Agreement with gold links, counted over all sentences together."""

    sentences: int
    links: int
    """Links found (Och and Ney's A)."""
    error_rate: float
    """AER: 1 - (|A and S| + |A and P|) / (|A| + |S|)."""
    precision: float
    """Share of the found links that are allowed: |A and P| / |A|."""
    recall: float
    """Share of all allowed links that are found: |A and P| / |P|."""
    sure_recall: float
    """Share of the sure links that are found: |A and S| / |S|; Och and Ney's recall."""
    true_weight: float | None = None
    """Mean weight on the sure source words of a target word that has any."""


def score(pairs: Iterable[tuple[Set[Link], Gold]]) -> Scores:
    """Return how well links agree with gold ones, over all sentences together."""
    counts = np.zeros(6)
    for found, gold in pairs:
        counts += (
            1,
            len(found),
            len(found & gold.sure),
            len(found & gold.allowed),
            len(gold.sure),
            len(gold.allowed),
        )
    return _scores(counts, None)


def _scores(counts: Sequence[float] | Array, true_weight: float | None) -> Scores:
    """Return scores; counts are sentences, |A|, |A and S|, |A and P|, |S|, |P|."""
    sentences, found, sure_hits, hits, sure, allowed = (float(n) for n in counts)
    return Scores(
        sentences=int(sentences),
        links=int(found),
        error_rate=1 - _ratio(sure_hits + hits, found + sure),
        precision=_ratio(hits, found),
        recall=_ratio(hits, allowed),
        sure_recall=_ratio(sure_hits, sure),
        true_weight=true_weight,
    )


def _ratio(part: float, whole: float) -> float:
    """Return part / whole; 1 where there was nothing to find."""
    return part / whole if whole else 1.0


@dataclass(frozen=True)
class Example:
    """One sentence pair to be measured."""

    weights: ArrayLike
    """Cross-attention, (layers, H, rows, columns), its rows those that predict."""
    source: Sequence[Word]
    target: Sequence[Word]
    gold: Gold


@dataclass(frozen=True)
class Measured:
    """Scores of every head, every layer's mean, the mean of all, and the diagonal."""

    heads: Mapping[Heads, Scores]
    diagonal: Scores

    def best_head(self) -> Heads:
        """Return the single head of the least error rate."""
        return self._best(lambda heads: heads.head is not None)

    def best_layer(self) -> Heads:
        """Return the layer's mean of the least error rate."""
        return self._best(lambda heads: heads.layer is not None and heads.head is None)

    def _best(self, fits: Callable[[Heads], bool]) -> Heads:
        return min(filter(fits, self.heads), key=lambda h: self.heads[h].error_rate)


def chosen_on(dev: Measured, test: Measured) -> dict[str, Scores]:
    """Return test's scores by name, the best head and layer chosen on dev."""
    head, layer = dev.best_head(), dev.best_layer()
    return {
        f"best head ({head})": test.heads[head],
        f"best layer ({layer})": test.heads[layer],
        str(Heads()): test.heads[Heads()],
        "diagonal": test.diagonal,
    }


def measure(examples: Iterable[Example], every_word: bool = False) -> Measured:
    """Return how well each head, and each mean of heads, agrees with gold links.

    Word weights leave out the end mark and are renormalised. One link for each target
    word with a sure link, or with `every_word` for each target word, to the source word
    of the largest weight. The weight on the true source word is the mean, over all
    target words with a sure link, of what goes to their sure source words.
    Raises `ValueError` where there is no example, or a link to no word.
    """
    counts: Any = 0
    names: list[Heads] = []
    for example in examples:
        maps = np.asarray(example.weights)
        names = names or _names(*maps.shape[:2])
        counts = counts + _counts(example, word_maps(maps, example), every_word)
    if not names:
        raise ValueError("no alignment to measure: give at least one sentence pair")
    made = [
        _scores(row[:6], float(row[6] / row[7]) if row[7] else None)
        for row in np.atleast_2d(counts)
    ]
    plain = _scores(np.atleast_2d(counts)[-1][:6], None)
    return Measured(dict(zip(names, made[:-1], strict=True)), plain)


def _names(layers: int, heads: int) -> list[Heads]:
    """Return the order in which `word_maps` gives its maps."""
    single = [Heads(i, j) for i in range(layers) for j in range(heads)]
    return [*single, *(Heads(i) for i in range(layers)), Heads()]


def word_maps(maps: NDArray[Any], example: Example) -> Array:
    """Return the word maps of each head, each layer's mean and the mean of all.

    The result is (layers*H + layers + 1, target words, source words).
    """
    words = word_matrix(maps, example.target, example.source)
    every = words.reshape(-1, *words.shape[2:])
    means = (words.mean(axis=1), every.mean(axis=0, keepdims=True))
    return _renormalised(np.concatenate([every, *means]))


def _counts(example: Example, words: Array, every_word: bool) -> Array:
    """Return, for each map and the diagonal, what `_scores` counts and true weight.

    The columns are sentences, |A|, |A and S|, |A and P|, |S|, |P|, the weight on sure
    source words, and the target words that have any.
    """
    sizes = len(example.target), len(example.source)
    sure = _cells(example.gold.sure, sizes)
    allowed = _cells(example.gold.allowed, sizes)
    with_sure = sure.sum(axis=1) > 0
    asked = np.flatnonzero(with_sure | every_word)
    chosen = np.vstack([words.argmax(axis=2), [diagonal(*sizes[::-1])]])[:, asked]
    seen = words.sum(axis=2)[:, asked] > 0
    linked = np.vstack([seen, np.ones((1, len(asked)), bool)])
    weight = (words * sure).sum(axis=(1, 2))
    counts = np.empty((len(chosen), 8))
    counts[:, 0] = 1
    counts[:, 1] = linked.sum(axis=1)
    counts[:, 2] = (sure[asked, chosen] & linked).sum(axis=1)
    counts[:, 3] = (allowed[asked, chosen] & linked).sum(axis=1)
    counts[:, 4:6] = sure.sum(), allowed.sum()
    counts[:, 6] = np.append(weight, 0)
    counts[:, 7] = with_sure.sum()
    return counts


def _cells(found: Iterable[Link], sizes: tuple[int, int]) -> NDArray[np.bool_]:
    """Return links as a boolean (target words, source words)."""
    cells = np.zeros(sizes, dtype=bool)
    for source, target in found:
        if not (source < sizes[1] and target < sizes[0]):
            raise ValueError(
                f"link {source}-{target} is to no word: there are {sizes[1]} source "
                f"words and {sizes[0]} target words"
            )
        cells[target, source] = True
    return cells
