"""SentencePiece tokenizers: train, encode, decode (Kudo and Richardson 2018).

One for each side. The source side normalises what people type (`data.text.normalise`);
the target side keeps every character as written, so that decoding gives back what was
encoded. The one exception is U+2581 (▁), with which SentencePiece writes a space.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from data.text import normalise

Side = Literal["source", "target"]
PADDING, START, END, UNKNOWN = 0, 1, 2, 3
_SPACE = "▁"
# Stands between words in the training text only, so that no piece crosses it. It is a
# private-use character, which no text means anything by.
_BOUNDARY = "\ue000"
_SETTINGS: dict[str, Any] = {
    "model_type": "bpe",
    "hard_vocab_limit": False,
    "byte_fallback": True,
    "required_chars": _SPACE,  # else a space is written in bytes, and read as ▁
    "pretokenization_delimiter": _BOUNDARY,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "pad_id": PADDING,
    "bos_id": START,
    "eos_id": END,
    "unk_id": UNKNOWN,
    "num_threads": 1,  # two threads gave other models from the same text
    "max_sentence_length": 1_000_000,
    "minloglevel": 2,
}
# Share of the text's characters that get a piece of their own: the first for which the
# vocabulary has room. The rest, rare ones, are written in bytes. SentencePiece takes no
# share below the last.
_COVERAGES = (0.9999, 0.999, 0.99, 0.98)


class Tokenizer:
    """The pieces of one side, loaded from a SentencePiece model."""

    def __init__(self, model: bytes, side: Side) -> None:
        self.model = model
        self.side = side
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path, side: Side, size: int) -> "Tokenizer":
        """Return the tokenizer saved at path, for a model of `size` tokens.

        Raises `ValueError` where it is none, or does not fit the model.
        """
        try:
            loaded = cls(path.read_bytes(), side)
        except RuntimeError:
            raise ValueError(f"{path} is no tokenizer: train the model again") from None
        pieces = loaded._pieces
        marks = (pieces.pad_id(), pieces.bos_id(), pieces.eos_id(), pieces.unk_id())
        if len(loaded) != size or marks != (PADDING, START, END, UNKNOWN):
            raise ValueError(f"{path} does not fit the model: train the model again")
        return loaded

    def __len__(self) -> int:
        return int(self._pieces.vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of text, without start and end marks."""
        text = normalise(text) if self.side == "source" else text
        ids: list[int] = self._pieces.encode(text)
        return ids

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Return the ids of words written without spaces; no piece joins two words."""
        encoded: list[list[int]] = self._pieces.encode(list(words))
        return [token for word in encoded for token in word]

    def sample(
        self, texts: Sequence[str | Sequence[str]], dropout: float, seed: int
    ) -> list[list[int]]:
        """Return ids of texts, or of texts' words, cut into pieces at random.

        Each merge of a word's pieces is skipped with a chance of `dropout`: BPE-dropout
        (Provilkov et al. 2020). The same seed gives the same pieces.
        """
        sentencepiece.set_random_generator_seed(seed % 2**32)
        settings: dict[str, Any] = {
            "enable_sampling": True,
            "alpha": dropout,
            "nbest_size": -1,
        }
        sampled = []
        for text in texts:
            if isinstance(text, str):
                text = normalise(text) if self.side == "source" else text
                sampled.append(self._pieces.encode(text, **settings))
            else:
                # Not the list at once: it would be shared out among threads, of which
                # each has random numbers of its own.
                words = (self._pieces.encode(word, **settings) for word in text)
                sampled.append([token for word in words for token in word])
        return sampled

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; padding and marks give nothing."""
        text: str = self._pieces.decode([i for i in ids if i != PADDING])
        return text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the name of each id: a piece, or a mark such as `</s>`."""
        return [self._pieces.id_to_piece(token) for token in ids]


def train_tokenizer(
    texts: Iterable[str] | Iterable[Sequence[str]], vocabulary: int, side: Side
) -> Tokenizer:
    """Train a tokenizer of at most `vocabulary` tokens on texts.

    A text may be given as its words; then no piece of it will cross two of them. A
    small corpus gives the largest vocabulary that it can fill: look at `len`. Raises
    `ValueError` where vocabulary has no room for the corpus's characters.
    """
    lines = [line for text in texts if (line := _line(text, side))]
    for coverage in _COVERAGES:
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=written,
                vocab_size=vocabulary,
                character_coverage=coverage,
                add_dummy_prefix=side == "source",
                **_SETTINGS,
            )
        except RuntimeError as error:
            failure = error
        else:
            return Tokenizer(written.getvalue(), side)
    raise ValueError(
        f"a {side} vocabulary of {vocabulary} is too small for this corpus: raise "
        f"--vocabulary ({failure})"
    )


def _line(text: str | Sequence[str], side: Side) -> str:
    """Return a text as the trainer reads it."""
    if isinstance(text, str):
        joined = text.replace(_BOUNDARY, "")
    else:
        joined = _BOUNDARY.join(text)
    # The trainer takes a line end for the end of a text.
    joined = joined.replace("\n", " ").replace("\r", " ").replace("\0", " ")
    return normalise(joined) if side == "source" else joined
