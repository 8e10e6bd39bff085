"""The shape of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """Shape of an encoder-decoder Transformer.

    Raises `ValueError` where the fields do not make a model.
    """

    source_vocabulary: int
    """Source tokens the model knows, the special ones included."""
    target_vocabulary: int
    """Target tokens the model knows, the special ones included."""
    width: int = 128
    """Numbers in one token's vector (d_model in the papers)."""
    heads: int = 4
    """Attention heads in each layer; must divide the width."""
    encoder_layers: int = 3
    """Layers that read the source sentence."""
    decoder_layers: int = 2
    """Layers that write the target sentence."""
    feed_forward: int = 512
    """Width of the hidden layer in each feed-forward block."""
    dropout: float = 0.1
    """Share of each vector's numbers that training switches off at random."""
    max_length: int = 256
    """Tokens in the longest sentence, its end mark included."""
    padding_id: int = 0
    start_id: int = 1
    end_id: int = 2

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not (isinstance(value, int) and 1 <= value <= limit):
                raise ValueError(
                    f"{name} is {value!r}: give a whole number from 1 to {limit}"
                )
        numbers = self.parameters + self.max_length * self.width
        if numbers > _MOST_NUMBERS:
            raise ValueError(
                f"a model of this shape has {numbers:,} numbers, and at most "
                f"{_MOST_NUMBERS:,} are allowed: lower the width {self.width}, the "
                "layers or the vocabulary"
            )
        if self.width % self.heads:
            raise ValueError(
                f"heads is {self.heads}, which does not divide the width {self.width}: "
                "give a number of heads that does"
            )
        if self.width % 2:
            raise ValueError(
                f"width is {self.width}: give an even number (positions are pairs of "
                "a sine and a cosine)"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give a number from 0 to 0.99")
        special = (self.padding_id, self.start_id, self.end_id)
        smallest = min(self.source_vocabulary, self.target_vocabulary)
        fit = all(type(token) is int and 0 <= token < smallest for token in special)
        if len(set(special)) < 3 or not fit:
            raise ValueError(
                f"padding, start and end ids are {special}: give three different ids "
                f"below the smaller vocabulary, {smallest}"
            )

    @property
    def parameters(self) -> int:
        """The numbers that a model of this shape learns; it is not built for it."""
        D, F = self.width, self.feed_forward
        norm, attention = 2 * D, 4 * D * D
        feed_forward = 2 * D * F + F + D
        encoder_layer = attention + feed_forward + 2 * norm
        decoder_layer = 2 * attention + feed_forward + 3 * norm
        return (
            (self.source_vocabulary + self.target_vocabulary) * D
            + self.encoder_layers * encoder_layer
            + self.decoder_layers * decoder_layer
            + 2 * norm
        )


# A stranger's config must not be able to ask for all memory: 1 GB of it at most.
_MOST_NUMBERS = 250_000_000
_LIMITS = {
    "source_vocabulary": 1_000_000,
    "target_vocabulary": 1_000_000,
    "width": 16_384,
    "heads": 256,
    "encoder_layers": 128,
    "decoder_layers": 128,
    "feed_forward": 65_536,
    "max_length": 65_536,
}
