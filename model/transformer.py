"""The encoder-decoder Transformer: encode, decode, and decode step by step."""

import math
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import NO_TRACE, VECTOR, Trace
from model.config import ModelConfig
from model.layers import (
    DecoderLayer,
    EncoderLayer,
    KeysValues,
    dropout_mask,
    sinusoidal_positions,
)
from model.linear import linear
from model.packing import ROUND, Packing


class Transformer(nn.Module):
    """A pre-norm encoder-decoder Transformer, target embedding tied to the output.

    Vaswani et al. (2017), "Attention Is All You Need".
    """

    positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        shape = (width, config.heads, config.feed_forward, config.dropout)
        self.source_embedding = nn.Embedding(config.source_vocabulary, width)
        self.target_embedding = nn.Embedding(config.target_vocabulary, width)
        self.encoder = nn.ModuleList(
            EncoderLayer(*shape) for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            DecoderLayer(*shape) for _ in range(config.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(width)
        positions = sinusoidal_positions(config.max_length, width)
        self.register_buffer("positions", positions, persistent=False)
        self.apply(_initialise)

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Return the logits of each next token, (B, T, V).

        source_ids is (B, S), each row closed by the end mark; target_ids is (B, T),
        each row opened by the start mark. Both are padded with `padding_id`.
        """
        memory = self.encode(source_ids)
        return self.logits(
            self.decode(target_ids, memory, self.source_mask(source_ids))
        )

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers of the decoder; a ModuleList forgets what its members are."""
        return cast(list[DecoderLayer], list(self.decoder))

    def source_mask(self, source_ids: Tensor) -> Tensor:
        """Return which source tokens may be attended to, (B, 1, 1, S), boolean."""
        return (source_ids != self.config.padding_id)[:, None, None, :]

    def encode(
        self,
        source_ids: Tensor,
        trace: Trace = NO_TRACE,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return the encoder's output for source_ids, (B, S).

        It is (B, S, D), or with a packing of the source (N, D).
        """
        mask = self.source_mask(source_ids)
        inner = trace.scope("source")
        x = self._embed(self.source_embedding, source_ids, 0, inner, packing)
        for index, layer in enumerate(self.encoder):
            x = layer(x, mask, trace.scope(f"encoder.{index}"), packing)
        memory: Tensor = self.encoder_norm(x)
        trace.keep(memory=memory)
        return memory

    def decode(
        self,
        target_ids: Tensor,
        memory: Tensor,
        source_mask: Tensor,
        trace: Trace = NO_TRACE,
        packings: tuple[Packing, Packing] | None = None,
    ) -> Tensor:
        """Return the decoder's output, (B, T, D), reading all of target_ids, (B, T).

        Position t sees target_ids up to t and predicts the token after it. With
        packings, of source and target, memory and the result are packed, (N, D).
        """
        of_source, of_target = packings or (None, None)
        T = target_ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=target_ids.device).tril()
        inner = trace.scope("target")
        x = self._embed(self.target_embedding, target_ids, 0, inner, of_target)
        for index, layer in enumerate(self.decoder_layers):
            inner = trace.scope(f"decoder.{index}")
            keys_values = layer.cross_attention.project_memory(memory, of_source)
            x = layer(x, causal, keys_values, source_mask, inner, of_target)
        hidden: Tensor = self.decoder_norm(x)
        trace.keep(hidden=hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of every target token, (…, V), for hidden, (…, D)."""
        return linear(hidden, self.target_embedding.weight)

    def start(self, source_ids: Tensor, beam: int = 1) -> "Cache":
        """Return the cache with which to decode source_ids, (B, S), step by step.

        Many tokens are encoded as a packed stream.
        """
        B, S = source_ids.shape
        mask, packing = self.source_mask(source_ids), None
        if B * S >= _FEW_TOKENS:
            packing = Packing.of(mask[:, 0, 0], self.positions.dtype)
        memory = self.encode(source_ids, packing=packing)
        room = (VECTOR, B * beam, self.config.width)
        fp32, columns = torch.float32, VECTOR if B * beam >= _FEW_HYPOTHESES else 1
        more = max(columns - S, 0)  # which the mask hides
        cross = (layer.cross_attention.project_memory(memory, packing)
                 for layer in self.decoder_layers)  # fmt: skip
        return Cache(
            fewest_columns=columns,
            source_mask=F.pad(mask, (0, more)),
            cross=[
                (F.pad(k.float(), (0, 0, 0, more)), F.pad(v.float(), (0, 0, 0, more)))
                for k, v in cross
            ],
            own=[
                (memory.new_zeros(room, dtype=fp32), memory.new_zeros(room, dtype=fp32))
                for _ in self.decoder
            ],
        )

    def step(self, token_ids: Tensor, cache: "Cache") -> Tensor:
        """Return the logits after one more token, (B*beam, V), and keep the token.

        token_ids is (B*beam,), hypotheses of each of the cache's B sentences. The
        result equals the last position of `decode` over the whole prefix.
        """
        cache.make_room()
        rows, B, now = token_ids.shape[0], cache.source_mask.shape[0], cache.length
        columns, mask = max(now + 1, cache.fewest_columns), None
        if columns > now + 1:
            mask = torch.arange(columns, device=token_ids.device) <= now
        x = self._embed(self.target_embedding, token_ids[:, None], now, NO_TRACE)
        for layer, own, cross in zip(
            self.decoder_layers, cache.own, cache.cross, strict=True
        ):
            q, k, v = layer.self_attention.project(layer.self_attention_norm(x))
            for kept, new in zip(own, (k, v), strict=True):
                kept[now] = new.flatten(1)  # (B*beam, H, 1, K)
            keys, values = (  # (B*beam, H, columns, K)
                kept[:columns]
                .view(columns, rows, self.config.heads, -1)
                .permute(1, 2, 0, 3)
                for kept in own
            )
            x = x + layer.self_attention.attend(q, keys, values, mask)
            # A sentence's hypotheses query its one memory like positions of it.
            x = x.view(B, rows // B, -1)
            x = layer.after_self_attention(x, cross, cache.source_mask).view(
                rows, 1, -1
            )
        cache.length += 1
        return self.logits(self.decoder_norm(x[:, 0]))

    def _embed(
        self,
        embedding: nn.Module,
        ids: Tensor,
        first: int,
        trace: Trace,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return token vectors plus position vectors for ids, (B, T).

        The result is (B, T, D), or with a packing (N, D).
        """
        position = self.positions[first : first + ids.shape[1]]
        if packing is not None:
            ids = packing.pack(ids)
            position = position.index_select(0, packing.position)
        token = embedding(ids) * math.sqrt(self.config.width)
        trace.keep(token=token, position=position)
        x: Tensor = token + position
        if self.training and self.config.dropout > 0:
            x = x * dropout_mask(x, self.config.dropout, packing)
        return x


@dataclass
class Cache:
    """What decoding step by step keeps between steps.

    B sentences with `beam` hypotheses each; `length` tokens of each are cached. The
    tokens of one step lie together, so that hypotheses are moved in one pass over what
    is filled. Keys and values are in fp32 whatever the weights are: in bf16 a
    processor's matrix kernels are made anew for each new shape, and a search has many.
    For inference only.
    """

    fewest_columns: int
    """Tokens that are read, at least; a mask hides those that are not filled yet, where
    no number is infinite or NaN."""
    source_mask: Tensor  # (B, 1, 1, S)
    cross: list[KeysValues]  # a layer's keys and values of the memory, (B, H, S, K)
    own: list[KeysValues]  # of the target so far, (room, B*beam, D)
    length: int = 0
    spare: list[KeysValues] = field(default_factory=list)
    """Where hypotheses will be moved to, once some have been; as large as `own`."""

    def make_room(self) -> None:
        """See to it that one more token fits in, with room for some more."""
        if self.length == len(self.own[0][0]):
            self.spare = []
            for layer, (k, v) in enumerate(self.own):
                more = (0, 0, 0, 0, 0, VECTOR)
                self.own[layer] = F.pad(k, more), F.pad(v, more)

    def reorder(self, rows: Tensor) -> None:
        """Let hypothesis i go on from what rows[i] had; rows is (B*beam,)."""
        before = self.own[0][0].shape[1]
        steps = torch.arange(self.length, device=rows.device)[:, None]
        cells = (steps * before + rows).flatten()
        spare = self.spare or [
            (torch.zeros_like(k), torch.zeros_like(v)) for k, v in self.own
        ]
        moved = [
            (self._moved(k, cells, to_k), self._moved(v, cells, to_v))
            for (k, v), (to_k, to_v) in zip(self.own, spare, strict=True)
        ]
        self.own, self.spare = moved, self.own

    def select(self, sentences: Tensor) -> None:
        """Keep these of the B sentences; `reorder` chooses among their hypotheses."""
        self.source_mask = self.source_mask.index_select(0, sentences)
        self.cross = [
            (k.index_select(0, sentences), v.index_select(0, sentences))
            for k, v in self.cross
        ]

    def _moved(self, kept: Tensor, cells: Tensor, spare: Tensor) -> Tensor:
        """Copy the filled cells that are given into a spare buffer of the same room."""
        room, _, D = kept.shape
        rows = len(cells) // self.length
        moved = spare.flatten()[: room * rows * D].view(room, rows, D)
        filled = kept[: self.length].flatten(0, 1)
        torch.index_select(filled, 0, cells, out=moved[: self.length].flatten(0, 1))
        return moved


# Fewer are encoded with their padding: to pack them could cost more.
_FEW_TOKENS = 4 * ROUND
# With fewer hypotheses, short rows of scores are no slower than the filling up.
_FEW_HYPOTHESES = 16


def _initialise(module: nn.Module) -> None:
    """Xavier-uniform matrices, embeddings of variance 1/D, zero biases."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(module, nn.Embedding):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif parameter.dim() == 3:
            for matrix in parameter.unbind(0):
                nn.init.xavier_uniform_(matrix)
        elif parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter)
        elif name == "bias":
            nn.init.zeros_(parameter)
