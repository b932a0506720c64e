"""The oracle that verifiers are held to, against counting and against sampling."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from xmckit import LinearDecision
from xmckit.testing.brute_force import outputs, possible_sets
from xmckit.testing.verifiers import tiny_decision


@pytest.mark.parametrize(("labels", "width"), [(3, 1), (5, 2), (6, 3), (4, 4)])
def test_it_finds_as_many_cells_as_there_are(labels, width):
    # Cover (1965): the cells of hyperplanes in general position through the origin
    expected = 2 * sum(comb(labels - 1, k) for k in range(width))
    assert len(possible_sets(tiny_decision(labels, width, seed=labels))) == expected


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_vectors_give_is_what_it_finds(rule, bias):
    decision = tiny_decision(5, 2, rule=rule, bias=bias, seed=9)
    possible = possible_sets(decision)
    rng, everything = np.random.default_rng(0), np.arange(5)
    scores = (rng.standard_normal((4000, 2)) * 20) @ decision.W.T.astype(float) + (
        0 if decision.b is None else decision.b
    )
    if rule == "sign":
        found = {tuple(row) for row in (scores > 0).tolist()}
    else:
        ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
        found = {tuple(row) for count in range(6) for row in (ranks < count).tolist()}
    assert found <= possible
    assert len(found) > len(possible) / 2
    x = np.array([0.93, -2.11])
    given = decision.W @ x + (0 if decision.b is None else decision.b) > 0
    if rule == "sign":
        assert outputs(decision, x, given, everything)
        assert not outputs(decision, x, ~given, everything)


def test_rows_in_special_position_are_refused():
    with pytest.raises(ValueError, match="general position"):
        possible_sets(LinearDecision(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), None))
