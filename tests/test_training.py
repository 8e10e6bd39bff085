"""Training: the loss, the optimisers and a whole step, each computed a second way."""

import copy
import math
from unittest.mock import Mock

import pytest
import torch
from conftest import pairs
from torch import Tensor, nn
from torch.nn import functional as F

from data.batching import encode_pairs, make_batch, plan_batches
from data.tokenizer import END, PADDING, START, train_tokenizer
from model.config import ModelConfig
from model.hardware import hardware_precisions
from model.loss import batch_loss, linear_cross_entropy
from model.optimizer import Muon, orthogonalise
from model.search import search
from model.training import Diverged, Recipe, TrainingState
from model.transformer import Transformer

CONFIG = ModelConfig(
    source_vocabulary=40, target_vocabulary=50, width=16, heads=2, encoder_layers=2,
    decoder_layers=2, feed_forward=24, dropout=0.0, max_length=16,
)  # fmt: skip


def _model(seed: int = 0, **changes: float) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**(vars(CONFIG) | changes)))


def _batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return 30 pairs of unlike lengths: source, target_in and target_out."""
    generator = torch.Generator().manual_seed(seed)
    source, read, predicted = (torch.zeros(30, 9, dtype=torch.long) for _ in range(3))
    for row in range(30):
        s, t = torch.randint(1, 8, (2,), generator=generator).tolist()
        source[row, :s] = torch.randint(4, 40, (s,), generator=generator)
        source[row, s] = END
        target = torch.randint(4, 50, (t,), generator=generator)
        read[row, 0], read[row, 1 : t + 1] = START, target
        predicted[row, :t], predicted[row, t] = target, END
    return source, read, predicted


def _naive_loss(
    model: Transformer, batch: tuple[Tensor, ...], smoothing: float
) -> Tensor:
    """Return the loss by its definition, token by token, sentence by sentence."""
    total, tokens = torch.zeros(()), 0
    for source, read, predicted in zip(*batch, strict=True):
        real = predicted != PADDING
        log_probs = model(source[source != PADDING][None], read[read != PADDING][None])
        log_probs = log_probs[0].log_softmax(-1)
        for row, token in zip(log_probs, predicted[real], strict=True):
            wanted = torch.full((len(row),), smoothing / len(row))
            wanted[token] += 1 - smoothing
            total = total - (wanted * row).sum()
            tokens += 1
    return total / tokens


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_and_its_gradient_are_those_of_every_token(smoothing: float) -> None:
    model, batch = _model(), _batch()
    expected = _naive_loss(model, batch, smoothing)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    loss = batch_loss(model, *batch, smoothing)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    found = torch.autograd.grad(loss, list(model.parameters()))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)


def test_the_loss_equals_torchs_without_a_gradient() -> None:
    model, (source, read, predicted) = _model(), _batch(1)
    with torch.no_grad():
        found = batch_loss(model, source, read, predicted, 0.1)
        expected = F.cross_entropy(
            model(source, read).flatten(0, 1), predicted.flatten(),
            ignore_index=PADDING, label_smoothing=0.1,
        )  # fmt: skip
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_and_its_gradient_in_bf16(smoothing: float) -> None:
    """As near to fp32's as bf16 can be; and padded rows have no gradient."""
    torch.manual_seed(2)
    hidden = torch.randn(80, 16).bfloat16().requires_grad_()
    weight = torch.randn(50, 16).mul_(0.5).bfloat16().requires_grad_()
    truth = torch.randint(0, 50, (80,))
    loss = linear_cross_entropy(hidden, weight, truth, 70, smoothing)
    found = torch.autograd.grad(loss, [hidden, weight])
    exact = [hidden.detach().float(), weight.detach().float()]
    logits = F.linear(exact[0].requires_grad_()[:70], exact[1].requires_grad_())
    expected = F.cross_entropy(logits, truth[:70], label_smoothing=smoothing)
    assert loss.item() == pytest.approx(expected.item(), abs=2e-3)
    for mine, other in zip(found, torch.autograd.grad(expected, exact), strict=True):
        assert (mine.float() - other).norm() < 0.01 * other.norm()
    assert not found[0][70:].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_probability_too_small_for_fp32_has_its_true_loss(smoothing: float) -> None:
    """By hand: logits 0 and -1,000, in a second row 3,000 and 0, the second true."""
    hidden, weight = torch.tensor([[-1.0], [3.0]]), torch.tensor([[0.0], [1_000.0]])
    found = linear_cross_entropy(hidden, weight, torch.tensor([1, 0]), 2, smoothing)
    by_row = [1_000 * (1 - smoothing / 2), 3_000 * (1 - smoothing / 2)]
    assert found.item() == pytest.approx(sum(by_row) / 2)


