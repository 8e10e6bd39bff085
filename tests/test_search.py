"""Beam search: against enumeration, a second implementation, and by hand."""

import itertools
import math
from collections.abc import Callable, Sequence
from threading import Event

import pytest
import torch
from conftest import pairs
from torch import Tensor
from torch.nn import functional as F

from explain.translator import Translator
from model.config import ModelConfig
from model.engine import (
    BATCH_TOKENS,
    SENTENCES_PER_THREAD,
    Hypothesis,
    Precision,
    batches,
    usual_size,
)
from model.search import (
    TorchEngine,
    _largest,
    _Sentence,
    _staying,
    search,
)
from model.transformer import Cache, Transformer

PADDING, START, END, A, B = 0, 1, 2, 3, 4
SOURCE = torch.tensor([[A, END]])
Script = Callable[[tuple[int, ...]], Sequence[float]]
"""From the tokens so far to the probabilities of each next id."""


class Prefixes:
    """The cache of a scripted model: what each hypothesis has read."""

    def __init__(self, rows: int) -> None:
        self.rows: list[tuple[int, ...]] = [()] * rows

    def reorder(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]

    def select(self, sentences: Tensor) -> None:
        pass


class Scripted:
    """A model whose probabilities are given, with a vocabulary of 5."""

    def __init__(self, script: Script, max_length: int = 10) -> None:
        self.script = script
        self.config = ModelConfig(5, 5, width=2, heads=1, max_length=max_length)

    def start(self, source_ids: Tensor, beam: int) -> Prefixes:
        return Prefixes(len(source_ids) * beam)

    def step(self, token_ids: Tensor, cache: Prefixes) -> Tensor:
        cache.rows = [(*row, token) for row, token in
                      zip(cache.rows, token_ids.tolist(), strict=True)]  # fmt: skip
        assert all(row[0] == START for row in cache.rows)
        table = torch.tensor([self.script(row[1:]) for row in cache.rows])
        return table.log()


def random_script(seed: int) -> Script:
    """Return random probabilities of end, A and B after each prefix."""

    def script(prefix: tuple[int, ...]) -> list[float]:
        key = sum(token * 7**place for place, token in enumerate(prefix)) + 1
        generator = torch.Generator().manual_seed(seed * 100_003 + key)
        shares = torch.rand(3, generator=generator, dtype=torch.float64) + 0.05
        return [0.0, 0.0, *(shares / shares.sum()).tolist()]

    return script


def log_probability(script: Script, ids: Sequence[int]) -> float:
    """Return that of ids, the first token of which cannot be the end mark."""
    total = 0.0
    for place, token in enumerate(ids):
        shares = list(script(tuple(ids[:place])))
        total += math.log(shares[token])
    return total


def test_a_wide_beam_finds_what_enumeration_finds() -> None:
    for seed in range(10):
        script = random_script(seed)
        texts = [t for n in range(1, 5) for t in itertools.product((A, B), repeat=n)]
        expected = {}
        for text in texts:
            ids = text if len(text) == 4 else (*text, END)
            complete = len(text) < 4
            expected[text, complete] = log_probability(script, ids)
        [found] = search(Scripted(script), SOURCE, beam=40, max_steps=4)
        assert len(found) == len(expected) == 30
        for hypothesis in found:
            total = expected[hypothesis.ids, hypothesis.complete]
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)
            expected_score = total / (len(hypothesis.ids) + hypothesis.complete)
            assert hypothesis.score == pytest.approx(expected_score, abs=1e-5)
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)


def test_a_beam_finds_the_best_path_that_greedy_misses() -> None:
    """A: 0.6, then nothing good. B: 0.4, then the end, almost surely."""
    table = {
        (): [0, 0, 0, 0.6, 0.4],
        (A,): [0, 0, 0.3, 0.4, 0.3],
        (B,): [0, 0, 0.9, 0.05, 0.05],
    }
    model = Scripted(lambda prefix: table.get(prefix, [0, 0, 0.5, 0.25, 0.25]))
    [[greedy]] = search(model, SOURCE, beam=1)
    assert greedy.ids == (A, A)
    assert greedy.log_probability == pytest.approx(math.log(0.6 * 0.4 * 0.5), abs=1e-6)
    [[best, second]] = search(model, SOURCE, beam=2)
    assert best == Hypothesis((B,), best.log_probability, best.score, complete=True)
    assert best.log_probability == pytest.approx(math.log(0.4 * 0.9), abs=1e-6)
    assert second == greedy


