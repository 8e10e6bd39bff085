"""Beam search, of which greedy search is the case of beam 1.

The rules are CTranslate2's, so that an exported model can be compared with this one:
each step takes the 2 x beam best continuations; those among the first `beam` that end
become hypotheses, and their places go to the next best that do not; a sentence is done
when it has `beam` hypotheses and, where the length penalty is 0, when the first place
has ended as well, since then no other can become better. A score is the sum of the
log-probabilities divided by the number of tokens ^ length_penalty, the end mark
included in both. (CTranslate2 4.8, asked for `beam` hypotheses. One thing differs: at
the first step it gives the end mark's share to the other tokens, so that all sums of a
sentence are larger by one number, 0.003 at most in 1,000 sentences of Tatoeba.)
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from model.config import ModelConfig
from model.engine import (
    Hypothesis,
    Precision,
    batches,
    in_order,
    threads_for,
    usual_size,
)
from model.linear import has_kernels_by_shape
from model.threads import compute_apart
from model.transformer import Transformer


class _Cache(Protocol):
    def reorder(self, rows: Tensor) -> None: ...
    def select(self, sentences: Tensor) -> None: ...


C = TypeVar("C", bound=_Cache)


class Decodable(Protocol[C]):
    """What a search needs of a model; `Transformer` has it."""

    config: ModelConfig

    def start(self, source_ids: Tensor, beam: int) -> C: ...
    def step(self, token_ids: Tensor, cache: C) -> Tensor: ...


@dataclass(frozen=True)
class TorchEngine:
    """Our own network, in eval mode, with the search below: an `Engine`."""

    model: Transformer
    searched: Transformer
    """What searches: the model, or its copy in bf16."""

    @classmethod
    def of(cls, model: Transformer, precision: Precision = "fp32") -> "TorchEngine":
        """Return the engine of a model; in bf16 it may choose another near-tie."""
        if precision == "fp32":
            return cls(model, model)
        return cls(model, copy.deepcopy(model).bfloat16())

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def _sizes_recur(self) -> bool:
        positions = self.searched.positions
        return has_kernels_by_shape(positions.dtype, positions.device.type)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
    ) -> list[list[Hypothesis]]:
        stop = Event()

        def search_rows(rows: Sequence[int]) -> list[list[Hypothesis]]:
            asked = [sources[row] for row in rows]
            return self._search(asked, beam, length_penalty, max_steps, stop)

        on_cpu = self.model.positions.device.type == "cpu"
        threads = threads_for(len(sources), torch.get_num_threads() if on_cpu else 1)
        lengths = [len(ids) for ids in sources]
        cut = batches(lengths, beam, threads, usual=self._sizes_recur)
        return in_order(cut, compute_apart(search_rows, cut, threads, stop))

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        beam: int,
        length_penalty: float,
        max_steps: int | None,
        stop: Event | None = None,
    ) -> list[list[Hypothesis]]:
        longest, padding = max(map(len, sources)), self.config.padding_id
        rows = [[*ids, *[padding] * (longest - len(ids))] for ids in sources]
        ids = torch.tensor(rows, device=self.model.positions.device)
        recur = self._sizes_recur
        return search(self.searched, ids, beam, length_penalty, max_steps, stop, recur)


@torch.inference_mode()
def search(
    model: Decodable[C],
    source_ids: Tensor,
    beam: int = 1,
    length_penalty: float = 1.0,
    max_steps: int | None = None,
    stop: Event | None = None,
    usual: bool = True,
) -> list[list[Hypothesis]]:
    """Return each sentence's hypotheses, best first, at most `beam` of them.

    source_ids is (B, S), padded, each row closed by the end mark. max_steps caps the
    tokens of a hypothesis; without it the model's own limit does. The model is to be in
    eval mode. Once `stop` is set, what has been found by then is returned. With `usual`
    the batch is always of a usual size, which some fill up. Raises `ValueError` for a
    beam or a cap below 1.
    """
    for name, value in (("beam", beam), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}: give a whole number from 1 up")
    device, limit = source_ids.device, model.config.max_length
    cap = min(max_steps or limit, limit)
    found = [
        _Sentence(model.config.end_id, beam, length_penalty)
        for _ in range(len(source_ids))
    ]
    batch = found
    if usual:
        batch, source_ids = _filled_up(found, source_ids)
    cache = model.start(source_ids, beam)
    tokens = torch.full((len(batch) * beam,), model.config.start_id, device=device)
    texts = tokens.new_empty(len(tokens), 0)
    totals = torch.full(tokens.shape, -math.inf, device=device)
    totals[::beam] = 0.0  # all hypotheses are the same yet: let only one have children

    for step in range(1, cap + 1):
        logits = model.step(tokens, cache)  # (B*beam, V)
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        if step == 1:
            log_probs[:, model.config.end_id] = -math.inf  # at least one token
        best, origin, last_tokens = _extend(totals, log_probs, beam)
        chosen = _finish(batch, best, last_tokens, texts[origin], last=step == cap)
        stopped = stop is not None and stop.is_set()
        if stopped or step == cap or all(sentence.done for sentence in batch):
            break
        staying = _staying(batch, usual)
        kept = torch.tensor(staying, device=device)
        if len(staying) < len(batch):
            batch = [batch[row] for row in staying]
            cache.select(kept)
        totals, rows, tokens = (
            found_here[kept].gather(1, chosen[kept]).flatten()
            for found_here in (best, origin, last_tokens)
        )
        if beam > 1 or len(rows) < len(texts):
            cache.reorder(rows)
        texts = torch.cat([texts[rows], tokens[:, None]], dim=1)
    return [sentence.ranked() for sentence in found]


def _filled_up(
    sentences: list["_Sentence"], source_ids: Tensor
) -> tuple[list["_Sentence"], Tensor]:
    """Return a batch of a usual size, and its sources, (B, S).

    What fills it up is the last sentence again, of which nothing is asked.
    """
    more = usual_size(len(sentences), up=True) - len(sentences)
    if more == 0:
        return sentences, source_ids
    done = [_Sentence(sentences[0].end_id, beam=0, length_penalty=1.0)] * more
    return sentences + done, torch.cat([source_ids, source_ids[-1:].expand(more, -1)])


def _staying(batch: Sequence["_Sentence"], usual: bool) -> list[int]:
    """Return the places of the sentences that stay in the batch.

    With `usual` a done one stays as well until enough are done for a smaller batch of a
    usual size.
    """
    going = [place for place, sentence in enumerate(batch) if not sentence.done]
    if not usual:
        return going
    done = [place for place, sentence in enumerate(batch) if sentence.done]
    size = usual_size(len(going), up=True)
    return sorted(going + done[: size - len(going)])


def _extend(
    totals: Tensor, log_probs: Tensor, beam: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the 2 x beam best continuations of each sentence's hypotheses.

    totals is (B*beam,), log_probs (B*beam, V), which is overwritten. The results are
    (B, 2*beam): the sums, the rows that they continue, and the tokens that they add. Of
    a greedy search they are (B, 1): it is done when the best one ends, and asks for no
    second.
    """
    rows, V = log_probs.shape
    if beam == 1:
        best, tokens = _largest(log_probs, 1)
        origin = torch.arange(rows, device=totals.device)[:, None]
        return best + totals[:, None], origin, tokens
    sums = log_probs.add_(totals[:, None]).view(rows // beam, beam * V)
    best, flat = _largest(sums, 2 * beam)
    first = torch.arange(0, rows, beam, device=totals.device)[:, None]
    return best, first + flat // V, flat % V


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `scores.topk(count)` of scores, (B, C): (B, count) values and places.

    Looks at the blocks with the largest maxima alone, since topk copies every number
    together with its place: 0.51 → 0.26 ms for 8 of 85 x 16,000, beside 2.6 ms of the
    product that makes such scores.
    """
    B, C = scores.shape
    blocks, rest = divmod(C, _SCORES_IN_BLOCK)
    if blocks < 2 * count or B < _FEW_ROWS:
        values, places = scores.topk(count)
        return values, places
    whole = scores[:, : C - rest].reshape(B, blocks, _SCORES_IN_BLOCK)
    chosen = whole.amax(dim=2).topk(count)[1]  # (B, count)
    kept = whole.gather(
        1, chosen[:, :, None].expand(B, count, _SCORES_IN_BLOCK)
    ).flatten(1)
    first = torch.arange(_SCORES_IN_BLOCK, device=scores.device)
    places = (chosen[:, :, None] * _SCORES_IN_BLOCK + first).flatten(1)
    if rest:
        last = torch.arange(C - rest, C, device=scores.device).expand(B, rest)
        kept = torch.cat([kept, scores[:, C - rest :]], dim=1)
        places = torch.cat([places, last], dim=1)
    values, found = kept.topk(count)
    return values, places.gather(1, found)


# Scores in a block: with 8 blocks of 64 kept of 250, both stages are short.
_SCORES_IN_BLOCK = 64
# Rows of scores for which `topk` is as fast.
_FEW_ROWS = 8


class _Sentence:
    """The hypotheses found for one sentence so far."""

    def __init__(self, end_id: int, beam: int, length_penalty: float) -> None:
        self.end_id, self.beam, self.length_penalty = end_id, beam, length_penalty
        self.hypotheses: list[Hypothesis] = []
        self.first_ended = False

    @property
    def done(self) -> bool:
        enough = len(self.hypotheses) >= self.beam
        return enough and (self.first_ended or self.length_penalty != 0)

    def add(self, ids: Sequence[int], log_probability: float, place: int) -> None:
        """Take the hypothesis of a place; its last id may be the end mark."""
        self.first_ended = self.first_ended or place == 0
        complete = ids[-1] == self.end_id
        text = ids[:-1] if complete else ids
        self.hypotheses.append(
            Hypothesis.scored(text, log_probability, self.length_penalty, complete)
        )

    def ranked(self) -> list[Hypothesis]:
        ranked = sorted(self.hypotheses, key=lambda found: -found.score)
        return ranked[: self.beam]


def _finish(
    batch: list[_Sentence], best: Tensor, tokens: Tensor, texts: Tensor, last: bool
) -> Tensor:
    """Give each sentence the hypotheses that end here; return who takes each place.

    best and tokens are `_extend`'s, (B, 2*beam): the candidates' sums and last tokens;
    texts, (B, 2*beam, t), is what came before. At the last step all of the first `beam`
    candidates end. The result is (B, beam): for each place the candidate that goes on.
    """
    beam = batch[0].beam
    chosen = torch.arange(beam, device=best.device).repeat(len(batch), 1)
    ends = tokens[:, :beam] == batch[0].end_id
    rows = range(len(batch)) if last else ends.any(dim=1).nonzero().flatten().tolist()
    for row in rows:
        sentence = batch[row]
        if sentence.done:
            continue
        last_tokens, sums = tokens[row].tolist(), best[row].tolist()
        substitutes = (
            place
            for place in range(beam, len(sums))
            if last_tokens[place] != sentence.end_id
        )
        for place in range(beam):
            if sums[place] == -math.inf:
                continue
            if last or last_tokens[place] == sentence.end_id:
                text = texts[row, place].tolist()
                sentence.add([*text, last_tokens[place]], sums[place], place)
                chosen[row, place] = next(substitutes, place)
    return chosen