def test_the_loss_may_be_scaled() -> None:
    model, batch = _model(), _batch()
    wanted = torch.autograd.grad(batch_loss(model, *batch), list(model.parameters()))
    found = torch.autograd.grad(batch_loss(model, *batch) * 3, list(model.parameters()))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other * 3)


# ----------------------------------------------------------------------- optimisers


def _problem(seed: int, shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*s, generator=generator)) for s in shapes]


def _set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_moves_as_torchs_own(decay: float) -> None:
    shapes = [(12, 12), (12, 12), (30, 12), (12, 30), (5, 64)]
    ours, theirs, start = (_problem(0, shapes) for _ in range(3))
    mine = Muon(ours, lr=0.02, weight_decay=decay)
    other = torch.optim.Muon(
        theirs, lr=0.02, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(8):
        for group in (*mine.param_groups, *other.param_groups):
            group["lr"] = 0.02 / (step + 1)
        _set_gradients(ours, step)
        _set_gradients(theirs, step)
        mine.step()
        other.step()
        for a, b, before in zip(ours, theirs, start, strict=True):
            # Equal but for the order of sums in bf16, which is the processor's.
            assert (a - b).norm() < 0.01 * (b - before).norm()


def test_a_stack_moves_as_its_matrices_do() -> None:
    [stack] = _problem(1, [(3, 8, 8)])
    single = [nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    [lone] = _problem(2, [(8, 8)])
    lone_twin = nn.Parameter(lone.detach().clone())
    stacked, separate = Muon([stack, lone], lr=0.1), Muon([*single, lone_twin], lr=0.1)
    for step in range(5):
        _set_gradients([stack, lone], step)
        for matrix, gradient in zip(single, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        lone_twin.grad = lone.grad.clone()
        stacked.step()
        separate.step()
    torch.testing.assert_close(stack, torch.stack(single))
    torch.testing.assert_close(lone, lone_twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 10, 10), (1, 40, 10), (3, 10, 40)])
def test_orthogonalise_gives_singular_values_near_one(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 50
    made = orthogonalise(matrices, dtype)
    assert made.dtype == dtype
    made = made.float()
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5 and values.max() < 1.3
    # It turns each matrix to its polar factor U V^T.
    U, _, Vh = torch.linalg.svd(matrices, full_matrices=False)
    alike = F.cosine_similarity(made.flatten(1), (U @ Vh).flatten(1))
    assert alike.min() > 0.97
    assert (orthogonalise(torch.zeros(1, 4, 4)) == 0).all()


@pytest.mark.parametrize("shape", [(20, 20), (20, 29), (20, 31), (60, 20)])
@pytest.mark.parametrize("lowest", [1e-6, 1.0])
def test_orthogonalise_puts_singular_values_through_its_polynomial(
    shape: tuple[int, int], lowest: float
) -> None:
    """As the numbers by themselves, also of a matrix that is nearly of a low rank."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(shape, generator=generator, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(random, full_matrices=False)
    values = torch.logspace(math.log10(lowest), 0, 20, dtype=torch.float64)
    made = orthogonalise((U * values @ Vh)[None].float(), torch.float32)[0]
    values /= values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(made.double(), U * values @ Vh, rtol=0, atol=5e-4)


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda"])
def test_bf16_is_left_alone_where_no_hardware_multiplies_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There one step of Muon took 13 seconds in bf16; in fp32 it takes 0.2.
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **options: False)
    assert hardware_precisions.__wrapped__(device) == ("fp32",)


@pytest.mark.parametrize(
    ("here", "others", "dtype"),
    [(True, 1, torch.bfloat16), (True, 0, torch.float32), (False, 1, torch.float32)],
)
def test_processes_make_matrices_orthogonal_alike(
    here: bool, others: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes the other's hardware may multiply bf16, or not."""
    monkeypatch.setattr(
        "model.training.hardware_precisions",
        lambda device: ("fp32", "bf16") if here else ("fp32",),
    )
    two = Mock(count=2, total=lambda value: value + others)
    monkeypatch.setattr("model.training.DistributedDataParallel", lambda loss: loss)
    state = TrainingState(_model(), Recipe(optimizer="muon"), "fp32", two)
    muon, _ = state.optimizers
    assert isinstance(muon, Muon) and muon.dtype == dtype


def test_a_parameter_without_a_gradient_stays() -> None:
    ours = _problem(0, [(4, 4), (4, 4)])
    before = ours[1].detach().clone()
    ours[0].grad = torch.ones(4, 4)
    Muon(ours, lr=0.1, weight_decay=0.5).step()
    assert torch.equal(ours[1], before)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_moved_once(optimizer: str) -> None:
    state = TrainingState(_model(), Recipe(optimizer=optimizer), "fp32")
    groups = [g for o in state.optimizers for g in o.param_groups]
    moved = [id(p) for group in groups for p in group["params"]]
    assert sorted(moved) == sorted(id(p) for p in state.model.parameters())
    for group in groups:
        decays = {parameter.dim() > 1 for parameter in group["params"]}
        assert decays == {group["weight_decay"] > 0}


# --------------------------------------------------------------------------- a step


def test_the_learning_rate_by_hand() -> None:
    """Warm-up of 4 of 10 steps, then 7 equal falls; 0 would be reached at step 11."""
    recipe = Recipe(learning_rate=7.0, warmup=3)
    expected = [7 / 3, 14 / 3, 7, 7, 6, 5, 4, 3, 2, 1]
    found = [recipe.learning_rate_at(step, 10) for step in range(1, 11)]
    assert found == pytest.approx([min(e, (11 - s) * 7 / 8) for s, e in
                                   enumerate(expected, 1)])  # fmt: skip


@pytest.mark.parametrize("warmup", [0, 1, 3, 100_000])
@pytest.mark.parametrize("steps", [1, 2, 7, 1_000])
def test_any_schedule_rises_then_falls_and_stays_positive(
    warmup: int, steps: int
) -> None:
    recipe = Recipe(learning_rate=1.0, warmup=warmup)
    rates = [recipe.learning_rate_at(step, steps) for step in range(1, steps + 1)]
    assert all(0 < rate <= 1 for rate in rates)
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert top <= max(steps // 3, warmup if warmup < steps // 3 else 0)


def test_a_step_by_hand() -> None:
    """AdamW written with torch's own parts: loss, clipping, decay, averages."""
    recipe = Recipe(
        learning_rate=0.01, warmup=1, average=0.5, gradient_clip=0.1, weight_decay=0.5
    )
    state = TrainingState(_model(), recipe, "fp32")
    twin, average = _model(), [p.detach().clone() for p in _model().parameters()]
    matrices = [p for p in twin.parameters() if p.dim() > 1]
    vectors = [p for p in twin.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.5}, {"params": vectors,
         "weight_decay": 0.0}], betas=(0.9, 0.98),
    )  # fmt: skip
    for step in range(1, 5):
        batch = _batch(step)
        loss = state.train_step(*batch, steps=10)
        expected = F.cross_entropy(
            twin(batch[0], batch[1]).flatten(0, 1), batch[2].flatten(),
            ignore_index=PADDING, label_smoothing=0.1,
        )  # fmt: skip
        adamw.zero_grad()
        expected.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        for group in adamw.param_groups:
            group["lr"] = 0.01 * (11 - step) / 10
        adamw.step()
        share = min(0.5, step / (step + 10))
        average = [share * mean + (1 - share) * p.detach() for mean, p in
                   zip(average, twin.parameters(), strict=True)]  # fmt: skip
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        assert state.step == step
    for mine, other in zip(state.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)
    for mine, other in zip(state.averaged.parameters(), average, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)
    assert not state.averaged.training and state.model.training


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_bf16_stays_close_to_fp32(optimizer: str) -> None:
    recipe = Recipe(optimizer=optimizer, learning_rate=0.01, warmup=1)
    plain, half = (TrainingState(_model(width=32), recipe, p) for p in ("fp32", "bf16"))
    for step in range(12):
        batch = _batch(step % 2)
        losses = [state.train_step(*batch, steps=30) for state in (plain, half)]
        assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert losses[0] < 3.5  # it has learned from where it began, 3.9
    for mine, working in zip(
        half.model.parameters(), half.working.parameters(), strict=True
    ):
        assert mine.dtype == torch.float32 and working.dtype == torch.bfloat16
        assert torch.equal(mine.bfloat16(), working)
        assert mine.grad is None or (mine.grad == 0).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_saved_state_goes_on_bit_for_bit(precision: str, optimizer: str) -> None:
    recipe = Recipe(optimizer=optimizer, warmup=2)
    whole = TrainingState(_model(dropout=0.2), recipe, precision)
    for step in range(4):
        whole.train_step(*_batch(step), steps=20)
    saved = copy.deepcopy(whole.state_dict())
    expected = [whole.train_step(*_batch(step), steps=20) for step in range(4, 9)]
    resumed = TrainingState(_model(seed=7, dropout=0.2), recipe, precision)
    resumed.load_state_dict(saved)
    assert resumed.step == 4
    found = [resumed.train_step(*_batch(step), steps=20) for step in range(4, 9)]
    assert found == expected
    for part in ("model", "averaged"):
        mine, other = getattr(resumed, part), getattr(whole, part)
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_loss_that_is_no_number_stops_before_it_spoils_the_weights() -> None:
    state = TrainingState(_model(), Recipe(learning_rate=1.0, warmup=1), "fp32")
    state.train_step(*_batch(), steps=10)
    before = [p.detach().clone() for p in state.model.parameters()]
    with torch.no_grad():
        keep = state.model.decoder_norm.bias[0].clone()
        state.model.decoder_norm.bias[0] = math.nan
    with pytest.raises(Diverged, match=r"the loss is nan at step 2 \(learning rate 9"):
        state.train_step(*_batch(), steps=10)
    with torch.no_grad():
        state.model.decoder_norm.bias[0] = keep
    for a, b in zip(state.model.parameters(), before, strict=True):
        assert torch.equal(a, b)


def test_nor_does_a_gradient_that_is_no_number() -> None:
    state = TrainingState(_model(), Recipe(warmup=1), "fp32")
    before = [p.detach().clone() for p in state.model.parameters()]
    state.model.decoder_norm.bias.register_hook(lambda of_bias: of_bias * math.inf)
    with pytest.raises(Diverged, match="the gradient's norm is (inf|nan) at step 1"):
        state.train_step(*_batch(), steps=10)
    for a, b in zip(state.model.parameters(), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_tokens", 0), ("learning_rate", 0.0), ("learning_rate", math.nan),
     ("gradient_clip", -1.0), ("label_smoothing", 1.0), ("average", 1.0),
     ("warmup", -1), ("weight_decay", -0.1), ("weight_decay", math.nan)],
)  # fmt: skip
def test_impossible_recipes_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_memorises_eight_pairs(optimizer: str) -> None:
    eight = pairs()[::8][:4] + pairs()[5::9][:4]
    source = train_tokenizer([a for a, _ in eight], 330, "source")
    target = train_tokenizer([b for _, b in eight], 340, "target")
    encoded = encode_pairs(
        [source.encode(a) for a, _ in eight], [target.encode(b) for _, b in eight],
        START, END,
    )  # fmt: skip
    torch.manual_seed(1)
    config = ModelConfig(len(source), len(target), width=32, feed_forward=64,
                         encoder_layers=2, dropout=0.0, max_length=48)  # fmt: skip
    recipe = Recipe(learning_rate=4e-3, warmup=10, average=0.9, optimizer=optimizer)
    state = TrainingState(Transformer(config), recipe, "fp32")
    [rows] = plan_batches(encoded, 10_000)
    batch = make_batch(encoded, rows, PADDING)
    for _ in range(120):
        state.train_step(batch.source, batch.target_in, batch.target_out, steps=120)
    found = search(state.averaged, batch.source)
    for row, [hypothesis] in zip(rows, found, strict=True):
        assert target.decode(hypothesis.ids) == eight[row][1]
        assert hypothesis.complete
