"""The whole network: what may not change a logit, and parity with torch.nn."""

import itertools
import math
import platform
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from model.attention import VECTOR, MultiHeadAttention, Trace
from model.config import ModelConfig
from model.layers import FeedForward, dropout_mask, sinusoidal_positions
from model.linear import FEWEST_ROWS, _onednn, has_kernels_by_shape, linear
from model.packing import Packing
from model.transformer import Transformer

CONFIG = ModelConfig(
    source_vocabulary=31, target_vocabulary=37, width=24, heads=3, encoder_layers=3,
    decoder_layers=2, feed_forward=40, dropout=0.1, max_length=48,
)  # fmt: skip
END, START, PADDING = CONFIG.end_id, CONFIG.start_id, CONFIG.padding_id


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A model whose norms and biases matter as well."""
    torch.manual_seed(0)
    made = Transformer(CONFIG)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def _ids(rows: int, length: int, vocabulary: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, vocabulary, (rows, length), generator=generator)


def _source(rows: int = 2, length: int = 6, seed: int = 0) -> Tensor:
    ids = _ids(rows, length, CONFIG.source_vocabulary, seed)
    ids[:, -1] = END
    return ids


def _target(rows: int = 2, length: int = 8, seed: int = 1) -> Tensor:
    ids = _ids(rows, length, CONFIG.target_vocabulary, seed)
    ids[:, 0] = START
    return ids


@torch.inference_mode()
def test_future_tokens_never_change_a_logit(model: Transformer) -> None:
    source, target = _source(), _target()
    before = model(source, target)
    for t in range(1, target.shape[1]):
        changed = target.clone()
        changed[:, t:] = _target(seed=5)[:, t:]
        after = model(source, changed)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


@torch.inference_mode()
def test_padding_never_changes_a_logit(model: Transformer) -> None:
    lengths = [(3, 4), (6, 2), (1, 8), (5, 5)]
    sources = [_source(1, s, seed=s) for s, _ in lengths]
    targets = [_target(1, t, seed=t) for _, t in lengths]
    alone = [model(s, t)[0] for s, t in zip(sources, targets, strict=True)]
    source = torch.full((4, 9), PADDING)
    target = torch.full((4, 11), PADDING)
    for row, (s, t) in enumerate(lengths):
        source[row, :s], target[row, :t] = sources[row], targets[row]
    together = model(source, target)
    for row, (_, t) in enumerate(lengths):
        torch.testing.assert_close(together[row, :t], alone[row], rtol=0, atol=2e-5)
    # Nor what the embedding of padding holds.
    embedding = model.source_embedding.weight[PADDING]
    before = embedding.clone()
    embedding.fill_(1e3)
    torch.testing.assert_close(model(source, target), together, rtol=0, atol=1e-6)
    embedding.copy_(before)


@torch.inference_mode()
def test_a_source_token_does_change_logits(model: Transformer) -> None:
    """Else the tests above would pass on a model that reads nothing."""
    source, target = _source(), _target()
    changed = source.clone()
    changed[:, 0] = (changed[:, 0] + 1 - 4) % (CONFIG.source_vocabulary - 4) + 4
    assert (model(source, target) - model(changed, target)).abs().min() > 0


@torch.inference_mode()
def test_step_by_step_equals_the_whole_pass_beyond_the_first_room(
    model: Transformer,
) -> None:
    source, target = _source(3, 7), _target(3, 40)
    source[1, 4:] = torch.tensor([END, PADDING, PADDING])
    whole = model(source, target)
    cache = model.start(source)
    for t in range(target.shape[1]):
        logits = model.step(target[:, t], cache)
        torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=1e-4)
        assert cache.length == t + 1


@pytest.mark.parametrize(("few", "columns"), [(1, VECTOR), (1_000, 1)])
@pytest.mark.parametrize("few_tokens", [1, 1_000], ids=["packed", "padded"])
@torch.inference_mode()
def test_steps_with_reordered_hypotheses_and_finished_sentences(
    model: Transformer,
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    columns: int,
    few_tokens: int,
) -> None:
    """A random beam of 3 over 4 sentences, two of which end on the way."""
    monkeypatch.setattr("model.transformer._FEW_HYPOTHESES", few)
    monkeypatch.setattr("model.transformer._FEW_TOKENS", few_tokens)
    generator = torch.Generator().manual_seed(3)
    N, sources = 3, [_source(1, length, seed=length) for length in (2, 5, 3, 7)]
    padded = torch.full((4, 7), PADDING)
    for row, source in enumerate(sources):
        padded[row, : source.shape[1]] = source
    alive, cache = [0, 1, 2, 3], model.start(padded, N)
    assert cache.fewest_columns == columns
    for kept in chain.from_iterable(cache.own):  # whatever number stands there before
        kept.fill_(1e9)
    prefixes = [[START] for _ in range(4 * N)]
    for step in range(1, 36):
        logits = model.step(torch.tensor([p[-1] for p in prefixes]), cache)
        for row, prefix in enumerate(prefixes):
            whole = model(sources[alive[row // N]], torch.tensor([prefix]))[0, -1]
            torch.testing.assert_close(logits[row], whole, rtol=0, atol=1e-4)
        going = list(range(len(alive)))
        if step in (9, 20):
            going.pop(1 if step == 9 else 0)
            cache.select(torch.tensor(going))
            alive = [alive[i] for i in going]
        picks = torch.randint(N, (len(going), N), generator=generator)
        rows = [i * N + pick for i, row in zip(going, picks.tolist(), strict=True)
                for pick in row]  # fmt: skip
        cache.reorder(torch.tensor(rows))
        new = torch.randint(4, CONFIG.target_vocabulary, (len(rows),),
                            generator=generator).tolist()  # fmt: skip
        prefixes = [[*prefixes[r], token] for r, token in zip(rows, new, strict=True)]
    assert alive == [2, 3]


def _traced(model: Transformer, source: Tensor, target: Tensor) -> tuple[Tensor, Trace]:
    trace = Trace()
    memory = model.encode(source, trace)
    hidden = model.decode(target, memory, model.source_mask(source), trace)
    return model.logits(hidden), trace


@torch.inference_mode()
def test_traced_equals_untraced(model: Transformer) -> None:
    source, target = _source(), _target()
    traced, _ = _traced(model, source, target)
    assert torch.equal(traced, model(source, target))


@torch.inference_mode()
@pytest.mark.parametrize(("B", "S", "T"), [(2, 6, 8), (1, 2, 1), (3, 5, 7)])
def test_shapes_are_those_that_the_comments_say(
    model: Transformer, B: int, S: int, T: int
) -> None:
    logits, trace = _traced(model, _source(B, S), _target(B, T))
    D, H, V = CONFIG.width, CONFIG.heads, CONFIG.target_vocabulary
    K = D // H
    assert logits.shape == (B, T, V)
    expected = {"source.token": (B, S, D), "source.position": (S, D),
                "target.token": (B, T, D), "target.position": (T, D),
                "memory": (B, S, D), "hidden": (B, T, D)}  # fmt: skip
    attentions = [(f"encoder.{i}.self_attention", S, S) for i in range(3)]
    attentions += [(f"decoder.{i}.self_attention", T, T) for i in range(2)]
    attentions += [(f"decoder.{i}.cross_attention", T, S) for i in range(2)]
    for name, rows, columns in attentions:
        for value in ("x", "normalised", "concatenated", "output"):
            expected[f"{name}.{value}"] = (B, rows, D)
        for value in ("scores", "scaled", "weights"):
            expected[f"{name}.{value}"] = (B, H, rows, columns)
        for value, length in (("q", rows), ("context", rows), ("k", columns)):
            expected[f"{name}.{value}"] = (B, H, length, K)
        expected[f"{name}.v"] = (B, H, columns, K)
    for side, length, layers in (("encoder", S, 3), ("decoder", T, 2)):
        for i in range(layers):
            expected[f"{side}.{i}.output"] = (B, length, D)
            for value in ("x", "normalised", "output"):
                expected[f"{side}.{i}.feed_forward.{value}"] = (B, length, D)
    assert {name: tuple(v.shape) for name, v in trace.values.items()} == expected
    assert all(torch.isfinite(trace.values[f"{n}.weights"]).all()
               for n, _, _ in attentions)  # fmt: skip


@torch.inference_mode()
def test_residuals_add_up(model: Transformer) -> None:
    _, trace = _traced(model, _source(), _target())
    values = trace.values
    x = values["target.token"] + values["target.position"]
    for i in range(2):
        for part in ("self_attention", "cross_attention", "feed_forward"):
            torch.testing.assert_close(values[f"decoder.{i}.{part}.x"], x)
            x = x + values[f"decoder.{i}.{part}.output"]
        torch.testing.assert_close(values[f"decoder.{i}.output"], x)


def _copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    theirs.in_proj_weight.copy_(ours.w_qkv.flatten(0, 1))
    theirs.in_proj_bias.zero_()
    theirs.out_proj.weight.copy_(ours.w_o)
    theirs.out_proj.bias.zero_()


def _copy_block(theirs: nn.Module, ours: FeedForward) -> None:
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())


@torch.no_grad()
def _torch_twin(model: Transformer) -> nn.Transformer:
    """Return torch.nn.Transformer with the weights of ours."""
    c = model.config
    twin = nn.Transformer(
        c.width, c.heads, c.encoder_layers, c.decoder_layers, c.feed_forward,
        dropout=0.0, batch_first=True, norm_first=True,
    )  # fmt: skip
    for ours, theirs in zip(model.encoder, twin.encoder.layers, strict=True):
        _copy_attention(theirs.self_attn, ours.self_attention)
        _copy_block(theirs, ours.feed_forward)
        theirs.norm1.load_state_dict(ours.self_attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    for ours, theirs in zip(model.decoder, twin.decoder.layers, strict=True):
        _copy_attention(theirs.self_attn, ours.self_attention)
        _copy_attention(theirs.multihead_attn, ours.cross_attention)
        _copy_block(theirs, ours.feed_forward)
        theirs.norm1.load_state_dict(ours.self_attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.cross_attention_norm.state_dict())
        theirs.norm3.load_state_dict(ours.feed_forward_norm.state_dict())
    twin.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
    twin.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return twin


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_logits_and_gradients_equal_torchs_transformer(model: Transformer) -> None:
    source, target = _source(3, 7), _target(3, 9)
    source[1, 4:] = torch.tensor([END, PADDING, PADDING])
    twin = _torch_twin(model)  # in training mode, so that no fast path is taken
    padded = source == PADDING
    x = model.source_embedding(source) * math.sqrt(24) + model.positions[:7]
    y = model.target_embedding(target) * math.sqrt(24) + model.positions[:9]
    hidden = twin(
        x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(9),
        src_key_padding_mask=padded, memory_key_padding_mask=padded, tgt_is_causal=True,
    )  # fmt: skip
    expected = hidden @ model.target_embedding.weight.T
    mask = torch.randn(3, 9, 37, generator=torch.Generator().manual_seed(2))
    wanted = torch.autograd.grad((expected * mask).sum(), model.target_embedding.weight)
    logits = model(source, target)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad((logits * mask).sum(), model.target_embedding.weight)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("width", [2, 8, 24])
def test_positions_by_the_formula(width: int) -> None:
    made = sinusoidal_positions(5, width)
    for position, i in itertools.product(range(5), range(width // 2)):
        angle = position / 10_000 ** (i / max(width // 2 - 1, 1))
        assert made[position, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert made[position, width // 2 + i].item() == pytest.approx(
            math.cos(angle), abs=1e-6
        )


@pytest.mark.parametrize("packed", [False, True])
def test_dropout_keeps_the_mean_and_acts_by_chance_alone(packed: bool) -> None:
    torch.manual_seed(1)
    packing = (
        Packing.of(torch.ones(300, 20, dtype=torch.bool), torch.float32)
        if packed
        else None
    )
    x = torch.ones(6_000 if packing is None else packing.N, 64)
    masks = torch.stack([dropout_mask(x, 0.25, packing) for _ in range(8)])
    assert masks.shape[1:] == x.shape
    assert set(masks.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert masks.mean().item() == pytest.approx(1, abs=0.01)
    # Features, tokens and the masks of a pass agree no more often than by chance.
    on = (masks > 0).float()
    for axis in range(3):
        one = on.narrow(axis, 1, on.shape[axis] - 1)
        other = on.narrow(axis, 0, on.shape[axis] - 1)
        assert (one * other).mean().item() == pytest.approx(0.75**2, abs=0.01)


def test_dropout_acts_in_training_alone(model: Transformer) -> None:
    source, target = _source(), _target()
    with torch.no_grad():
        quiet = model(source, target)
        noisy = model.train()(source, target)
        model.eval()
    assert not torch.equal(quiet, noisy)


def test_a_new_model_starts_near_the_uniform_loss() -> None:
    torch.manual_seed(1)
    fresh = Transformer(CONFIG).eval()
    log_probs = fresh(_source(8), _target(8)).log_softmax(-1)
    assert -log_probs.mean().item() == pytest.approx(math.log(37), rel=0.35)
    assert fresh.decoder[0].feed_forward.inner.bias.abs().max() == 0
    names = {name for name, _ in fresh.named_parameters()}
    assert not any("attention.w" in name and "bias" in name for name in names)
    assert "output" not in "".join(names)  # the output is the target embedding


def test_parameters_are_counted_without_a_model() -> None:
    for config in (CONFIG, ModelConfig(9, 8, width=2, heads=1, feed_forward=5)):
        found = sum(p.numel() for p in Transformer(config).parameters())
        assert config.parameters == found


@pytest.mark.parametrize(("capability", "used"), [("AVX512", True), ("AVX2", False)])
def test_onednns_product_in_fp32_is_for_avx512(
    capability: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        pytest.skip("elsewhere torch's own is as good")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    assert (_onednn.__wrapped__(torch.float32) is not None) == used
    monkeypatch.setattr("model.linear._onednn", _onednn.__wrapped__)
    assert has_kernels_by_shape(torch.float32, "cpu") == used
    assert has_kernels_by_shape(torch.bfloat16, "cpu")  # oneDNN's
    assert has_kernels_by_shape(torch.float32, "cuda")  # whatever the processor is


@pytest.mark.parametrize("rows", [1, FEWEST_ROWS])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_without_a_gradient_is_the_one_with_it(
    rows: int, bias: bool, relu: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, rows, 24).to(dtype).transpose(0, 1)
    weight = torch.randn(10, 24).to(dtype)
    added = torch.randn(10).to(dtype) if bias else None
    with_gradient = linear(x, weight, added, relu)
    with torch.inference_mode():
        without = linear(x, weight, added, relu)
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    exact = exact.clamp(min=0) if relu else exact
    tolerance = 1e-5 if dtype == torch.float32 else 0.1  # of numbers up to 20
    for found in (with_gradient, without):
        assert found.shape == (rows, 2, 10) and found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(20, 6), (3, 7, 6)])
def test_the_gradient_of_a_feed_forward_block(shape: tuple[int, ...]) -> None:
    """Our own, beside autograd's of the article's formula."""
    torch.manual_seed(1)
    block = FeedForward(6, 9).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    of_output = torch.randn(shape, dtype=torch.float64)
    inputs = [x, *block.parameters()]
    found = torch.autograd.grad(block(x), inputs, of_output)
    plain = block.outer(block.inner(x).clamp(min=0))
    wanted = torch.autograd.grad(plain, inputs, of_output)
    with torch.no_grad():
        torch.testing.assert_close(block(x), plain, rtol=0, atol=1e-12)
    for mine, autograds in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, autograds, rtol=0, atol=1e-12)
