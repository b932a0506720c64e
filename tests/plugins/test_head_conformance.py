"""Every first-party head is held to the checks that third parties' heads are held to."""

from __future__ import annotations

import pytest

from xmckit.testing import Case, parametrize_with_checks

pytest.importorskip("torch")

QUICK = {"epochs": 3, "encoder": {"use": "sparse-linear", "width": 24}}
WIDE = {"epochs": 3, "slack": 5}

CASES = [
    Case("head", "dft", WIDE),
    Case("head", "dft", {**QUICK, "slack": 30}),
    Case("head", "dft", {**WIDE, "slack": 0, "bias": False, "order": "given"}),
    Case("head", "dft", {**WIDE, "angles": "learned"}),
    Case("head", "dft", {**WIDE, "loss": "lml"}),
    Case("head", "lml", {**QUICK, "dim": 12}),
    Case("head", "lml", {**QUICK, "dim": 30}),
    Case("head", "softmax", {**QUICK, "dim": 12}),
    Case("head", "topk-entropy", {**QUICK, "dim": 12}),
]


@parametrize_with_checks(CASES)
def test_conformance(check):
    check()