def test_ctranslate2s_rules_by_hand() -> None:
    """Beam 2. Step 2's four candidates, best first:

    (B, end) 0.35 ends in place 0; (A, A) 0.30 goes on in place 1; (A, end) 0.15 ends,
    but beyond the first two, so it is no hypothesis; (A, B) 0.12 takes place 0.
    Step 3: (A, A, end) 0.21 ends in place 0, the second hypothesis, and that is all:
    (A, B, end), with 0.1188 in place 1 at best, is never asked for.
    """
    table = {
        (): [0, 0, 0, 0.60, 0.40],
        (A,): [0, 0, 0.25, 0.50, 0.25],
        (B,): [0, 0, 0.875, 0.0625, 0.0625],
        (A, A): [0, 0, 0.70, 0.15, 0.15],
        (A, B): [0, 0, 0.4, 0.3, 0.3],
    }
    [found] = search(Scripted(table.__getitem__), SOURCE, beam=2, length_penalty=0)
    assert [hypothesis.ids for hypothesis in found] == [(B,), (A, A)]
    assert [h.log_probability for h in found] == pytest.approx(
        [math.log(0.35), math.log(0.21)], abs=1e-6
    )
    # Divided by the tokens, the end mark one of them, (A, A) wins: ln 0.21 / 3 = -0.52
    # against ln 0.35 / 2 = -0.525.
    [found] = search(Scripted(table.__getitem__), SOURCE, beam=2, length_penalty=1)
    assert [hypothesis.ids for hypothesis in found] == [(A, A), (B,)]
    assert [h.score for h in found] == pytest.approx(
        [math.log(0.21) / 3, math.log(0.35) / 2], abs=1e-6
    )


def test_without_a_length_penalty_the_first_place_has_to_end() -> None:
    """Beam 2. Step 2: (A, A) 0.36 leads, (A, end) 0.24 ends in place 1 and so does
    (A, A, end) at step 3, where (A, A, A) 0.216 leads. These are two hypotheses; but
    (A, A, A, end) 0.2052 is better than (A, A, end) 0.144, so the search goes on.
    """
    table = {
        (): [0, 0, 0, 0.60, 0.40],
        (A,): [0, 0, 0.40, 0.60, 0],
        (B,): [0, 0, 0.20, 0.50, 0.30],
        (A, A): [0, 0, 0.40, 0.60, 0],
        (A, A, A): [0, 0, 0.95, 0.05, 0],
    }
    model = Scripted(lambda prefix: table.get(prefix, [0, 0, 0.3, 0.4, 0.3]))
    [found] = search(model, SOURCE, beam=2, length_penalty=0)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (A, A, A)]
    [found] = search(model, SOURCE, beam=2, length_penalty=1e-3)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (A, A)]


