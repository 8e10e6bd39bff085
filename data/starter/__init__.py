"""The starter corpus: lexicon, patterns and sentences, and what composes them."""
