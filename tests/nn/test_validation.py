from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit.nn.validation import LogitHistogram


def f1_above(scores: np.ndarray, truth: np.ndarray, cut: float) -> float:
    output = scores > np.float32(cut)
    return 2 * (output & truth).sum() / max(1, output.sum() + truth.sum())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 15), st.floats(0.05, 20), st.integers(0, 10_000))
def test_no_edge_does_better_and_the_f1_is_exact(rows, labels, spread, seed):
    rng = np.random.default_rng(seed)
    scores = (spread * rng.standard_normal((rows, labels))).astype(np.float32)
    truth = rng.random((rows, labels)) < 0.3
    histogram = LogitHistogram()
    for part in np.array_split(np.arange(rows), 3):
        histogram.add(scores[part], csr_matrix(truth[part].astype(np.float32)))
    cut, f1 = histogram.best_threshold()
    assert np.isclose(f1, f1_above(scores, truth, cut))
    for edge in np.arange(-32, 32, 1 / 64):
        assert f1_above(scores, truth, edge) <= f1 + 1e-12


def test_scores_on_an_edge_and_far_away():
    scores = np.array([[0.0, 1e6, -1e6, 1 / 64]], dtype=np.float32)
    histogram = LogitHistogram()
    histogram.add(scores, csr_matrix(np.array([[0, 1, 0, 1]], dtype=np.float32)))
    cut, f1 = histogram.best_threshold()
    assert (cut, f1) == (0.0, 1.0)


def test_scores_next_to_an_edge():
    """32 + 1e-9 is 32 in float32: a sum before the product would put such a score below the cut that it is above."""
    scores = np.array([[1e-9, -1e-9, 0.0, 3e38, -3e38]], dtype=np.float32)
    histogram = LogitHistogram()
    histogram.add(scores, csr_matrix(np.array([[1, 0, 0, 1, 0]], dtype=np.float32)))
    cut, f1 = histogram.best_threshold()
    assert (cut, f1) == (0.0, 1.0)
