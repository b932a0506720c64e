"""Check that outputs of a head, or of its `replay`, follow its decision, up to the rounding of its scorer."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.decisions import compare, excess_of_bounds, scores_and_bounds
from xmckit.testing.assertions import assert_csr, require


def assert_outputs(
    decision: Any,
    vectors: np.ndarray,
    output: csr_matrix,
    what: str,
    among: csr_matrix | None = None,
    *,
    ordinary: int = 0,
) -> str:
    """Check that the labels output follow the decision's rule; of the candidates `among`, if there are any.

    Rounding must not explain more than a few of the first `ordinary` rows.
    """
    assert_csr(output, (len(vectors), len(decision.W)), what)
    found = compare(decision, vectors, output, among)
    require(
        found.first is None,
        f"W·x + b and {what} differ in {len(found.wrong)} of {len(vectors)} rows, first at {found.first}",
    )
    excess = excess_of_bounds(decision, found, ordinary)
    require(not excess, f"{what}: {excess}")
    return f"{found.entries} entries, {found.output} of them output, {len(found.rounded)} rows left to rounding"


def refuse_thresholds(decision: Any, vectors: np.ndarray, output: csr_matrix) -> None:
    """Fail if sets of several sizes follow one threshold per label: the rule is then not that of a ranking."""
    on = output.toarray() != 0
    margins, bound = scores_and_bounds(decision, vectors)
    highest_off = np.where(on, -np.inf, margins - bound).max(axis=0)
    lowest_on = np.where(on, margins + bound, np.inf).min(axis=0)
    by_score = bool((highest_off <= lowest_on).all()) and len(set(on.sum(axis=1).tolist())) > 1
    require(not by_score, "labels() outputs a label where W·x passes a threshold: the rule is 'sign', not 'topk'")
