"""BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Scores:
    """Corpus scores, 0 to 100, and how each was computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str

    @property
    def signatures(self) -> str:
        """Both signatures, as they are printed beside the scores."""
        return f"BLEU {self.bleu_signature}; chrF {self.chrf_signature}"


def score(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> Scores:
    """Score translations into a language (`ja`, `en`) against one reference each."""
    bleu, chrf = _bleu(bleu_tokenizer(language)), CHRF()
    return Scores(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


@functools.cache
def _bleu(tokenizer: str) -> BLEU:
    """Return the one BLEU with a tokenizer.

    sacreBLEU 2.6 keeps every Japanese tokenizer for good, its dictionary included: 20
    MB with each validation of a training.
    """
    return BLEU(tokenize=tokenizer)


def bleu_tokenizer(language: str) -> str:
    """Return sacreBLEU's name of the tokenizer for a language.

    Japanese has no spaces: MeCab finds its words where the extra `ja` is installed, and
    each character counts as a word where it is not. 13a, which is for spaces, never
    does.
    """
    if language != "ja":
        return "13a"
    found = all(importlib.util.find_spec(name) for name in ("MeCab", "ipadic"))
    return "ja-mecab" if found else "char"
