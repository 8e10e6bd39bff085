"""The three kinds of attention of an encoder-decoder, and what each relates."""

from typing import Literal

Kind = Literal["encoder_self", "decoder_self", "cross"]

KINDS: tuple[Kind, ...] = ("encoder_self", "decoder_self", "cross")
SIDES: dict[Kind, tuple[str, str]] = {
    "encoder_self": ("source", "source"),
    "decoder_self": ("target", "target"),
    "cross": ("target", "source"),
}
"""Which tokens a kind's rows (the queries) and columns (the keys) are."""