def by_the_rules(
    script: Script, beam: int, penalty: float, cap: int
) -> list[tuple[tuple[int, ...], float, bool]]:
    """CTranslate2's search for one sentence, written over lists of tuples."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[tuple[tuple[int, ...], float, bool]] = []
    first_ended = False
    for step in range(1, cap + 1):
        grown = [
            ((*text, token), total + math.log(share))
            for text, total in live
            for token, share in enumerate(script(text))
            if share > 0 and not (step == 1 and token == END)
        ]
        grown.sort(key=lambda candidate: -candidate[1])
        grown = grown[: 2 * beam]
        first, spare = grown[:beam], grown[beam:]
        first_ended |= first[0][0][-1] == END
        live = []
        for text, total in first:
            if text[-1] == END or step == cap:
                complete = text[-1] == END
                done.append((text[:-1] if complete else text, total, complete))
                while spare and spare[0][0][-1] == END:
                    spare.pop(0)
                if spare:
                    live.append(spare.pop(0))
            else:
                live.append((text, total))
        if len(done) >= beam and (first_ended or penalty != 0):
            break
    scored = [
        (t, total / (len(t) + whole) ** penalty, whole) for t, total, whole in done
    ]
    return sorted(scored, key=lambda one: -one[1])[:beam]


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_equals_the_rules_written_a_second_time(beam: int, penalty: float) -> None:
    for seed in range(12):
        script, cap = random_script(seed), 3 + seed % 5
        expected = by_the_rules(script, beam, penalty, cap)
        sources = SOURCE.expand(9 if seed % 2 else 1, -1)  # 9 are filled up to 10
        ranked = search(Scripted(script), sources, beam, penalty, max_steps=cap)
        assert len(ranked) == len(sources)
        for found in ranked:
            assert [(h.ids, h.complete) for h in found] == [
                (t, c) for t, _, c in expected
            ]
            assert [h.score for h in found] == pytest.approx(
                [score for _, score, _ in expected], abs=1e-5
            )


def test_at_least_one_token() -> None:
    model = Scripted(lambda prefix: [0, 0, 0.98, 0.015, 0.005])
    for beam in (1, 2):
        for hypothesis in search(model, SOURCE, beam)[0]:
            assert hypothesis.ids in {(A,), (B,)} and hypothesis.complete
    [[best]] = search(model, SOURCE)
    # The end mark's share was not given to the others: scores stay comparable.
    assert best.log_probability == pytest.approx(math.log(0.015 * 0.98), abs=1e-6)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_that_finds_no_end_stops_at_the_cap(beam: int) -> None:
    model = Scripted(lambda prefix: [0, 0, 1e-9, 0.7, 0.3], max_length=6)
    for cap, length in ((3, 3), (None, 6), (100, 6)):
        [found] = search(model, SOURCE, beam, max_steps=cap)
        assert len(found) == beam
        assert not any(hypothesis.complete for hypothesis in found)
        assert {len(hypothesis.ids) for hypothesis in found} == {length}
        assert found[0].ids == (A,) * length
        assert found[0].score == pytest.approx(math.log(0.7), abs=1e-6)


@pytest.mark.parametrize("beam", [0, -1])
def test_no_beam_is_refused(beam: int) -> None:
    with pytest.raises(ValueError, match=f"beam is {beam}: give"):
        search(Scripted(random_script(0)), SOURCE, beam)


# ------------------------------------------------------------------ with a real model


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A random model that ends some sentences soon, some late and some never."""
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary=20, target_vocabulary=9, width=16, heads=2, encoder_layers=2,
        decoder_layers=2, feed_forward=24, max_length=24,
    )  # fmt: skip
    made = Transformer(config).eval()
    with torch.no_grad():
        made.source_embedding.weight.mul_(2)
        made.target_embedding.weight.mul_(0.3)
        made.decoder_norm.weight.mul_(8)
    return made


def _sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    lengths = torch.randint(1, 12, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, 20, (length,), generator=generator).tolist(), END]
        for length in lengths
    ]


@torch.inference_mode()
def _greedy(model: Transformer, source: list[int]) -> tuple[tuple[int, ...], float]:
    """Greedy search as a beginner writes it: the whole prefix anew at each step."""
    ids, total = [START], 0.0
    while len(ids) <= model.config.max_length:
        log_probs = model(torch.tensor([source]), torch.tensor([ids]))[0, -1]
        log_probs = log_probs.log_softmax(-1)
        if len(ids) == 1:
            log_probs[END] = -math.inf
        token = int(log_probs.argmax())
        total += log_probs[token].item()
        if token == END:
            break
        ids.append(token)
    return tuple(ids[1:]), total


@pytest.mark.parametrize("sources", [_sources(30), [[7, END]]])
def test_beam_1_is_greedy_search(model: Transformer, sources: list[list[int]]) -> None:
    longest = max(map(len, sources))
    padded = torch.tensor([s + [PADDING] * (longest - len(s)) for s in sources])
    found = search(model, padded, beam=1)
    for source, [hypothesis] in zip(sources, found, strict=True):
        ids, total = _greedy(model, source)
        assert hypothesis.ids == ids
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-4)
        assert hypothesis.complete == (len(ids) < 24)
    if len(sources) > 1:
        assert len({len(hypothesis.ids) for [hypothesis] in found}) > 3


@torch.inference_mode()
@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
def test_scores_are_the_teacher_forced_ones(model: Transformer, penalty: float) -> None:
    checked = 0
    for source in _sources(12):
        ids = torch.tensor([source])
        for hypothesis in search(model, ids, beam=4, length_penalty=penalty)[0]:
            out = [*hypothesis.ids, *([END] if hypothesis.complete else [])]
            logits = model(ids, torch.tensor([[START, *out[:-1]]]))[0]
            chosen = logits.log_softmax(-1)[range(len(out)), out]
            total = chosen.sum().item()
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-4)
            expected = total / len(out) ** penalty
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)
            checked += 1
    assert checked == 12 * 4


def _sentences() -> list[str]:
    """200 sentences: those of the corpus and mixtures of them, short and long."""
    known = [source for source, _ in pairs()]
    mixed = [f"{a} {b}" for a in known[:17] for b in known[40:48]]
    return (known + mixed)[:200]


