from __future__ import annotations

import math
import multiprocessing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

torch = pytest.importorskip("torch")

from xmckit_heads.lml import fallback  # noqa: E402
from xmckit_heads.lml import operator as lml_operator  # noqa: E402
from xmckit_heads.lml.operator import lml, lml_loss, lml_loss_and_slope  # noqa: E402

from xmckit.errors import UsageError  # noqa: E402
from xmckit.nn import Targets, Threads  # noqa: E402
from xmckit.nn.threads import use_threads  # noqa: E402

inf, nan = math.inf, math.nan
ALLOWED = {torch.float32: 1e-6, torch.float64: 1e-12}


def by_bisection(x: np.ndarray, k: float) -> tuple[np.ndarray, np.longdouble]:
    """(y, ν) of one row of finite logits, in the widest floating-point type."""
    x = x.astype(np.longdouble)
    low, high = -x.max() - 80, -x.min() + 80

    def excess(nu: np.longdouble) -> np.longdouble:
        """Σy − k without cancellation: what is above ½ is counted, less what is missing to 1."""
        z = x + nu
        other = np.exp(-abs(z)) / (1 + np.exp(-abs(z)))
        return np.where(z < 0, other, -other).sum() + ((z >= 0).sum() - np.longdouble(k))

    for _ in range(85):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    with np.errstate(over="ignore", under="ignore"):
        return 1 / (1 + np.exp(-(x + high))), high


def sums_to(y: torch.Tensor, k: float | torch.Tensor, allowed: float) -> bool:
    return bool(((y.double().sum(-1) - k).abs() <= allowed * torch.as_tensor(k)).all())


rows = st.fixed_dictionaries(
    {
        "n": st.integers(2, 200),
        "share": st.floats(1e-3, 0.999),
        "whole": st.booleans(),
        "scale": st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0, 300.0, 1e4]),
        "ties": st.sampled_from([0, 1, 3]),
        "masked": st.sampled_from([0.0, 0.3]),
        "seed": st.integers(0, 10_000),
    }
)


def draw(n, share, whole, scale, ties, masked, seed):
    rng = np.random.default_rng(seed)
    x = scale * rng.standard_normal(n)
    if ties:
        x = np.round(x / max(scale, 1e-9) * ties) * max(scale, 1e-9) / ties
    hidden = rng.random(n) < masked
    hidden[rng.integers(n)] = False
    count = int((~hidden).sum())
    k = max(1, min(round(share * count), count - 1)) if whole and count > 1 else share * count
    return np.where(hidden, -inf, x), hidden, float(k)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(rows)
def test_it_agrees_with_bisection(case):
    x, hidden, k = draw(**case)
    for dtype, off in ((torch.float32, 2e-6), (torch.float64, 2e-12)):
        logits = torch.tensor(x, dtype=dtype)
        expected = np.zeros(len(x))
        expected[~hidden], _ = by_bisection(logits.double().numpy()[~hidden], k)
        y = lml(logits, k)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.double().numpy(), expected, rtol=0, atol=off)
        assert (y[torch.tensor(hidden)] == 0).all()
        assert sums_to(y, k, ALLOWED[dtype])
    elsewhere = fallback.project(logits[None], torch.tensor([k], dtype=torch.float64))[0]
    np.testing.assert_allclose(elsewhere.numpy(), expected, rtol=0, atol=2e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 31, 257, 5_000, 300_000])
