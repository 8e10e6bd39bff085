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


FEWEST = 16
"""Sentences that a thread translates together, at least, of a batch that has more."""


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

        Each source is closed by the end mark and no longer than the model reads.
        max_steps caps the tokens of a hypothesis; without it the model's limit does.
        """