@pytest.mark.parametrize("beam", [1, 3])
def test_batches_and_neighbours_never_change_a_translation(
    translator: Translator, beam: int
) -> None:
    texts = _sentences()
    assert len(texts) == 200
    order = torch.randperm(200, generator=torch.Generator().manual_seed(2)).tolist()
    alone = None
    for size in (1, 7, 256):
        shuffled = [texts[i] for i in order]
        found = []
        for i in range(0, 200, size):
            found += translator.translate(shuffled[i : i + size], beam)
        by_text = dict(zip(shuffled, found, strict=True))
        if alone is None:
            alone = by_text
        for text in texts:
            assert [t.text for t in by_text[text]] == [t.text for t in alone[text]]
            assert [t.hypothesis.score for t in by_text[text]] == pytest.approx(
                [t.hypothesis.score for t in alone[text]], abs=1e-4
            )
        order.reverse()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_threads_share_out_is_translated_batch_by_batch(
    model: Transformer, beam: int, precision: Precision
) -> None:
    engine = TorchEngine.of(model, precision)
    generator = torch.Generator().manual_seed(5)
    count = 2 * SENTENCES_PER_THREAD + 1
    lengths = torch.randint(1, 8, (count,), generator=generator).tolist()
    sources = [[*_ids(length, generator), END] for length in lengths]
    found = engine.translate(sources, beam, max_steps=6)
    assert all(len(one.ids) <= 6 for ranked in found for one in ranked)
    cut = batches([len(ids) for ids in sources], beam, threads=2, usual=True)
    assert len(cut) > 1
    for rows in cut:
        alone = engine._search([sources[row] for row in rows], beam, 1.0, 6)
        assert [[one.ids for one in found[row]] for row in rows] == [
            [one.ids for one in ranked] for ranked in alone
        ]
    for refused in (0, -1):
        with pytest.raises(ValueError, match=f"beam is {refused}: give"):
            engine.translate(sources, refused)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("lengths", "beam", "threads", "cut"),
    [
        ([5, 2, 9, 2], 1, 1, [[2, 0, 1, 3]]),
        ([5, 2, 9, 2], 1, 2, [[2], [0, 1, 3]]),  # 9 and, padded, 15
        ([5, 2, 9, 2], 3, 2, [[2], [0, 1, 3]]),
        ([4, 4, 4, 4], 1, 2, [[0, 1], [2, 3]]),
        ([BATCH_TOKENS, 1, BATCH_TOKENS], 1, 1, [[0], [2], [1]]),
        ([], 4, 2, []),
    ],
)
def test_batches_hold_like_lengths_longest_first(
    lengths: list[int], beam: int, threads: int, cut: list[list[int]]
) -> None:
    assert batches(lengths, beam, threads) == cut


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("usual", [False, True])
def test_batches_are_as_large_as_they_may_be(
    threads: int, beam: int, usual: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 40, (3_000,), generator=generator).tolist()
    cut = batches(lengths, beam, threads, usual=usual)
    assert sorted(row for rows in cut for row in rows) == list(range(len(lengths)))
    assert not usual or all(len(rows) == usual_size(len(rows)) for rows in cut[:-1])
    sizes = [max(lengths[row] for row in rows) * len(rows) * beam for rows in cut]
    assert max(sizes) <= BATCH_TOKENS
    assert sum(sizes) < 1.1 * sum(lengths) * beam  # little of it is padding
    fill = 0.8 if usual else 0.9
    assert len(cut) < threads + sum(lengths) * beam / (fill * BATCH_TOKENS)
    few = [8] * 12 * threads  # all of them have room in one batch for each thread
    assert len(batches(few, beam, threads)) == threads