def test_the_sum_is_k(n, dtype):
    generator = torch.Generator().manual_seed(n)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    for x in (
        noise,
        3 * noise,
        20 * noise,
        1e4 * noise,
        0 * noise,
        0 * noise + 0.1,
        0 * noise + 1e4 / 3,
        noise.round(),
    ):
        for k in (0.01, 1.0, 1.7, 0.5 * n, n - 0.3):
            assert sums_to(lml(x.to(dtype), k), k, ALLOWED[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_is_k_for_three_million_labels(dtype):
    noise = torch.randn(3_000_000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    cases = [3 * noise] if dtype == torch.float64 else [noise, 1e4 * noise, 0 * noise + 0.1]
    for x in cases:
        assert sums_to(lml(x, 5), 5, ALLOWED[dtype])


def test_close_logits_far_from_zero_are_distinguished():
    x = torch.tensor([10_000.0, 10_000.001, 10_000.002, 9_999.0, -1e4])
    np.testing.assert_allclose(lml(x, 2.5), by_bisection(x.double().numpy(), 2.5)[0].astype(float), atol=1e-7)


def test_the_edges_are_as_documented():
    x = torch.tensor([[1, -inf, 2, -inf], [inf, inf, inf, 0], [inf, 0, 0, -inf], [-inf] * 4, [nan, 1, 2, 3]])
    expected = torch.tensor([[1, 0, 1, 0], [2 / 3] * 3 + [0], [1, 0.5, 0.5, 0], [0] * 4, [nan] * 4])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        torch.testing.assert_close(lml(x.to(dtype), 2), expected.to(dtype), equal_nan=True)
    torch.testing.assert_close(
        fallback.project(x, torch.full((5,), 2.0)), expected.double(), equal_nan=True, rtol=1e-6, atol=1e-6
    )
    assert (lml(x[:4], 0) == 0).all()
    finite = torch.tensor([[1.0, 2.0, 3.0]]).expand(5, 3)
    y = lml(finite, torch.tensor([3.0, 4.0, inf, nan, -1.0]))
    assert (y[:3] == 1).all()
    assert y[3:].isnan().all()
    for bad in (-1, nan):
        with pytest.raises(UsageError, match="at least 0"):
            lml(finite, bad)
    with pytest.raises(UsageError, match="does not fit rows"):
        lml(finite, torch.ones(4))
    with pytest.raises(UsageError, match="floating-point"):
        lml(torch.ones(3, dtype=torch.int64), 1)


def test_nothing_changes_where_y_cannot():
    x = torch.tensor([[1, -inf, 2, -inf], [inf, inf, 5, 0], [-inf] * 4, [0, 1e4, 2e4, -1e4]], requires_grad=True)
    (slope,) = torch.autograd.grad(lml(x, 2), x, torch.randn(4, 4))
    assert (slope == 0).all()


def test_entries_that_share_k_have_the_slope_of_equal_logits():
    g = torch.randn(1, 5, generator=torch.Generator().manual_seed(0))
    targets = Targets(torch.tensor([0]), torch.tensor([1]), None, (1, 5))
    slopes = []
    for top in (inf, 300.0):
        x = torch.tensor([[top, top, top, 0, -inf]], requires_grad=True)
        k = torch.tensor([1.5], requires_grad=True)
        loss = lml_loss(x, k, targets)
        slopes.append((*torch.autograd.grad(lml(x, k), (x, k), g), *torch.autograd.grad(loss, (x, k)), loss.detach()))
        pairs = (targets.rows, targets.labels, torch.ones(1, dtype=torch.float64))
        elsewhere = fallback.log_loss_and_slopes(x.detach(), k.detach(), pairs)
        slopes.append((*slopes[-1][:2], *(part.float() for part in elsewhere[1:]), elsewhere[0].float()))
    for other in slopes[1:]:
        torch.testing.assert_close(slopes[0], other)


def test_any_shape_and_a_k_per_row():
    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1))
    k = torch.tensor([0.5, 1, 6.5])
    y = lml(x, k)
    assert y.shape == x.shape
    for i in range(2):
        for j in range(3):
            assert torch.equal(y[i, j], lml(x[i, j], float(k[j])))
    assert torch.equal(lml(x.transpose(0, 2), 1.5), lml(x.transpose(0, 2).contiguous(), 1.5))
    assert lml(torch.empty(0, 5), 2).shape == (0, 5)
    assert lml(torch.empty(3, 0), 2).shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded(dtype):
    x = (3 * torch.randn(4, 500, generator=torch.Generator().manual_seed(2))).to(dtype).requires_grad_()
    y = lml(x, 5)
    assert torch.equal(y, lml(x.detach().float(), 5).to(dtype))
    (slope,) = torch.autograd.grad(y.float().pow(2).sum(), x)
    assert slope.dtype == dtype


def test_derivatives():
    x = (2 * torch.randn(3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).requires_grad_()
    k = torch.tensor([1.0, 2.0, 2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lml, (x, k))
    assert torch.autograd.gradgradcheck(lml, (x, k))
    assert torch.autograd.gradcheck(lambda x: lml(x, 2), (x,))


def test_float32_derivatives_are_the_float64_ones():
    x = (2 * torch.randn(8, 3000, generator=torch.Generator().manual_seed(4))).requires_grad_()
    g = torch.randn(8, 3000, generator=torch.Generator().manual_seed(5))
    wide = x.detach().double().requires_grad_()
    (ours,), (expected,) = torch.autograd.grad(lml(x, 5), x, g), torch.autograd.grad(lml(wide, 5), wide, g.double())
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_operators_keep_torchs_rules():
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([1.5, 3.0], dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(lml_operator._project, (x, k))
    y, g = lml(x, k).detach().requires_grad_(), torch.randn(2, 5, generator=generator).double().requires_grad_()
    torch.library.opcheck(lml_operator._pull_back, (y, g))


def test_vmap():
    generator = torch.Generator().manual_seed(7)
    x, k = torch.randn(5, 3, 8, generator=generator), torch.tensor([1.0, 2.0, 2.5])
    assert torch.equal(torch.vmap(lambda x: lml(x, k))(x), lml(x, k))
    assert torch.equal(torch.vmap(lml, in_dims=(1, 0), out_dims=1)(x, k), lml(x, k))
    assert torch.equal(torch.vmap(lml, in_dims=(None, 0))(x[0], k), torch.stack([lml(x[0], one) for one in k]))
    rows = x[0].double().requires_grad_()
    y = lml(rows, 2)
    directions = torch.randn(4, *y.shape, generator=generator, dtype=torch.float64)
    (at_once,) = torch.autograd.grad(y, rows, directions, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, rows, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(at_once, torch.stack(one_by_one))


def test_compile():
    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(8)).requires_grad_()
    k = torch.tensor([1.0, 2.0, 3.0, 4.5], requires_grad=True)

    def score(x, k):
        return lml(x, k).log()[:, 0].sum() + lml(x, 3)[0, 0]

    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    for ours, expected in zip(
        torch.autograd.grad(compiled(x, k), (x, k)), torch.autograd.grad(score(x, k), (x, k)), strict=True
    ):
        assert torch.equal(ours, expected)


def some_targets(rng, shape, weighted=True):
    Y = csr_matrix(rng.random(shape) < 3 / shape[1], dtype=np.float32)
    Y = csr_matrix(Y.multiply(np.arange(shape[0])[:, None] % 4 != 1))  # some rows have no label
    weights = Y.copy()
    weights.data = rng.random(Y.nnz).astype(np.float32) + 0.5
    return Targets.from_csr(Y, weights if weighted else None)


def pairs(rows, labels, shape, weights=None):
    return Targets(torch.tensor(rows), torch.tensor(labels), weights, shape)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("scale", [0.5, 4.0, 25.0])
def test_the_loss_is_the_log_of_y(dtype, off, scale, weighted):
    rng = np.random.default_rng(9)
    targets = some_targets(rng, (12, 700), weighted)
    x = torch.tensor(scale * rng.standard_normal((12, 700)), dtype=dtype, requires_grad=True)
    k = torch.tensor(rng.uniform(0.5, 9, 12), dtype=dtype, requires_grad=True)
    loss = lml_loss(x, k, targets)
    wide, wide_k = x.detach().double().requires_grad_(), k.detach().double().requires_grad_()
    weights = torch.ones(len(targets.rows)) if targets.weights is None else targets.weights
    expected = -(weights * lml(wide, wide_k)[targets.rows, targets.labels].log()).sum() / 12
    assert loss.item() == pytest.approx(expected.item(), rel=max(off, 1e-12))
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, (x, k)), torch.autograd.grad(3 * expected, (wide, wide_k)), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=off)
    overwritten = x.detach().clone()
    assert lml_loss_and_slope(overwritten, k.detach(), targets).item() == loss.item()
    assert torch.equal(overwritten, torch.autograd.grad(lml_loss(x, k, targets), x)[0])
    elsewhere = fallback.log_loss_and_slopes(
        x.detach(), k.detach(), (targets.rows, targets.labels, weights.double() / 12)
    )
    torch.testing.assert_close(elsewhere[0], expected.detach())
    torch.testing.assert_close(elsewhere[1], overwritten.double(), rtol=1e-5, atol=off)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_where_every_y_is_0_or_1(dtype):
    """In a gap of thousands ν is its middle: the slope is shared by the two labels at its ends."""
    x = torch.tensor([[0.0, 9000.0, 5000.0, -500.0]], dtype=dtype, requires_grad=True)
    loss = lml_loss(x, 2, Targets(torch.tensor([0]), torch.tensor([0]), None, (1, 4)))
    assert loss.item() == pytest.approx(2500)
    (slope,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(slope, torch.tensor([[-0.5, 0, 0.5, 0]], dtype=dtype))


def test_the_loss_of_hard_rows():
    targets = Targets(torch.tensor([0, 1, 2]), torch.tensor([1, 0, 0]), None, (4, 3))
    x = torch.tensor([[1, 2, -inf], [inf, inf, inf], [0, 0, 0], [nan, 1, 2]], requires_grad=True)
    loss = lml_loss(x, torch.tensor([2.0, 1.5, 1.0, 1.0]), targets)
    assert loss.item() == pytest.approx((0 + math.log(2) + math.log(3)) / 4)
    (slope,) = torch.autograd.grad(loss, x)
    assert slope[[0, 3]].eq(0).all()
    torch.testing.assert_close(slope[1] * 4, torch.tensor([-1 / 3, 1 / 6, 1 / 6]))
    torch.testing.assert_close(slope[2] * 4, torch.tensor([-4 / 9, 2 / 9, 2 / 9]))
    masked = torch.tensor([[-inf, 1.0, 2.0]])
    assert lml_loss(masked, 1, Targets(torch.tensor([0]), torch.tensor([0]), None, (1, 3))).item() == inf
    broken = torch.tensor([[nan, 1.0, 2.0]])
    assert math.isnan(lml_loss(broken, 1, Targets(torch.tensor([0]), torch.tensor([1]), None, (1, 3))).item())


def test_a_batch_without_labels_costs_nothing():
    none = torch.empty(0, dtype=torch.int64)
    x = torch.randn(3, 5, requires_grad=True)
    loss = lml_loss(x, 2, Targets(none, none, None, (3, 5)))
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, x)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_in_a_row_without_labels_does_not_reach_the_loss(dtype):
    logits = torch.tensor([[nan, 1.0, 2.0], [0.0, 1.0, 2.0]], dtype=dtype, requires_grad=True)
    k = torch.ones(2, requires_grad=True)
    loss = lml_loss(logits, k, pairs([1], [0], (2, 3)))
    loss.backward()
    torch.testing.assert_close(loss, -lml(logits.detach()[1], 1)[0].log() / 2)
    assert torch.equal(logits.grad[0], torch.zeros(3, dtype=dtype))
    assert k.grad[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k_has_no_slope_where_the_true_labels_have_all_of_it(dtype):
    k = torch.ones(1, requires_grad=True)
    lml_loss(torch.tensor([[1e4, 0.0, -1e4]], dtype=dtype), k, pairs([0], [0], (1, 3))).backward()
    assert k.grad.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_masked_label_of_weight_0_costs_nothing(dtype):
    logits = torch.tensor([[1.0, 0.0, -inf]], dtype=dtype)
    weighted = pairs([0, 0], [0, 2], (1, 3), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(lml_loss(logits, 1, weighted), lml_loss(logits, 1, pairs([0], [0], (1, 3))))
    rows = (torch.tensor([0, 0]), torch.tensor([0, 2]), torch.tensor([1.0, 0.0], dtype=torch.float64))
    loss, _, _ = fallback.log_loss_and_slopes(logits, torch.ones(1), rows)
    torch.testing.assert_close(loss.to(dtype), lml_loss(logits, 1, weighted))


@pytest.mark.parametrize("size", [1, 31, 255, 256])
def test_the_neighbours_of_a_short_row_change_no_bit_of_it(size):
    """Short rows are solved in groups; those that a group cannot solve stand between those that it can."""
    rng = np.random.default_rng(size)
    x = rng.standard_normal((19, size)).astype(np.float32) * 10.0 ** rng.uniform(-3, 4, size=(19, 1)).astype(np.float32)
    x[2, 0], x[5], x[9], x[13, -1] = nan, -inf, 1e4, inf
    logits, k = torch.from_numpy(x), torch.from_numpy(rng.uniform(1e-3, size, 19))
    together = lml(logits, k)
    alone = torch.stack([lml(row, one) for row, one in zip(logits, k, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=0, equal_nan=True)


def test_wrong_targets_are_named():
    def pair(row, label, shape=(2, 3)):
        return Targets(torch.tensor(row), torch.tensor(label), None, shape)

    x = torch.zeros(2, 3)
    for targets, message in (
        (pair([0], [3]), "give row 0 the label 3, but there are 3 labels"),
        (pair([2], [0]), "name row 2"),
        (pair([1, 0], [0, 0]), "row order"),
        (pair([0], [0], (2, 4)), "do not fit targets"),
    ):
        with pytest.raises(UsageError, match=message):
            lml_loss(x, 1, targets)


def test_threads_change_no_bit():
    rng = np.random.default_rng(12)
    x = torch.tensor(3 * rng.standard_normal((64, 5000)), dtype=torch.float32, requires_grad=True)
    g = torch.tensor(rng.standard_normal((64, 5000)), dtype=torch.float32)
    targets = some_targets(rng, (64, 5000))
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            y = lml(x, 5)
            results.append((y.detach(), *torch.autograd.grad(y, x, g), lml_loss(x, 5, targets).detach()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))
    with use_threads(2) as pool:
        assert torch.equal(lml_loss(x, 5, targets, pool), lml_loss(x, 5, targets, Threads()))


def in_a_child(connection) -> None:
    # torch's own threads do not survive a fork: nothing here is large enough for torch to spread it
    connection.send(lml(torch.from_numpy(np.zeros((64, 5000), dtype=np.float32)), 5)[63, 4999].item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_in_a_forked_process():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lml(torch.zeros(64, 5000), 5)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=in_a_child, args=(sender,))
        child.start()
        assert receiver.poll(30)
        assert receiver.recv() == pytest.approx(5 / 5000, rel=1e-5)
        child.join()
    finally:
        torch.set_num_threads(before)
