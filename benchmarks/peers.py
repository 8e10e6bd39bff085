"""Other libraries' Transformers in a shape of ours, put together as they advise."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from data.batching import Batch
from model.config import ModelConfig
from model.layers import sinusoidal_positions
from model.training import Recipe

START, END, PADDING = 1, 2, 0


class TorchTransformer(nn.Module):
    """The same model from torch's own parts, as its tutorial puts them together.

    A lean one leaves out what ours does not do either: dropout on attention weights and
    inside feed-forward blocks, and the mask over a target's padding, which no loss
    sees; and in bf16 its attention is computed step by step, since torch's fused one,
    which it would take without dropout, is slower there for short sentences.
    """

    positions: Tensor

    def __init__(self, config: ModelConfig, lean: bool = False) -> None:
        super().__init__()
        self.config, self.lean = config, lean
        self.source = nn.Embedding(config.source_vocabulary, config.width)
        self.target = nn.Embedding(config.target_vocabulary, config.width)
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight, std=config.width**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.Transformer(
            config.width,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.feed_forward,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )
        positions = sinusoidal_positions(config.max_length, config.width)
        self.register_buffer("positions", positions, persistent=False)
        for part in self.layers.modules() if lean else ():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
            elif hasattr(part, "linear1"):  # a layer: its inner dropout
                part.dropout = nn.Identity()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits, (B, T, V), for ids (B, S) and (B, T)."""
        step_by_step = self.lean and torch.is_autocast_enabled("cpu")
        with sdpa_kernel(SDPBackend.MATH) if step_by_step else nullcontext():
            return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """Return the memory, (B, S, D)."""
        memory: Tensor = self.layers.encoder(
            self._embed(self.source, source), src_key_padding_mask=source == PADDING
        )
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Return the logits, (B, T, V)."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        hidden = self.layers.decoder(
            self._embed(self.target, target),
            memory,
            tgt_mask=causal,
            tgt_key_padding_mask=None if self.lean else target == PADDING,
            memory_key_padding_mask=source == PADDING,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.target.weight)

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        x = embedding(ids) * self.config.width**0.5 + self.positions[: ids.shape[1]]
        embedded: Tensor = self.dropout(x)
        return embedded


def marian(config: ModelConfig, explicit: bool = False) -> Any:
    """Return a MarianMT model of Hugging Face's transformers, in random weights.

    Its attention is its default, torch's fused one, or written out as ours is.
    """
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocabulary,
            decoder_vocab_size=config.target_vocabulary,
            share_encoder_decoder_embeddings=False,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.feed_forward,
            decoder_ffn_dim=config.feed_forward,
            activation_function="relu",
            dropout=config.dropout,
            max_position_embeddings=config.max_length,
            scale_embedding=True,
            pad_token_id=PADDING,
            bos_token_id=START,
            eos_token_id=END,
            forced_eos_token_id=None,
            decoder_start_token_id=START,
            attn_implementation="eager" if explicit else None,
        )
    )


class Marian(nn.Module):
    """MarianMT called as `TorchTransformer` is."""

    def __init__(self, config: ModelConfig, explicit: bool = False) -> None:
        super().__init__()
        self.inner = marian(config, explicit)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits, (B, T, V), for ids (B, S) and (B, T)."""
        logits: Tensor = self.inner(
            input_ids=source,
            attention_mask=source != PADDING,
            decoder_input_ids=target,
            use_cache=False,
        ).logits
        return logits


def tight(ids: Tensor) -> Tensor:
    """Return ids without the columns of padding alone, which a peer has no use of."""
    return ids[:, : int((ids != PADDING).sum(1).max())]


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    autocast: bool,
) -> Callable[[Batch], None]:
    """Return a step of a peer's training; with autocast in bf16."""
    context = torch.autocast("cpu", torch.bfloat16, enabled=autocast)

    def step(batch: Batch) -> None:
        with context:
            logits = model(tight(batch.source), tight(batch.target_in))
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                tight(batch.target_out).flatten(),
                ignore_index=PADDING,
                label_smoothing=recipe.label_smoothing,
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step
