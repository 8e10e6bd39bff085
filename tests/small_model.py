"""A tiny random model, its tokenizers and its traces, for tests to look at."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch

from data.tokenizer import END, START, Tokenizer, train_tokenizer
from explain.glossary import Entry
from explain.trace import AttentionTrace, ModelNote, Source, Target, trace_attention
from model.config import ModelConfig
from model.transformer import Transformer

ENGLISH = ("I", "love", "machine", "learning", "the", "cat", "saw", "dog", "and", "to")
JAPANESE = (
    "私は",
    "機械",
    "学習",
    "が",
    "大好き",
    "です",
    "。",
    "猫",
    "犬",
    "を",
    "見た",
)
GLOSSARY = {
    "私は": Entry("わたしは", "I (topic)"),
    "機械": Entry("きかい", "machine"),
    "学習": Entry("がくしゅう", "learning"),
    "が": Entry("が", ""),
    "大好き": Entry("だいすき", "love"),
}
ARTICLE = "I love machine learning"
WORDS = ("私は", "機械", "学習", "が", "大好き", "です", "。")


@functools.cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    """Return tokenizers in which each of the words above is one token."""
    english = [" ".join(ENGLISH)] + [f"{a} {b}" for a in ENGLISH for b in ENGLISH]
    japanese = [[a, b] for a in JAPANESE for b in JAPANESE]
    return (
        train_tokenizer(english, 400, "source"),
        train_tokenizer(japanese, 400, "target"),
    )


@functools.cache
def model() -> Transformer:
    source, target = tokenizers()
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary=len(source), target_vocabulary=len(target), width=16, heads=4,
        encoder_layers=3, decoder_layers=2, feed_forward=32, max_length=64,
    )  # fmt: skip
    return Transformer(config).eval()


def trace(text: str = ARTICLE, words: Sequence[str] = WORDS) -> AttentionTrace:
    """Return the trace of a translation that is given by its words."""
    source, target = tokenizers()
    read, written = [*source.encode(text), END], target.encode_words(words)
    ids_in, ids_out = [START, *written], [*written, END]
    return trace_attention(
        model(),
        ModelNote("small", "0" * 64, {}),
        Source(text, tuple(source.tokens(read)), tuple(read)),
        Target(
            "".join(words), tuple(target.tokens(ids_in)), tuple(target.tokens(ids_out)),
            tuple(ids_in), tuple(ids_out), (),
        ),
    )  # fmt: skip


def renamed(found: AttentionTrace, tokens_in: Sequence[str]) -> AttentionTrace:
    """Return a trace whose target reads other tokens; its numbers stay."""
    assert len(tokens_in) == len(found.target.tokens_in)
    named = (*tokens_in[1:], "</s>")
    target = replace(found.target, tokens_in=tuple(tokens_in), tokens_out=named)
    return replace(found, target=target)
