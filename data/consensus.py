"""The translation that the others agree with most: minimum-Bayes-risk decoding.

The most probable translation is not always the best one. Here each hypothesis of a beam
is scored by what chrF (Popović 2015) expects of it, if the truth is one of them, as
probable as the model says (Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for
Statistical Machine Translation").
"""

import math
from collections import Counter
from collections.abc import Sequence

ORDER, BETA = 6, 2.0
"""chrF's longest n-grams, in characters, and the weight of recall; sacreBLEU's."""
TEMPERATURE = 2.0
"""What log-probabilities are divided by. The hypotheses that a beam has left out would
have made the few that it keeps less sure (docs/experiments.md)."""

Grams = list[Counter[str]]


def expected_chrf(
    texts: Sequence[str], log_probabilities: Sequence[float]
) -> list[float]:
    """Return the chrF, 0 to 100, that is expected of each hypothesis.

    log_probabilities are the model's, natural and of whole hypotheses.
    """
    most = max(log_probabilities)
    weights = [math.exp((one - most) / TEMPERATURE) for one in log_probabilities]
    total = sum(weights)
    grams = [n_grams(text) for text in texts]
    return [
        sum(
            weight * chrf(hypothesis, reference)
            for weight, reference in zip(weights, grams, strict=True)
        )
        / total
        for hypothesis in grams
    ]


def n_grams(text: str) -> Grams:
    """Return how often each n-gram stands in a text, spaces left out, by its length."""
    letters = "".join(text.split())
    return [
        Counter(letters[at : at + n] for at in range(len(letters) - n + 1))
        for n in range(1, ORDER + 1)
    ]


def chrf(hypothesis: Grams, reference: Grams) -> float:
    """Return the chrF of one sentence, 0 to 100, as sacreBLEU computes it.

    n-grams that are longer than either side do not count.
    """
    precision = recall = orders = 0.0
    for ours, theirs in zip(hypothesis, reference, strict=True):
        if ours and theirs:
            same = (ours & theirs).total()
            precision += same / ours.total()
            recall += same / theirs.total()
            orders += 1
    if not precision:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
