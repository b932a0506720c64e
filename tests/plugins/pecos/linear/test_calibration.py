"""Logits, probabilities that come true, and the cut with the best micro-F1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from xmckit_pecos.linear import calibration

FLOATS = st.floats(-20, 15, width=32)


@settings(deadline=None)
@given(arrays(np.float32, 20, elements=st.floats(2.0**-100, 1, width=32)))
def test_logits_are_log_odds_in_the_order_of_the_scores(p):
    p = np.sort(p)
    found = calibration.logits(p, "l3-hinge").astype(np.float64)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    inner = (p > 1e-30) & (p < 0.999)
    exact = np.log(p[inner].astype(np.float64)) - np.log1p(-p[inner].astype(np.float64))
    np.testing.assert_allclose(found[inner], exact, rtol=1e-6, atol=1e-6)
    with np.errstate(divide="ignore"):
        by_logarithm = calibration.logits(np.log(p), "log-l3-hinge")
    np.testing.assert_allclose(by_logarithm[inner], found[inner], rtol=1e-4, atol=1e-4)


def test_logits_at_the_ends():
    assert calibration.logits(np.asarray([0, 1], np.float32), "l3-hinge").tolist() == [-103.0, 16.0]
    assert calibration.logits(np.asarray([-1e6, 0], np.float32), "log-l3-hinge").tolist() == [-1e6, 16.0]
    assert calibration.logits(np.asarray([-3, 7], np.float32), "noop").tolist() == [-3, 7]
    assert calibration.probabilities(np.asarray([-np.inf, -1e6, 0, 1e6])).tolist() == [0, 0, 0.5, 1]


@settings(deadline=None)
@given(arrays(np.float64, 30, elements=st.floats(0, 1)), arrays(np.float64, 30, elements=st.floats(0.1, 5)))
def test_pools_are_those_of_isotonic_regression(shares, weights):
    expected = IsotonicRegression().fit_transform(np.arange(30), shares, sample_weight=weights)
    starts = calibration.pool_neighbours(shares * weights, weights)
    means = np.add.reduceat(shares * weights, starts) / np.add.reduceat(weights, starts)
    np.testing.assert_allclose(np.repeat(means, np.diff(np.append(starts, 30))), expected, atol=1e-9)
    assert (np.diff(means) > -1e-12).all()


def overconfident(rows=4000, seed=0):
    """Logits three times as far from 0 as they should be, and what came true."""
    rng = np.random.default_rng(seed)
    true_logits = rng.normal(-1, 2, rows)
    hits = rng.random(rows) < 1 / (1 + np.exp(-true_logits))
    return (3 * true_logits + 1).astype(np.float32), hits, true_logits


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibration_finds_the_truth(method):
    logits, hits, true_logits = overconfident()
    found = calibration.fit(method, logits, hits)(logits)
    off = np.abs(calibration.probabilities(found) - calibration.probabilities(true_logits))
    assert off.mean() < 0.03
    before = calibration.calibration_error(calibration.probabilities(logits), hits)
    after = calibration.calibration_error(
        calibration.probabilities(calibration.calibrate_held_out(method, logits, hits, np.arange(len(hits)))), hits
    )
    assert after < 0.03 < 0.1 < before


def test_platt_is_logistic_regression():
    logits, hits, _ = overconfident(2000)
    found = calibration.fit("platt", logits, hits)
    expected = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(logits[:, None].astype(float), hits)
    assert found.slope == pytest.approx(expected.coef_[0, 0], rel=0.01)  # its targets are not quite 0 and 1
    assert found.offset == pytest.approx(expected.intercept_[0], rel=0.02)


@settings(deadline=None)
@given(arrays(np.float32, 15, elements=FLOATS), arrays(bool, 15), st.sampled_from(["platt", "isotonic"]))
def test_calibration_never_turns_the_order(logits, hits, method):
    found = calibration.fit(method, logits, hits)
    moved = found(np.sort(logits))
    assert np.isfinite(moved).all()
    assert (np.diff(moved) >= 0).all()
    again = calibration.from_state(found.state())
    assert np.array_equal(again(logits), found(logits))


@pytest.mark.parametrize("hits", [np.zeros(9, bool), np.ones(9, bool)])
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_nothing_or_everything_true_is_no_certainty(method, hits):
    fitted = calibration.fit(method, np.linspace(-1, 1, 9, dtype=np.float32), hits)
    found = calibration.probabilities(fitted(np.zeros(1)))
    assert 0 < found[0] < 1
    assert (found[0] > 0.5) == hits[0]


def test_scores_that_say_the_contrary_are_not_turned_round():
    logits = np.linspace(-3, 3, 100, dtype=np.float32)
    found = calibration.fit("platt", logits, logits < 0)
    assert found.slope == 0
    assert calibration.probabilities(found(logits))[0] == pytest.approx(0.5)


def test_no_pairs_leave_scores_as_they_are():
    empty = np.empty(0, np.float32)
    assert calibration.fit("isotonic", empty, empty.astype(bool)).state() == {"method": "none"}
    assert calibration.calibration_error(empty, empty) == 0


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"method": "magic"},
        {"method": "platt", "slope": -1.0, "offset": 0.0},
        {"method": "platt", "slope": "x", "offset": 0.0},
        {"method": "platt", "slope": 1.0},
        {"method": "isotonic", "at": [0, 1], "values": [1, 0]},
        {"method": "isotonic", "at": [1, 1], "values": [0, 1]},
        {"method": "isotonic", "at": [], "values": []},
        {"method": "isotonic", "at": [0, 1], "values": [0]},
    ],
)
def test_a_state_that_nobody_stored(state):
    with pytest.raises(ValueError, match="expected"):
        calibration.from_state(state)


def test_the_calibration_error_of_a_known_case():
    probabilities = np.asarray([0.1, 0.1, 0.9, 0.9], dtype=np.float32)
    hits = np.asarray([False, True, True, True])
    # two bins of two pairs: |0.1 − 0.5| and |0.9 − 1|
    assert calibration.calibration_error(probabilities, hits) == pytest.approx((0.4 + 0.1) / 2, abs=1e-6)


@settings(deadline=None)
@given(
    arrays(np.float32, st.integers(0, 12), elements=st.sampled_from([-2.5, -1, 0, 0.25, 1, 3])),
    st.data(),
    st.integers(0, 5),
)
def test_no_cut_is_better_than_the_best(logits, data, missed):
    hits = data.draw(arrays(bool, len(logits)))
    true_pairs = int(hits.sum()) + missed
    threshold, f1 = calibration.best_threshold(logits, hits, true_pairs)

    def micro_f1(cut):
        output = logits > np.float32(cut)
        return 2 * (output & hits).sum() / max(1, output.sum() + true_pairs)

    assert f1 == pytest.approx(max((micro_f1(cut) for cut in (-9, *np.unique(logits))), default=0.0))
    if f1 > 0:
        assert micro_f1(threshold) == pytest.approx(f1)
