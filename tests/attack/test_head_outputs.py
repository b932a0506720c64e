"""No label set that a head outputs is called unargmaxable: every head, with weights that tie and rows at the edge."""

from __future__ import annotations

import pytest

from benchmarks.reliability import heads as heads_attack

pytest.importorskip("xmckit_argmax")


def check(results):
    counts = results["all"]
    assert (counts[heads_attack.CONTRADICTIONS], counts[heads_attack.MISMATCHES]) == (0, 0)
    assert counts["outputs"] > 0
    return counts


def test_a_quick_attack_finds_no_contradiction():
    wanted = {("bsl", "", 0.1, 24), ("bsl", "", "validation", 2), ("dft", "", 0.1, 24), ("lml", "", None, 24)}

    def only(setting):
        params = setting.params
        width = params.get("encoder", {}).get("width")
        return (setting.head, setting.indexer, params.get("threshold"), width) in wanted

    results = heads_attack.attack(1, 60, only=only)
    assert results["trained heads"] == {"bsl": 2, "dft": 1, "lml": 1}
    check(results)


@pytest.mark.slow
def test_an_attack_on_every_head_finds_no_contradiction():
    results = heads_attack.attack(3, 200)
    counts = check(results)
    assert {"bsl", "dft", "lml", "softmax", "topk-entropy"} <= set(results["trained heads"])
    assert counts["outputs"] > 100_000
    # edges of decisions were really reached
    assert counts["outputs within rounding of another set"] > 100
