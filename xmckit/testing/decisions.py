"""Check that outputs of a head, or of its `replay`, follow its decision, up to the rounding of its scorer."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.decisions import Comparison, compare, scores_and_bounds
from xmckit.testing.assertions import assert_csr, require

LARGEST_ROUNDING = 2.0**-8
MOST_ROUNDED = 0.1  # of rows that were not looked for at the edge of a decision


def assert_outputs(
    decision: Any, vectors: np.ndarray, output: csr_matrix, what: str, among: csr_matrix | None = None
) -> Comparison:
    """Check that the labels output follow the decision's rule; of the candidates `among`, if there are any."""
    _assert_rounding(decision)
    assert_csr(output, (len(vectors), len(decision.W)), what)
    found = compare(decision, vectors, output, among)
    require(
        found.first is None,
        f"W·x + b and {what} differ in {len(found.wrong)} of {len(vectors)} rows, first at {found.first}",
    )
    return found


def assert_few_rounded(found: Comparison, rows: int, what: str) -> None:
    """Check that rounding does not explain most of the outputs: `rounding` or `threshold` is then too large."""
    rounded = int(np.count_nonzero(found.rounded < rows))
    require(rounded <= MOST_ROUNDED * rows, f"only rounding explains {what} in {rounded} of {rows} ordinary rows")


def describe(found: Comparison) -> str:
    return f"{found.entries} entries, {found.output} of them output, {len(found.rounded)} rows left to rounding"


def _assert_rounding(decision: Any) -> None:
    sound = decision.rounding is None or 0 <= decision.rounding <= LARGEST_ROUNDING
    require(sound, f"`rounding` is {decision.rounding!r}, expected None or a number from 0 to {LARGEST_ROUNDING}")
    require(bool(np.isfinite(decision.threshold)), f"`threshold` is {decision.threshold!r}, expected a finite number")


def refuse_thresholds(decision: Any, vectors: np.ndarray, output: csr_matrix) -> None:
    """Fail if sets of several sizes follow one threshold per label: the rule is then not that of a ranking."""
    on = output.toarray() != 0
    margins, bound = scores_and_bounds(decision, vectors)
    highest_off = np.where(on, -np.inf, margins - bound).max(axis=0)
    lowest_on = np.where(on, margins + bound, np.inf).min(axis=0)
    by_score = bool((highest_off <= lowest_on).all()) and len(set(on.sum(axis=1).tolist())) > 1
    require(not by_score, "labels() outputs a label where W·x passes a threshold: the rule is 'sign', not 'topk'")
