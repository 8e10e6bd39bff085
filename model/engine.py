"""What an engine is: it finds the translations of sentences that are given as ids.

There are two: `model.search.TorchEngine`, our own network and search, whose attention
can be traced, and `model.serving.CTranslate2Engine`, an exported model. Nothing here
needs the library of either, since torch alone takes a second to import.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol, TypeVar

from model.config import ModelConfig

Precision = Literal["fp32", "bf16"]
T = TypeVar("T")

BATCH_TOKENS = 4_096
"""Tokens that our own search takes together, at most."""
SENTENCES_PER_THREAD = 16
"""So many for each, at least, where several threads translate."""


def threads_for(sentences: int, threads: int) -> int:
    """Return how many of the threads are to translate so many sentences."""
    return max(min(threads, sentences // SENTENCES_PER_THREAD), 1)


def usual_size(count: int, up: bool = False) -> int:
    """Return the largest usual size up to count, or with `up` the smallest from it on.

    Usual sizes are 1 to 8, 10, 12, 14, 16, 20, …: three binary digits, then zeros. With
    few sizes the same shapes recur, and a processor's matrix kernels are found ready.
    """
    unit = 1 << max(count.bit_length() - 3, 0)
    return -(-count // unit) * unit if up else count // unit * unit


def batches(
    lengths: Sequence[int],
    beam: int,
    threads: int = 1,
    limit: int = BATCH_TOKENS,
    usual: bool = False,
) -> list[list[int]]:
    """Return the places of sentences of these lengths, in batches, longest first.

    Those of a batch have like lengths, and no more than `limit` tokens, padding and all
    hypotheses counted, unless it is one sentence. Where that can be, there are as many
    batches for each thread, so that all are done at about the same time. With `usual`
    all but the last are of a usual size.
    """
    if beam < 1:
        raise ValueError(f"beam is {beam}: give a whole number from 1 up")
    tokens = sum(lengths) * beam
    count = max(-(-tokens // (threads * limit)), 1) * threads
    most = -(-tokens // count)
    # More in each where padding has made too many of them.
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while (
        len(cut := _cut(order, lengths, most // beam, usual)) > count and most < limit
    ):
        most = min(most + most // 8 + 1, limit)
    return cut


def _cut(
    order: Sequence[int], lengths: Sequence[int], most: int, usual: bool
) -> list[list[int]]:
    """Cut places, the longest first, into batches of `most` tokens with padding."""
    found: list[list[int]] = []
    place = 0
    while place < len(order):
        size = max(most // lengths[order[place]], 1)
        size = usual_size(size) if usual else size
        found.append(list(order[place : place + size]))
        place += size
    return found


def in_order(cut: Sequence[Sequence[int]], found: Iterable[Sequence[T]]) -> list[T]:
    """Return what was found for each batch of `cut` in the order of the sentences."""
    by_row = dict(zip(chain(*cut), chain.from_iterable(found), strict=True))
    return [by_row[row] for row in range(len(by_row))]


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found."""

    ids: tuple[int, ...]
    """Its tokens, without start and end marks."""
    log_probability: float
    """Natural logarithm of its probability, the end mark included where it has one."""
    score: float
    """What hypotheses are ranked by: log_probability / tokens ^ length_penalty."""
    complete: bool
    """False where the search reached its cap before the model ended the sentence."""

    @classmethod
    def scored(
        cls,
        ids: Sequence[int],
        log_probability: float,
        length_penalty: float,
        complete: bool = True,
    ) -> "Hypothesis":
        """Return the hypothesis with its score; the end mark is one of its tokens."""
        score = log_probability / (len(ids) + complete) ** length_penalty
        return cls(tuple(ids), log_probability, score, complete)


class Engine(Protocol):
    """A model with a search; the rules of the search are those of `model.search`."""

    @property
    def config(self) -> ModelConfig: ...

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Return each sentence's hypotheses, best first, at most `beam` of them.

        There may be any number of sentences, in any order. Each source is closed by the
        end mark and no longer than the model reads. max_steps caps the tokens of a
        hypothesis; without it the model's limit does.
        """
