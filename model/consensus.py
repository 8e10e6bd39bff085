"""The translation that the others agree with most: minimum-Bayes-risk decoding.

The most probable translation is not always the best one. Here each hypothesis of a beam
is scored by the chrF (Popović 2015) that is to be expected of it, if the truth is one
of them (Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for Statistical Machine
Translation"). How probable each is follows the model, less surely.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

ORDER, BETA = 6, 2.0
"""chrF's longest n-grams, in characters, and the weight of recall; sacreBLEU's."""
TEMPERATURE = 3.0
"""What log-probabilities are divided by: the hypotheses that a beam has left out would
have made the few that it keeps less sure (docs/experiments.md)."""


@dataclass(frozen=True)
class NGrams:
    """How often each n-gram stands in a text, spaces left out, by its length."""

    counts: tuple[dict[str, int], ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> "NGrams":
        letters = "".join(text.split())
        lengths = range(1, ORDER + 1)
        counts = tuple(
            Counter(letters[at : at + n] for at in range(len(letters) - n + 1))
            for n in lengths
        )
        return cls(counts, tuple(max(len(letters) - n + 1, 0) for n in lengths))

    def shared(self, other: "NGrams") -> list[int]:
        """Return how many n-grams of each length both have."""
        return [
            sum(min(n, theirs[gram]) for gram, n in ours.items() if gram in theirs)
            for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]


def chrf(shared: Sequence[int], hypothesis: NGrams, reference: NGrams) -> float:
    """Return the chrF of one sentence, 0 to 100, as sacreBLEU computes it.

    n-grams that are longer than either side do not count.
    """
    precision = recall = 0.0
    orders = 0
    for same, ours, theirs in zip(
        shared, hypothesis.totals, reference.totals, strict=True
    ):
        if ours and theirs:
            precision += same / ours
            recall += same / theirs
            orders += 1
    if not precision:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def expected_chrf(
    texts: Sequence[str], log_probabilities: Sequence[float]
) -> list[float]:
    """Return the chrF, 0 to 100, that is expected of each hypothesis.

    log_probabilities are the model's, natural and of whole hypotheses.
    """
    most = max(log_probabilities)
    weights = [math.exp((one - most) / TEMPERATURE) for one in log_probabilities]
    grams = [NGrams.of(text) for text in texts]
    sums = [
        weight * chrf(found.totals, found, found)
        for weight, found in zip(weights, grams, strict=True)
    ]
    for one, other in combinations(range(len(texts)), 2):
        shared = grams[one].shared(grams[other])
        sums[one] += weights[other] * chrf(shared, grams[one], grams[other])
        sums[other] += weights[one] * chrf(shared, grams[other], grams[one])
    return [found / sum(weights) for found in sums]
