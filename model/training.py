"""What a training step does, and all that a training has to remember between steps."""

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.distributed import ALONE, Processes, lost_process
from model.engine import Precision
from model.hardware import DTYPES, hardware_precisions
from model.loss import batch_loss
from model.optimizer import Muon
from model.transformer import Transformer


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    batch_tokens: int = 2048
    """Tokens in a batch, source and target together."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: Muon for the matrices, AdamW for the rest."""
    learning_rate: float = 4e-3
    """The highest; it rises during the warm-up, then falls in a straight line to 0."""
    warmup: int = 300
    """Steps over which the learning rate rises; at most a third of all."""
    weight_decay: float = 0.01
    """Share of each matrix taken away in a step, times the learning rate."""
    label_smoothing: float = 0.1
    """Share of the target's probability that is spread over the whole vocabulary."""
    subword_dropout: float = 0.0
    """Chance to skip a merge when a training sentence is cut into tokens."""
    gradient_clip: float = 1.0
    """Longest gradient; a longer one is shortened to this."""
    accumulate: int = 1
    """Pieces that a batch is cut into, one after another, where memory is short."""
    average: float = 0.998
    """Decay of the weights' exponential moving average, which is what is saved."""

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0")
        for name in ("label_smoothing", "subword_dropout", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 to 0.999")
        if self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate}: give 1 or more")
        if self.warmup < 0 or not 0 <= self.weight_decay < math.inf:
            raise ValueError("warmup and weight_decay are numbers from 0 up")

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 1, of `steps` in all."""
        warmup = min(self.warmup, max(steps // 3, 1))
        rise = step / max(warmup, 1)
        fall = (steps + 1 - step) / max(steps + 1 - warmup, 1)
        return self.learning_rate * min(rise, fall, 1.0)


class Diverged(ValueError):
    """A loss, or a norm of its gradient, that is no finite number."""


class TrainingState:
    """The model that learns, its moving average and the optimisers' memory.

    The optimisers move fp32 weights. With bf16 the passes run on a copy in bf16, made
    anew after each step: every value that flows is half as large, and no operation has
    to convert its inputs.
    """

    def __init__(
        self,
        model: Transformer,
        recipe: Recipe,
        precision: Precision,
        processes: Processes = ALONE,
    ) -> None:
        self.model = model
        self.processes = processes
        self.seed = torch.initial_seed()
        self.recipe = recipe
        self.precision: Precision = precision
        self.averaged = copy.deepcopy(model).eval()
        self.working = model
        if precision != "fp32":
            self.working = copy.deepcopy(model).to(DTYPES[precision])
        self.working.train()
        self.loss: nn.Module = _Loss(self.working)
        if processes.count > 1:
            self.loss = DistributedDataParallel(self.loss)
        # Muon's may be in bf16 whatever the passes are in.
        fastest = common_precisions(model.positions.device.type, processes)[-1]
        self.optimizers = _optimizers(model, recipe, fastest)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, the random state included."""
        device = self.model.positions.device
        on_cuda, on_mps = device.type == "cuda", device.type == "mps"
        return {
            "step": self.step,
            "precision": self.precision,
            "model": self.model.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if on_cuda else None,
            "random_mps": torch.mps.get_rng_state() if on_mps else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.averaged.load_state_dict(state["averaged"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._copy_to_working()
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"], self.model.positions.device)
        if state.get("random_mps") is not None:
            torch.mps.set_rng_state(state["random_mps"])

    def train_step(
        self, source: Tensor, target_in: Tensor, target_out: Tensor, steps: int
    ) -> float:
        """Take one step of a training of `steps`; return its loss, a token's mean.

        source is (B, S), target_in and target_out are (B, T). Raises `Diverged` where
        the loss or its gradient is not finite; the weights are then as before the step.
        """
        self.step += 1
        learning_rate = self.recipe.learning_rate_at(self.step, steps)
        value = self.processes.total(self._backward(source, target_in, target_out))
        self._collect_gradients()
        parameters, longest = list(self.model.parameters()), self.recipe.gradient_clip
        gradients = [p.grad for p in parameters if p.grad is not None]
        length = torch.nn.utils.get_total_norm(gradients)
        norm = length.item()
        for name, number in (("loss", value), ("gradient's norm", norm)):
            if not math.isfinite(number):
                self._zero_gradients()
                raise Diverged(
                    f"the {name} is {number} at step {self.step} (learning rate "
                    f"{learning_rate:.2e}): lower --learning-rate"
                )
        if norm > longest:
            torch.nn.utils.clip_grads_with_norm_(parameters, longest, length)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()
            optimizer.zero_grad()
        self._copy_to_working()
        self._average()
        return value

    def _backward(self, *batch: Tensor) -> float:
        """Add this process's share of the gradient; return its share of the loss.

        A share is weighted by its tokens, so that all of them together are the batch's
        mean, however it is cut.
        """
        processes, pieces = self.processes, self.recipe.accumulate
        processes.seed_step(self.seed, self.step)
        padding, value = self.model.config.padding_id, 0.0
        tokens = int((batch[2] != padding).sum())
        for piece in range(pieces):
            part = [processes.part(ids, piece, pieces) for ids in batch]
            share = int((part[2] != padding).sum()) / tokens
            if not share:  # a batch of few rows: the others wait for this process, too
                part = [ids[:1] for ids in batch]
            is_last = piece == pieces - 1
            # Processes average their gradients, which are to be added up.
            scale = share * processes.count
            exchange = nullcontext() if is_last else self._without_exchange()
            with lost_process(), exchange:
                loss = self.loss(*part, self.recipe.label_smoothing)
                torch.autograd.backward(loss * scale)
            value += loss.item() * share
        return value

    def _without_exchange(self) -> AbstractContextManager[None]:
        """Let gradients add up in this process alone."""
        if isinstance(self.loss, DistributedDataParallel):
            return self.loss.no_sync()
        return nullcontext()

    def _zero_gradients(self) -> None:
        for parameter in (*self.working.parameters(), *self.model.parameters()):
            parameter.grad = None

    @torch.no_grad()
    def _collect_gradients(self) -> None:
        if self.working is self.model:
            return
        ours, theirs = list(self.model.parameters()), list(self.working.parameters())
        gradients = [torch.empty_like(parameter) for parameter in ours]
        in_bf16 = [parameter.grad for parameter in theirs]
        torch._foreach_copy_(gradients, cast(list[Tensor], in_bf16))
        for own, copied, gradient in zip(ours, theirs, gradients, strict=True):
            own.grad, copied.grad = gradient, None

    @torch.no_grad()
    def _copy_to_working(self) -> None:
        if self.working is not self.model:
            ours, theirs = self.model.parameters(), self.working.parameters()
            torch._foreach_copy_(list(theirs), list(ours))

    @torch.no_grad()
    def _average(self) -> None:
        # Early on the average covers fewer steps, or it would remember the random
        # start.
        share = min(self.recipe.average, self.step / (self.step + 10))
        mean, new = self.averaged.parameters(), self.model.parameters()
        torch._foreach_lerp_(list(mean), list(new), 1 - share)


class _Loss(nn.Module):
    """`batch_loss` as a module, which is what DistributedDataParallel takes."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: Tensor, target_in: Tensor, target_out: Tensor, smoothing: float
    ) -> Tensor:
        return batch_loss(self.model, source, target_in, target_out, smoothing)


def common_precisions(device: str, processes: Processes) -> tuple[Precision, ...]:
    """Return what the devices of all processes multiply in hardware, the fastest last.

    All have to compute alike, else their weights drift apart.
    """
    here = hardware_precisions(device)
    everywhere = processes.total("bf16" in here) == processes.count
    return here if everywhere else ("fp32",)


def _optimizers(
    model: Transformer, recipe: Recipe, fastest: Precision
) -> list[torch.optim.Optimizer]:
    """Return what moves the weights; matrices alone decay."""
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    matrices = [parameter for parameter in layers if parameter.dim() > 1]
    embeddings = [model.source_embedding.weight, model.target_embedding.weight]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    decay, lr = recipe.weight_decay, recipe.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if recipe.optimizer == "muon":
        dtype = DTYPES[fastest]
        optimizers.append(Muon(matrices, lr=lr, weight_decay=decay, dtype=dtype))
    else:
        groups.append({"params": matrices, "weight_decay": decay})
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)
    return [*optimizers, adamw]
