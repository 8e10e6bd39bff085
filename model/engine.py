"""What an engine is: it finds the translations of sentences that are given as ids.

There are two: `model.search.TorchEngine`, our own network and search, whose attention
can be traced, and `model.serving.CTranslate2Engine`, an exported model. Nothing here
needs the library of either, since torch alone takes a second to import.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from model.config import ModelConfig

Precision = Literal["fp32", "bf16"]


BATCH_TOKENS = 4_096
"""Tokens that our own search takes together, at most."""
SENTENCES_PER_THREAD = 16
"""So many for each, at least, where several threads translate."""


def threads_for(sentences: int, threads: int) -> int:
    """Return how many of the threads are to translate so many sentences."""
    return max(min(threads, sentences // SENTENCES_PER_THREAD), 1)


def batches(
    lengths: Sequence[int], beam: int, threads: int = 1, limit: int = BATCH_TOKENS
) -> list[list[int]]:
    """Return the places of sentences of these lengths, in batches, longest first.

    Those of a batch have like lengths, and no more than `limit` tokens, padding and all
    hypotheses counted, unless it is one sentence. Where that can be, there are as many
    batches for each thread, so that all are done at about the same time.
    """
    if beam < 1:
        raise ValueError(f"beam is {beam}: give a whole number from 1 up")
    tokens = sum(lengths) * beam
    count = max(-(-tokens // (threads * limit)), 1) * threads
    most = -(-tokens // count)
    # More in each where padding has made too many of them.
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while len(cut := _cut(order, lengths, most // beam)) > count and most < limit:
        most = min(most + most // 8 + 1, limit)
    return cut


def _cut(order: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    """Cut places, the longest first, into batches of `most` tokens with padding."""
    found: list[list[int]] = []
    for row in order:
        if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= most:
            found[-1].append(row)
        else:
            found.append([row])
    return found


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
