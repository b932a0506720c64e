from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

import xmckit
from xmckit.nn import Targets
from xmckit.nn.ranking_losses import (
    hide_largest,
    softmax_cross_entropy,
    softmax_cross_entropy_and_slope,
    truncated_topk_entropy,
    truncated_topk_entropy_and_slope,
)

quick = settings(deadline=None, max_examples=60, derandomize=True)
sizes = st.tuples(st.integers(1, 6), st.integers(2, 200), st.integers(0, 10_000))


def problem(rows: int, labels: int, seed: int, *, weighted: bool = False, ties: bool = False):
    """Logits, and truth with rows of no label, of one, of several and of all."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-2, 3, (rows, labels)) if ties else 3 * rng.standard_normal((rows, labels))
    share = rng.choice([0.0, 0.1, 0.5, 1.0], (rows, 1), p=[0.2, 0.4, 0.3, 0.1])
    Y = csr_matrix((rng.random((rows, labels)) < share).astype(np.float32))
    weights = csr_matrix((rng.uniform(0, 2, Y.nnz).astype(np.float32), Y.indices, Y.indptr), Y.shape)
    return torch.tensor(logits, dtype=torch.float64), Targets.from_csr(Y, weights if weighted else None)


def pairs_by_row(targets: Targets) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[] for _ in range(targets.shape[0])]
    weights = [1.0] * len(targets.rows) if targets.weights is None else targets.weights.tolist()
    for row, label, weight in zip(targets.rows.tolist(), targets.labels.tolist(), weights, strict=True):
        found[row].append((label, weight))
    return found


def by_the_formula(logits: torch.Tensor, targets: Targets, k: int) -> float:
    """Equations 13 and 17 word by word: the m − k smallest of those that are not true."""
    total, labels = 0.0, logits.shape[1]
    for x, pairs in zip(logits.tolist(), pairs_by_row(targets), strict=True):
        true = {label for label, _ in pairs}
        others = sorted(x[label] for label in range(labels) if label not in true)[: labels - k]
        for label, weight in pairs:
            total += weight * math.log(1 + sum(math.exp(other - x[label]) for other in others))
    return total / len(logits)


def slope_by_autograd(loss, logits: torch.Tensor, *arguments) -> torch.Tensor:
    leaf = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf, *arguments) * len(logits), leaf)
    return slope


@quick
@given(sizes, st.floats(0, 1), st.booleans(), st.booleans())
def test_topk_entropy_is_the_papers_formula(size, place, weighted, ties):
    logits, targets = problem(*size, weighted=weighted, ties=ties)
    k = 1 + round(place * (size[1] - 2))
    expected = by_the_formula(logits, targets, k)
    assert truncated_topk_entropy(logits, targets, k).item() == pytest.approx(expected, rel=1e-8, abs=1e-10)
    total = truncated_topk_entropy_and_slope(logits.clone(), targets, k)
    assert total.item() == pytest.approx(expected * len(logits), rel=1e-8, abs=1e-10)


@quick
@given(sizes, st.floats(0, 1), st.booleans())
def test_slopes_are_autograds(size, place, weighted):
    logits, targets = problem(*size, weighted=weighted)
    k = 1 + round(place * (size[1] - 2))
    for plain, fused, arguments in (
        (truncated_topk_entropy, truncated_topk_entropy_and_slope, (targets, k)),
        (softmax_cross_entropy, softmax_cross_entropy_and_slope, (targets,)),
    ):
        slope = logits.clone()
        total = fused(slope, *arguments)
        torch.testing.assert_close(total, plain(logits, *arguments) * len(logits), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(slope, slope_by_autograd(plain, logits, *arguments), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_gradcheck(seed):
    logits, targets = problem(5, 12, seed, weighted=True)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: softmax_cross_entropy(x, targets), logits)
    for k in (1, 3, 11):
        assert torch.autograd.gradcheck(lambda x, k=k: truncated_topk_entropy(x, targets, k), logits)


def one_label_each(labels: list[int], width: int) -> Targets:
    ones = np.ones(len(labels), dtype=np.float32)
    return Targets.from_csr(csr_matrix((ones, (range(len(labels)), labels)), shape=(len(labels), width)), None)


def test_with_one_label_both_are_torchs_cross_entropy():
    logits, labels = (
        torch.randn(7, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        [0, 29] + [4] * 5,
    )
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).item()
    targets = one_label_each(labels, 30)
    assert softmax_cross_entropy(logits, targets).item() == pytest.approx(expected)
    assert truncated_topk_entropy(logits, targets, 1).item() == pytest.approx(expected, rel=1e-8)


def test_labels_above_a_true_one_cost_nothing_while_it_is_among_the_k_first():
    logits, targets = torch.tensor([[50.0, 40.0, 30.0, 0.0, -5.0]]), one_label_each([2], 5)
    losses = [truncated_topk_entropy(logits, targets, k).item() for k in (1, 2, 3, 4)]
    assert losses[0] == pytest.approx(20.0, abs=1e-3)
    assert losses[1] == pytest.approx(10.0, abs=1e-3)
    assert losses[2] < 1e-12
    assert losses[3] < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits_stay_finite(dtype):
    logits = 1e4 * torch.tensor([[1.0, -1.0, 0.5, -0.5], [-1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], dtype=dtype)
    targets = one_label_each([1, 0, 3], 4)
    # compared with: 1e4 above, equal to, and three times equal
    by_hand = {1: 2e4 + (2e4 + math.log(3)) + math.log(4), 3: 5e3 + 2e4 + math.log(2)}
    for k, expected in by_hand.items():
        slope = logits.clone()
        assert truncated_topk_entropy_and_slope(slope, targets, k).item() == pytest.approx(expected, rel=1e-6)
        assert truncated_topk_entropy(logits, targets, k).item() == pytest.approx(expected / 3, rel=1e-6)
        assert torch.isfinite(slope).all()
        assert slope.sum(1).abs().max() < 1e-5
    slope = logits.clone()
    assert softmax_cross_entropy_and_slope(slope, targets).item() == pytest.approx(by_hand[1], rel=1e-6)
    assert torch.isfinite(slope).all()


def test_rows_without_a_label_count_only_in_the_mean():
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    alone, beside = (
        one_label_each([3], 9),
        Targets.from_csr(csr_matrix((np.ones(1, np.float32), ([1], [3])), shape=(2, 9)), None),
    )
    for loss, slopes in (
        (softmax_cross_entropy, softmax_cross_entropy_and_slope),
        (lambda x, t: truncated_topk_entropy(x, t, 3), lambda x, t: truncated_topk_entropy_and_slope(x, t, 3)),
    ):
        torch.testing.assert_close(loss(logits, beside) * 2, loss(logits[1:], alone))
        slope = logits.clone()
        slopes(slope, beside)
        assert (slope[0] == 0).all()
        empty = Targets.from_csr(csr_matrix((2, 9), dtype=np.float32), None)
        assert loss(logits, empty).item() == 0
        assert slopes(slope, empty).item() == 0
        assert (slope == 0).all()


def test_a_logit_that_is_no_number_makes_the_loss_so():
    logits, targets = torch.zeros(2, 6), one_label_each([0, 1], 6)
    logits[1, 4] = float("nan")
    assert math.isnan(truncated_topk_entropy(logits, targets, 3).item())
    assert math.isnan(softmax_cross_entropy(logits, targets).item())
    for total in (
        truncated_topk_entropy_and_slope(slope := logits.clone(), targets, 3),
        softmax_cross_entropy_and_slope(logits.clone(), targets),
    ):
        assert math.isnan(total.item())
    assert torch.isfinite(slope[0]).all()


@pytest.mark.parametrize("k", [-1, 0, 6, 7])
def test_k_out_of_range_is_refused(k):
    logits, targets = torch.zeros(1, 6), one_label_each([0], 6)
    for loss in (truncated_topk_entropy, truncated_topk_entropy_and_slope):
        with pytest.raises(xmckit.UsageError, match=f"k from 1 to 5, not {k}"):
            loss(logits, targets, k)


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
@quick
@given(sizes, st.booleans())
def test_the_largest_entries_are_hidden(kernel, size, ties):
    """By the kernel of the CPU, and by torch's operations for other devices."""
    logits, _ = problem(*size, ties=ties)
    counts = np.random.default_rng(size[2]).integers(-2, size[1] + 2, size[0])
    hidden = logits.clone()
    with mock.patch("xmckit.nn.ranking_losses._has_kernel", return_value=kernel):
        hide_largest(hidden, torch.from_numpy(counts))
    for before, after, count in zip(logits.numpy(), hidden.numpy(), counts, strict=True):
        left = after[~np.isneginf(after)]
        np.testing.assert_array_equal(np.sort(left), np.sort(before)[: max(0, len(before) - max(0, count))])
        assert (np.isneginf(after) | (after == before)).all()


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
def test_nan_is_not_hidden(kernel):
    logits = torch.tensor([[1.0, float("nan"), 3.0]])
    with mock.patch("xmckit.nn.ranking_losses._has_kernel", return_value=kernel):
        hide_largest(logits, torch.tensor([2]))
    assert logits[0].isnan().tolist() == [False, True, False]
