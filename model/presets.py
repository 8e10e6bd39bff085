"""Sizes and recipes to start from; docs/experiments.md has what else was tried."""

from dataclasses import asdict, dataclass
from typing import Literal

from model.config import ModelConfig
from model.training import Recipe

FEWEST_TOKENS, MOST_TOKENS = 260, 1_000_000
"""Each byte is a token, and so are the four marks."""


@dataclass(frozen=True)
class Shape:
    """How large the model is."""

    width: int = 128
    """Numbers in one token's vector (d_model)."""
    heads: int = 4
    """Attention heads in each layer; must divide the width."""
    encoder_layers: int = 3
    """Layers that read the source sentence."""
    decoder_layers: int = 2
    """Layers that write the translation."""
    feed_forward: int = 512
    """Width of the hidden layer in each feed-forward block."""
    dropout: float = 0.05
    """Share of each vector's numbers that training switches off at random."""
    max_length: int = 128
    """Tokens in the longest sentence, its end mark included."""
    vocabulary: int = 4_000
    """Tokens on each side, at most; a small corpus fills fewer."""

    def __post_init__(self) -> None:
        if not FEWEST_TOKENS <= self.vocabulary <= MOST_TOKENS:
            raise ValueError(
                f"vocabulary is {self.vocabulary}: give {FEWEST_TOKENS} to "
                f"{MOST_TOKENS:,}"
            )

    def config(self, source: int, target: int) -> ModelConfig:
        """Return the configuration with vocabularies of these sizes."""
        shape = asdict(self)
        del shape["vocabulary"]
        return ModelConfig(source, target, **shape)


@dataclass(frozen=True)
class Preset:
    """Values that --preset stands for."""

    shape: Shape
    recipe: Recipe
    steps: int | None = None
    minutes: float | None = None
    few_steps: int = 0
    """Where no more fit into the minutes, `mini` learned more (docs/experiments.md)."""


PresetName = Literal["tiny", "mini", "small", "base"]
PRESETS: dict[PresetName, Preset] = {
    "tiny": Preset(Shape(encoder_layers=2, vocabulary=2_000), Recipe(), steps=3_000),
    "mini": Preset(
        Shape(encoder_layers=3, dropout=0.1),
        Recipe(optimizer="muon", learning_rate=2e-3),
        minutes=10,
    ),
    "small": Preset(
        Shape(width=192, feed_forward=768, encoder_layers=4, dropout=0.1),
        Recipe(optimizer="muon", learning_rate=2e-3),
        minutes=10,
        few_steps=3_500,
    ),
    "base": Preset(
        Shape(
            width=256,
            feed_forward=1024,
            encoder_layers=4,
            vocabulary=8_000,
            dropout=0.2,
        ),
        Recipe(
            optimizer="muon",
            learning_rate=2e-3,
            batch_tokens=4_096,
            subword_dropout=0.1,
        ),
        minutes=60,
    ),
}
