"""The independent checker accepts every claim beside the status, also in the units that floats barely hold."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from xmckit_argmax.checker.check import check
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Context, LinearDecision
from xmckit.data.model import Split
from xmckit.verification.verify import verify


class DecisionOnly:
    """A head of which only the decision is asked."""

    def __init__(self, decision: LinearDecision):
        self._decision = decision

    def decision(self) -> LinearDecision:
        return self._decision


def checked(decision: LinearDecision, folder: Path, **params):
    labels = len(decision.W)
    sets = np.array(list(itertools.product((0, 1), repeat=labels)), dtype=np.float32)
    split = Split(X=None, Y=csr_matrix(sets))
    verifier = ArgmaxVerifier(**params)
    summary = verify(folder, verifier, [("h", DecisionOnly(decision))], split, most=len(sets), context=Context())
    assert check(folder).failures == []
    return {tuple(np.flatnonzero(row)): one for row, one in zip(sets, summary["results"][0]["verdicts"], strict=True)}


@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_margins_of_the_papers_programme_count_every_label(tmp_path: Path, rule: str) -> None:
    """They hold for the best threshold, not for that of HiGHS, and labels without slope have one too."""
    W = np.array([[0.0, 0.0], [1.0, -2.0], [-2.0, 1.0]])
    decision = LinearDecision(W, np.array([-1.0, -1.0, 0.0]), rule)
    verdicts = checked(decision, tmp_path, mode="chebyshev")
    assert sum(verdict["margin"] is not None for verdict in verdicts.values()) >= 4


def test_no_label_is_left_out_at_eps_because_of_another_scale(tmp_path: Path) -> None:
    W = np.array([[2.0, 0.0], [2.0, -2.0], [1.0, 1.0], [0.0, 1.0]])
    verdicts = checked(LinearDecision(W, np.array([1e-300, 1e-300, 0.0, 0.1])), tmp_path)
    assert verdicts[0, 1, 2]["eps"] == "argmaxable"


def test_a_margin_that_floats_cannot_hold_is_not_claimed(tmp_path: Path) -> None:
    verdicts = checked(LinearDecision(np.array([[-8e-320, -1.6e-319]]), np.array([-1.0])), tmp_path)
    assert verdicts[()]["status"] == "argmaxable"
    assert verdicts[()]["margin"] is None


def test_rows_that_scaling_rounds_have_no_margin(tmp_path: Path) -> None:
    small, large = 2.0**-1000, 2.0**300
    W = np.array([[-small, 2 * small], [-small, small], [large, large], [-1.0, 1.0], [-2 * small, -small]])
    verdicts = checked(LinearDecision(W, np.zeros(5), "topk"), tmp_path)
    assert sum(verdict["status"] == "argmaxable" for verdict in verdicts.values()) > 10