def _ids(length: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(5, 9, (length,), generator=generator).tolist()
    return ids


def test_a_search_that_is_told_to_stop_ends_at_its_next_step(
    model: Transformer,
) -> None:
    stop = Event()
    stop.set()
    assert search(model, torch.tensor([[7, END]]), stop=stop) == [[]]


def test_n_best_is_the_beams_own_order(translator: Translator) -> None:
    for text in _sentences()[:10]:
        [found] = translator.translate([text], beam=5)
        assert len(found) == 5
        scores = [one.hypothesis.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert len({one.hypothesis.ids for one in found}) == 5


@pytest.mark.parametrize(
    "beam", [1, 2, 3, 5]
)  # 9 * 3 tokens are no whole number of blocks
@pytest.mark.parametrize("block", [1, 2])
def test_blocks_change_no_hypothesis(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, beam: int, block: int
) -> None:
    source = torch.tensor([[7, END]])
    plain = search(model, source, beam)
    monkeypatch.setattr("model.search._SCORES_IN_BLOCK", block)
    monkeypatch.setattr("model.search._FEW_ROWS", 1)
    assert search(model, source, beam) == plain


@pytest.mark.parametrize(
    ("going", "size"),
    [(1, 1), (7, 7), (8, 8), (9, 10), (17, 20), (20, 20), (29, 32), (33, 40),
     (65, 80), (97, 99), (99, 99)],
)  # fmt: skip
def test_done_sentences_stay_until_a_smaller_size_is_reached(
    going: int, size: int
) -> None:
    """Of 99 sentences, the last ones go on, in the order in which they are."""
    sentences = [_Sentence(END, beam=1, length_penalty=1.0) for _ in range(99)]
    for sentence in sentences[: 99 - going]:
        sentence.add([5, END], -1.0, place=0)
    staying = _staying(sentences, usual=True)
    assert len(staying) == size
    assert staying == [*range(size - going), *range(99 - going, 99)]
    assert _staying(sentences, usual=False) == [*range(99 - going, 99)]


@pytest.mark.parametrize("beam", [1, 3])
def test_sizes_are_the_usual_ones_where_kernels_are_made_for_them(
    model: Transformer, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 11 sentences 12 are searched, and without such kernels 11."""
    generator = torch.Generator().manual_seed(5)
    sources = [[*_ids(length, generator), END] for length in [2, 5, 3] * 3 + [1, 4]]
    found, sizes = [], []
    start = model.start

    def watched(source_ids: Tensor, beam: int) -> Cache:
        sizes.append(len(source_ids))
        return start(source_ids, beam)

    monkeypatch.setattr(model, "start", watched)
    for usual in (True, False):
        monkeypatch.setattr("model.search.has_kernels_by_shape", lambda *_, x=usual: x)
        ranked = TorchEngine.of(model).translate(sources, beam, max_steps=6)
        found.append([[one.ids for one in some] for some in ranked])
    assert found[0] == found[1] and sizes == [12, 11]


@pytest.mark.parametrize(
    ("count", "below", "above"),
    [(0, 0, 0), (1, 1, 1), (7, 7, 7), (9, 8, 10), (10, 10, 10), (15, 14, 16),
     (16, 16, 16), (17, 16, 20), (127, 112, 128), (449, 448, 512)],
)  # fmt: skip
def test_usual_sizes(count: int, below: int, above: int) -> None:
    assert usual_size(count) == below and usual_size(count, up=True) == above


@pytest.mark.parametrize("beam", [1, 4])
def test_shapes_recur_over_many_sentences(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every batch would bring new kernels, and memory would grow with them.

    These sentences are multiplied in 60 and 133 shapes, and were in 170 and 326 when
    sizes were not chosen; the number went on growing.
    """
    shapes: set[tuple[int, ...]] = set()

    def product(
        x: Tensor, weight: Tensor, bias: Tensor | None, also: str, *_: object
    ) -> Tensor:
        shapes.add((x.numel(), *weight.shape, bias is not None))
        result = F.linear(x, weight, bias)
        return result.relu_() if also == "relu" else result

    monkeypatch.setattr("model.linear._onednn", lambda dtype: product)
    torch.manual_seed(1)
    config = ModelConfig(9, 9, width=16, heads=2, feed_forward=24, max_length=64)
    engine = TorchEngine.of(Transformer(config).eval())
    generator = torch.Generator().manual_seed(2)
    for count in range(500, 512):
        lengths = torch.randint(1, 30, (count,), generator=generator).tolist()
        sources = [[*_ids(length, generator), END] for length in lengths]
        engine.translate(sources, beam, max_steps=8)
    assert 0 < len(shapes) < 150


@pytest.mark.parametrize("columns", [50, 64 * 20, 64 * 20 + 37, 64 * 16])
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("rows", [3, 30])
def test_largest_is_topk(columns: int, count: int, rows: int) -> None:
    numbers = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(1))
    scores = numbers.view(rows, columns).double().log()
    scores[0, :40] = -math.inf
    values, places = _largest(scores, count)
    wanted = scores.topk(count)
    assert torch.equal(values, wanted.values)
    assert torch.equal(places, wanted.indices)
