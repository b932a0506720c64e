"""What verdicts claim beside their status: honest claims of every kind pass, and none that is forged does."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from xmckit_argmax.checker.check import check, totals
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Alternating, LinearDecision, XmckitError, store
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import StorageError
from xmckit.verification import verify as verification


class FixedHead:
    def __init__(self, decision: LinearDecision):
        self._decision = decision

    def decision(self) -> LinearDecision:
        return self._decision


def dft(labels: int, degree: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(labels) / labels
    waves = [wave(k * angles) for k in range(1, degree + 1) for wave in (np.cos, np.sin)]
    return np.stack([np.ones(labels), *waves], axis=1).astype(np.float32)


def gaussian(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


DECISIONS = {
    "sign": LinearDecision(gaussian(0, 6, 3), None),
    "bias": LinearDecision(gaussian(1, 6, 3), gaussian(2, 6)),
    "topk": LinearDecision(gaussian(3, 6, 3), None, "topk"),
    "topk with bias": LinearDecision(gaussian(4, 6, 3), gaussian(5, 6), "topk"),
    "dft": LinearDecision(dft(6, 1), None, structure=Alternating(1, 0, np.random.default_rng(6).permutation(6))),
    "far": LinearDecision(gaussian(7, 6, 3), 100 * gaussian(8, 6)),
    "scaled": LinearDecision(gaussian(9, 6, 3) * 10.0 ** np.arange(-30, 30, 10)[:, None], None),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "largest margins": {"margin": "largest"},
    "a large eps in a small box": {"eps": 0.05, "box": 1.0},
    "linear programmes": {"mode": "chebyshev"},
    "linear programmes, large eps": {"mode": "chebyshev", "eps": 0.05, "box": 1.0},
}


def verified(folder: Path, decision: LinearDecision, **params: Any) -> dict[str, Any]:
    folder.mkdir()
    sets = csr_matrix(np.asarray(list(itertools.product([0, 1], repeat=len(decision.W))), dtype=np.float32))
    heads = [("fixed", FixedHead(decision))]
    return verification.verify(
        folder, ArgmaxVerifier(**params), heads, Split(X=None, Y=sets), most=1000, context=Context()
    )


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("how", SETTINGS)
def test_honest_claims_hold(tmp_path: Path, name: str, how: str) -> None:
    summary = verified(tmp_path / "v", DECISIONS[name], **SETTINGS[how])
    report = check(tmp_path / "v")
    assert report.failures == []
    verdicts = summary["results"][0]["verdicts"]
    assert report.claims == {claim: sum(v[claim] is not None for v in verdicts) for claim in report.claims}
    assert report.claims["margin"] > 0
    assert name.startswith("topk") or report.claims["eps"] > 0
    assert (report.claims["radius"] > 0) == (name in ("sign", "dft", "scaled"))
    assert (report.claims["ideal"] > 0) == (name == "dft")


def first(verdicts: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(verdict for verdict in verdicts if all(verdict[key] == value for key, value in wanted.items()))


def larger_margin(verdicts: list[dict[str, Any]]) -> None:
    next(verdict for verdict in verdicts if verdict["margin"])["margin"] *= 1.01


def smaller_margin(verdicts: list[dict[str, Any]]) -> None:
    next(verdict for verdict in verdicts if verdict["margin"])["margin"] *= 0.99


def margin_of_what_cannot_be(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, status="unargmaxable")["margin"] = 0.1


def larger_radius(verdicts: list[dict[str, Any]]) -> None:
    one = next(verdict for verdict in verdicts if verdict["margin"])
    one["radius"] = [one["radius"][1] * 1.01, one["radius"][1] * 2]


def tighter_radius(verdicts: list[dict[str, Any]]) -> None:
    one = next(verdict for verdict in verdicts if verdict["margin"])
    one["radius"] = [one["radius"][0], one["radius"][1] * 0.99]


def can_at_eps(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, status="argmaxable", eps="unargmaxable")["eps"] = "argmaxable"


def cannot_at_eps(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, eps="argmaxable")["eps"] = "unargmaxable"


def can_at_eps_by_nothing(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, status="unargmaxable")["eps"] = "argmaxable"


def can_ideally(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, ideal="unargmaxable")["ideal"] = "argmaxable"


def cannot_ideally(verdicts: list[dict[str, Any]]) -> None:
    first(verdicts, ideal="argmaxable")["ideal"] = "unargmaxable"


def ideal_without_structure(verdicts: list[dict[str, Any]]) -> None:
    verdicts[0]["ideal"] = "argmaxable"


FORGERIES = [
    *(("margin", larger_margin, name, "as it comes") for name in ("sign", "bias")),
    *(("margin", smaller_margin, name, "as it comes") for name in ("sign", "bias")),
    *(("margin", larger_margin, name, "largest margins") for name in ("topk", "topk with bias")),
    *(("margin", smaller_margin, name, how) for name in ("topk", "topk with bias") for how in list(SETTINGS)[:2]),
    ("margin", margin_of_what_cannot_be, "sign", "as it comes"),
    ("radius", larger_radius, "sign", "largest margins"),
    ("radius", tighter_radius, "sign", "largest margins"),
    ("radius", tighter_radius, "sign", "as it comes"),
    ("radius", tighter_radius, "sign", "linear programmes"),
    *(("eps", can_at_eps, name, "a large eps in a small box") for name in ("sign", "bias", "far")),
    *(("eps", cannot_at_eps, name, "a large eps in a small box") for name in ("sign", "bias")),
    ("eps", can_at_eps_by_nothing, "sign", "as it comes"),
    ("ideal", can_ideally, "dft", "as it comes"),
    ("ideal", cannot_ideally, "dft", "as it comes"),
    ("ideal", ideal_without_structure, "sign", "as it comes"),
]


@pytest.mark.parametrize(("claim", "forge", "name", "how"), FORGERIES, ids=lambda part: getattr(part, "__name__", part))
def test_forged_claims_are_rejected(tmp_path: Path, claim: str, forge: Any, name: str, how: str) -> None:
    folder = tmp_path / "v"
    summary = copy.deepcopy(verified(folder, DECISIONS[name], **SETTINGS[how]))
    result = summary["results"][0]
    forge(result["verdicts"])
    facts = verification._verdict_facts(result["verdicts"], store.read_csr(folder / "assignments.npz"))
    result.update(facts)
    store.write_json(folder / "verdicts.json", summary)
    (failure,) = check(folder).failures
    assert f"its {claim} " in failure
    assert "wrong or has no proof" in failure


@pytest.mark.parametrize("key", ["counts", "share", "smallest_margin", "eps", "ideal", "replayed", "missed", "never"])
def test_totals_of_verdicts_are_recounted(tmp_path: Path, key: str) -> None:
    summary = verified(tmp_path / "v", DECISIONS["sign"])
    result = summary["results"][0]
    if key == "never":
        result["never"][0]["labels"] = [0]
    elif isinstance(result[key], dict):
        result[key] = {name: count + 1 for name, count in result[key].items()}
    else:
        result[key] = 0.25
    store.write_json(tmp_path / "v" / "verdicts.json", summary)
    assert check(tmp_path / "v").failures == [f"head fixed, full: its {key} differs from the files"]


def test_a_wider_box_or_a_smaller_eps_than_was_asked_is_noticed(tmp_path: Path) -> None:
    summary = verified(tmp_path / "v", DECISIONS["bias"], eps=0.05, box=1.0)
    for key, value in (("box", 2.0), ("eps", 0.001)):
        forged = copy.deepcopy(summary)
        forged["verifier"]["params"][key] = value
        store.write_json(tmp_path / "v" / "verdicts.json", forged)
        assert check(tmp_path / "v").failures


def test_claims_about_an_unknown_box_are_counted_as_not_checked(tmp_path: Path) -> None:
    summary = verified(tmp_path / "v", DECISIONS["sign"])
    summary["verifier"]["params"] = None
    store.write_json(tmp_path / "v" / "verdicts.json", summary)
    report = check(tmp_path / "v")
    assert report.failures == []
    assert report.claims["eps"] == report.claims["radius"] == 0
    assert report.unchecked["eps"] == 64


def changed(*path: Any, to: Any) -> Any:
    def change(summary: dict[str, Any]) -> None:
        place: Any = summary
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


RESULT = ("results", 0)


@pytest.mark.parametrize(
    "change",
    [
        changed(*RESULT, "rule", to="topk"),
        changed(*RESULT, "labels", to=7),
        changed(*RESULT, "dim", to=4),
        changed(*RESULT, "bias", to=True),
        changed(*RESULT, "structured", to=True),
        changed(*RESULT, "verifiable", to=False),
        changed("results", to=[]),
        changed("assignments", to=1000),
        changed("of", to=3),
        changed("format", to=2),
        changed("verifier", "params", "box", to=-1.0),
        changed("verifier", "params", "box", to=float("inf")),
        changed("verifier", "params", "eps", to=-1.0),
        lambda summary: summary["results"].append(summary["results"][0]),
    ],
)
def test_what_verdicts_say_about_the_decision_and_themselves_is_checked(tmp_path: Path, change: Any) -> None:
    summary = verified(tmp_path / "v", DECISIONS["sign"])
    change(summary)
    (tmp_path / "v" / "verdicts.json").write_text(json.dumps(summary))
    assert is_rejected(tmp_path / "v")


def is_rejected(folder: Path) -> bool:
    """Return whether the checker rejects a claim, or refuses to read the file because of its numbers."""
    try:
        return bool(check(folder).failures)
    except StorageError:
        return True


@pytest.mark.parametrize(
    ("name", "claim", "value"),
    [
        ("topk", "margin", -0.5),
        ("sign", "margin", 10**400),
        ("sign", "radius", [0.0, -(10**400)]),
        ("sign", "radius", [0.0, float("-inf")]),
        ("sign", "radius", [-1.0, 1e9]),
        ("topk", "radius", [0.0, 1e9]),
        ("sign", "eps", "surely"),
        ("sign", "replayed", "surely"),
    ],
)
def test_claims_that_are_no_claims_are_rejected_even_when_they_are_counted(
    tmp_path: Path, name: str, claim: str, value: Any
) -> None:
    summary = verified(tmp_path / "v", DECISIONS[name])
    result = summary["results"][0]
    first(result["verdicts"], status="argmaxable")[claim] = value
    active = [np.flatnonzero(row) for row in itertools.product([0, 1], repeat=6)]
    result.update(totals(result["verdicts"], active))
    (tmp_path / "v" / "verdicts.json").write_text(json.dumps(summary))
    assert is_rejected(tmp_path / "v")


def test_a_replay_without_a_witness_is_no_replay(tmp_path: Path) -> None:
    summary = verified(tmp_path / "v", DECISIONS["sign"])
    first(summary["results"][0]["verdicts"], status="unargmaxable")["replayed"] = True
    store.write_json(tmp_path / "v" / "verdicts.json", summary)
    (failure,) = check(tmp_path / "v").failures
    assert "a replay needs a witness" in failure


def test_weights_in_half_precision_are_checked(tmp_path: Path) -> None:
    verified(tmp_path / "v", LinearDecision(gaussian(0, 6, 3).astype(np.float16), None))
    assert check(tmp_path / "v").failures == []


def test_the_length_of_a_tiny_witness_is_not_zero(tmp_path: Path) -> None:
    verified(tmp_path / "v", LinearDecision(gaussian(0, 6, 3) * 1e300, None, "topk"))
    assert check(tmp_path / "v").failures == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-305, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("shift", [None, 1.0, "as large"])
@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_claims_hold_at_any_scale_of_the_weights(tmp_path: Path, scale: float, shift: Any, rule: str) -> None:
    """And little stays open: squares of such numbers are no numbers, and no square is needed."""
    b = None if shift is None else gaussian(3, 6) * (scale if shift == "as large" else shift)
    summary = verified(tmp_path / "v", LinearDecision(gaussian(0, 6, 3) * scale, b, rule))
    assert check(tmp_path / "v").failures == []
    result = summary["results"][0]
    assert result["counts"]["unresolved"] == 0
    assert rule == "topk" or result["eps"]["argmaxable"] + result["eps"]["unargmaxable"] >= 60


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [None, 1.0, 1e200])
@pytest.mark.parametrize("margin", ["any", "largest"])
def test_claims_hold_for_rows_of_all_scales(tmp_path: Path, seed: int, shift: float | None, margin: str) -> None:
    scales = 10.0 ** np.random.default_rng(seed).integers(-250, 250, (6, 1))
    b = None if shift is None else gaussian(seed, 6) * shift
    summary = verified(tmp_path / "v", LinearDecision(gaussian(seed, 6, 2) * scales, b), margin=margin, seconds=5.0)
    report = check(tmp_path / "v")
    assert report.failures == []
    assert report.proved == summary["results"][0]["counts"]


@pytest.mark.parametrize(
    "W",
    [
        [[1e113], [-1e113], [2e113]],  # the best threshold is next to 0, and 0 far from the logits
        [[1e-25, 3.0], [1e10, 2e29], [-1.0, 1e-30], [1e20, -1e25]],
        [  # nnls of nearly equal rows is singular
            [-1.7764912860520798, 2.553291812924095],
            [1.7764913024373423, -2.553291828319819],
            [-1.7764913038169927, 2.5532918384570134],
            [-1.776491303816993, 2.5532918384570134],
        ],
    ],
)
@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_the_largest_margins_of_uneven_rows_hold(tmp_path: Path, W: Any, rule: str) -> None:
    decision = LinearDecision(np.asarray(W), None, rule)
    verified(tmp_path / "v", decision, margin="largest")
    report = check(tmp_path / "v")
    assert report.failures == []
    assert report.claims["margin"]


@pytest.mark.parametrize("params", [{"box": float("inf")}, {"box": 1e308}, {"eps": float("inf")}])
def test_a_box_or_eps_whose_radius_is_no_number_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises((XmckitError, ValueError)):
        ArgmaxVerifier(**params)
