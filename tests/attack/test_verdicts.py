"""The verifier against an exact enumeration of all outputs of small layers, ties included."""

from __future__ import annotations

import pytest

from benchmarks.reliability.verdicts import KINDS, attack, figures

MOST_UNRESOLVED = 0.005


def assert_nothing_got_through(instances: int, seed: int) -> None:
    found = figures([attack(instances, (seed, 0))])
    assert found["mistakes"] == []
    assert (found["wrong"], found["rejected_by_the_checker"]) == (0, 0)
    assert found["unresolved"] <= MOST_UNRESOLVED * found["instances"]
    assert found["instances"] >= instances
    assert found["argmaxable_by_ties_only"] > 0
    assert found["witnesses_beyond_float64"] > 0
    assert all(found["kinds"][kind]["instances"] for kind in KINDS)


def test_every_verdict_on_small_layers_is_right_and_proved() -> None:
    assert_nothing_got_through(3000, seed=1)


@pytest.mark.slow
def test_a_million_verdicts_on_small_layers_are_right_and_proved() -> None:
    assert_nothing_got_through(1_000_000, seed=2)
