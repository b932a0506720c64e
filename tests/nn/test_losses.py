from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr

from xmckit.nn import Targets, Threads, binary_cross_entropy, linear, linear_binary_cross_entropy, losses
from xmckit.nn.losses import binary_cross_entropy_and_slope, in_row_chunks, linear_loss
from xmckit.nn.ranking_losses import (
    softmax_cross_entropy,
    softmax_cross_entropy_and_slope,
    truncated_topk_entropy,
    truncated_topk_entropy_and_slope,
)
from xmckit.nn.threads import stripes, use_threads

quick = settings(deadline=None, max_examples=25, derandomize=True)


def problem(rows: int, labels: int, width: int, *, weighted: bool, seed: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x, W = (torch.randn(n, width, generator=generator, dtype=dtype).requires_grad_() for n in (rows, labels))
    b = torch.randn(labels, generator=generator, dtype=dtype).requires_grad_()
    Y = random_csr(rows, labels, density=0.2, format="csr", dtype=np.float32, random_state=seed)
    weights = (
        csr_matrix((np.linspace(0, 3, Y.nnz, dtype=np.float32), Y.indices, Y.indptr), Y.shape) if weighted else None
    )
    return x, W, b, Y, weights


def torch_loss(logits: torch.Tensor, Y: csr_matrix, weights: csr_matrix | None) -> torch.Tensor:
    """The same by torch's own loss on a dense target matrix."""
    target = torch.from_numpy((Y.toarray() != 0).astype(float))
    factor = torch.ones_like(target)
    if weights is not None:
        rows = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
        factor[rows, Y.indices] = torch.from_numpy(weights.data.astype(float))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, weight=factor, reduction="sum")
    return loss / max(1, Y.shape[0])


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("fused", [False, True])
@quick
@given(st.integers(1, 9), st.integers(1, 150), st.integers(1, 6), st.booleans(), st.integers(0, 10_000))
def test_cross_entropy_is_torchs_without_its_dense_target(fused, rows, labels, width, weighted, seed):
    x, W, b, Y, weights = problem(rows, labels, width, weighted=weighted, seed=seed)
    targets = Targets.from_csr(Y, weights)
    if fused:
        ours = linear_binary_cross_entropy(x, W, b, targets, Threads())
    else:
        ours = binary_cross_entropy(x @ W.T + b, targets)
    expected = torch_loss(x @ W.T + b, Y, weights)
    torch.testing.assert_close(ours, expected)
    # a factor in front tells whether the gradient of what comes after the loss is used
    for mine, theirs in zip(gradients(3 * ours, x, W, b), gradients(3 * expected, x, W, b), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.fixture
def small_chunks(monkeypatch):
    """Limits under which the problems of these tests have several chunks and pieces."""
    monkeypatch.setattr(losses, "CHUNK", 256)
    monkeypatch.setattr(losses, "PIECE", 100)


def chunked_losses(x, W, b, targets, pool):
    """Three losses, each by `linear_loss` and by `in_row_chunks`."""

    def summed(loss, *arguments):
        return lambda x, targets: loss(x @ W.T + b, targets, *arguments) * len(x)

    return [
        linear_loss(x, W, b, targets, pool, softmax_cross_entropy_and_slope),
        in_row_chunks(summed(softmax_cross_entropy), x, targets, [W, b], pool),
        linear_loss(x, W, b, targets, pool, lambda z, true: truncated_topk_entropy_and_slope(z, true, 4)),
        in_row_chunks(summed(truncated_topk_entropy, 4), x, targets, [W, b], pool),
        linear_loss(x, W, b, targets, pool, binary_cross_entropy_and_slope),
        in_row_chunks(summed(binary_cross_entropy), x, targets, [W, b], pool),
    ]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("rows", "labels", "width"), [(1, 5, 1), (30, 5, 2), (7, 90, 3), (33, 40, 70), (9, 1500, 4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_in_chunks_are_those_of_the_whole_batch(rows, labels, width, weighted):
    x, W, b, Y, weights = problem(rows, labels, width, weighted=weighted, seed=rows)
    targets, logits = Targets.from_csr(Y, weights), x @ W.T + b
    whole = [
        softmax_cross_entropy(logits, targets),
        truncated_topk_entropy(logits, targets, 4),
        binary_cross_entropy(logits, targets),
    ]
    for mine, expected in zip(
        chunked_losses(x, W, b, targets, Threads()), (loss for loss in whole for _ in range(2)), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-9)
        theirs = torch.autograd.grad(3 * expected, (x, W, b), retain_graph=True)
        for one, other in zip(gradients(3 * mine, x, W, b), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("small_chunks")
def test_bits_of_chunks_do_not_depend_on_the_number_of_threads():
    x, W, b, Y, _ = problem(96, 3000, 48, weighted=False, seed=1, dtype=torch.float32)
    targets, results = Targets.from_csr(Y, None), []
    for workers in (1, 3):
        with use_threads(workers) as pool:
            found = chunked_losses(x, W, b, targets, pool)
            results.append([*found, *(part for loss in found for part in gradients(loss, x, W, b))])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_no_loss_holds_the_logits_of_a_whole_batch(monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 40 * 10)
    x, W, b, Y, _ = problem(95, 40, 10, weighted=False, seed=2)
    seen = []

    def spy(logits, targets):
        seen.append(tuple(logits.shape))
        assert targets.shape == logits.shape
        return softmax_cross_entropy_and_slope(logits, targets)

    linear_loss(x, W, b, Targets.from_csr(Y, None), Threads(), spy)
    assert seen == [(10, 40)] * 9 + [(5, 40)]


def test_chunks_leave_out_what_needs_no_gradient_or_has_none():
    x, W, b, Y, _ = problem(6, 8, 3, weighted=False, seed=3)
    unused, frozen = torch.ones(2, dtype=torch.float64, requires_grad=True), W.detach()

    def function(x, targets):
        return softmax_cross_entropy(x @ frozen.T + b, targets) * len(x)

    targets = Targets.from_csr(Y, None)
    loss = in_row_chunks(function, x, targets, [frozen, b, unused], Threads())
    found = gradients(loss, x, b, unused)
    expected = gradients(softmax_cross_entropy(x @ frozen.T + b, targets), x, b)
    for one, other in zip(found, [*expected, torch.zeros(2, dtype=torch.float64)], strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        assert not in_row_chunks(function, x, targets, [b], Threads()).requires_grad
    nothing = in_row_chunks(lambda x, _: torch.zeros(()), x, targets, [b], Threads())
    assert all((part == 0).all() for part in gradients(nothing, x, b))


def test_a_batch_of_no_rows_has_loss_zero():
    x, W, b, _, _ = problem(3, 8, 3, weighted=False, seed=3)
    targets = Targets.from_csr(csr_matrix((0, 8), dtype=np.float32), None)
    for loss in chunked_losses(x[:0], W, b, targets, Threads()):
        assert loss.item() == 0
        assert all((part == 0).all() for part in gradients(loss, W, b))


def test_a_second_backward_pass_is_refused():
    x, W, b, Y, _ = problem(3, 8, 3, weighted=False, seed=3)
    loss = linear_binary_cross_entropy(x, W, b, Targets.from_csr(Y, None), Threads())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="first backward pass"):
        loss.backward()


def test_cross_entropy_of_huge_logits_is_finite():
    targets = Targets.from_csr(csr_matrix(np.array([[1.0, 0.0, 1.0]], dtype=np.float32)), None)
    W = torch.tensor([[200.0], [-200.0], [-200.0]], requires_grad=True)
    x, b = torch.ones(1, 1, requires_grad=True), torch.zeros(3, requires_grad=True)
    loss = linear_binary_cross_entropy(x, W, b, targets, Threads())
    # the third label is true at logit −200 and costs 200; float32's log σ(−|z|) would be −inf
    assert loss.item() == pytest.approx(200.0)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(loss, x, W, b))


def test_linear_passes_gradcheck():
    x, W, b, _, _ = problem(3, 130, 2, weighted=False, seed=0)
    assert torch.autograd.gradcheck(lambda *arguments: linear(*arguments, Threads()), (x, W, b))


@pytest.mark.parametrize("labels", [1, 63, 64, 65, 3000])
def test_bits_do_not_depend_on_the_number_of_threads(labels):
    x, W, b, Y, _ = problem(96, labels, 48, weighted=False, seed=1, dtype=torch.float32)
    targets = Targets.from_csr(Y, None)
    results = []
    for workers in (1, 2, 3):
        with use_threads(workers) as pool:
            loss = linear_binary_cross_entropy(x, W, b, targets, pool)
            logits = linear(x, W, b, pool)
            results.append([loss, logits, *gradients(loss, x, W, b), *gradients((logits**2).sum(), x, W, b)])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_the_first_product_of_a_new_thread_is_not_spread():
    """MKL counts its threads per thread, and sums in another order when there are two."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator) for shape in ((96, 3000), (3000, 48)))
    with use_threads(1):
        expected = one @ other
    for _ in range(5):
        with use_threads(2) as pool:
            assert all(torch.equal(product, expected) for product in pool.map(lambda _: one @ other, range(2)))


@quick
@given(st.integers(0, 100_000))
def test_stripes_cover_everything_once(length):
    parts = stripes(length)
    assert np.array_equal(np.concatenate([np.arange(length)[part] for part in parts] or [[]]), np.arange(length))
    assert len(parts) <= 16


def test_threads_give_torch_its_own_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with use_threads(2), use_threads(3):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="inside"), use_threads(1):
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
