"""The independent checker: what the oracle proves passes, and nothing that is damaged or forged does."""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import json
import shutil
import sys
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from forging import reseal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from xmckit_argmax.checker import check as checker
from xmckit_argmax.checker import claims as checker_claims
from xmckit_argmax.checker import evidence as checker_evidence
from xmckit_argmax.checker import proofs as checker_proofs
from xmckit_argmax.checker.check import check
from xmckit_argmax.cli.certificates import certificates
from xmckit_argmax.cli.common import find_verified_folders

import xmckit
from xmckit import pipeline, store
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.registry import Registry
from xmckit.verification import verify as verification
from xmckit.verification.verify import content_sha256, verify

ORACLE = Path(__file__).parents[3] / "assets" / "brute_force_plugin.py"


@pytest.fixture(scope="module")
def oracle():
    spec = importlib.util.spec_from_file_location("brute_force_plugin", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("brute_force_plugin", None)


class FixedHead:
    """A head that is nothing but its decision; with candidates, it is behind a shortlist, and outputs no label."""

    def __init__(self, decision, candidates=None):
        self._decision = decision
        if candidates is not None:
            self.candidates = lambda X: candidates
            self.labels = lambda X: csr_matrix(candidates.shape, dtype=np.float32)
            self.features = lambda X: np.zeros((X.shape[0], decision.W.shape[1]))

    def decision(self):
        return self._decision


def all_label_sets(labels: int) -> csr_matrix:
    return csr_matrix(np.array(list(itertools.product([0, 1], repeat=labels)), dtype=np.float32))


def verified(folder, verifier, decision, sets, candidates=None):
    folder.mkdir(parents=True)
    rows = Split(X=None if candidates is None else csr_matrix(np.zeros((sets.shape[0], 1))), Y=sets)
    head = FixedHead(decision, candidates)
    return verify(folder, verifier, [("fixed", head)], rows, most=10_000, context=Context())


def decision_of(seed: int, labels=6, dim=2, rule="sign", bias=True, dtype=np.float32) -> xmckit.LinearDecision:
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(labels, dim)).astype(dtype)
    b = rng.normal(size=labels).astype(dtype) if bias else None
    return xmckit.LinearDecision(W, b, rule)


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_everything_that_the_oracle_says_is_proved(tmp_path, oracle, rule, bias, dim):
    decision = decision_of(dim, 5, dim, rule, bias)
    summary = verified(tmp_path / "v", oracle.BruteForce(), decision, all_label_sets(5))
    report = check(tmp_path / "v")
    assert report.failures == []
    assert report.proved == summary["results"][0]["counts"]
    # cells of 5 hyperplanes in general position (Cover 1965): through the origin, or anywhere
    free = dim + (rule == "topk")
    cells = sum(comb(5, i) for i in range(free + 1)) if bias else 2 * sum(comb(4, i) for i in range(free))
    # without biases x = 0 ties all labels: it outputs no label, or those with the lowest ids
    sets = [np.flatnonzero(row).tolist() for row in all_label_sets(5).toarray()]
    by_zero = [] if bias else [[]] if rule == "sign" else [list(range(size)) for size in range(6)]
    statuses = [verdict["status"] for verdict in summary["results"][0]["verdicts"]]
    by_tie = sum(statuses[sets.index(labels)] == "argmaxable" for labels in by_zero)
    assert by_tie == len(by_zero)
    assert cells <= report.proved["argmaxable"] <= cells + by_tie


whole = st.integers(-2, 2)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(1, 5).flatmap(lambda labels: st.integers(1, 3).flatmap(lambda dim: st.tuples(
        st.lists(st.lists(whole, min_size=dim, max_size=dim), min_size=labels, max_size=labels),
        st.none() | st.lists(whole, min_size=labels, max_size=labels),
    ))),
    st.sampled_from(["sign", "topk"]),
)  # fmt: skip
def test_ties_duplicates_and_zero_rows(tmp_path_factory, oracle, weights, rule):
    W, b = weights
    decision = xmckit.LinearDecision(np.array(W, np.float64), None if b is None else np.array(b, np.float64), rule)
    folder = tmp_path_factory.mktemp("ties") / "v"
    verified(folder, oracle.BruteForce(), decision, all_label_sets(len(W)))
    assert check(folder).failures == []


class Says:
    """A verifier that returns the given verdicts."""

    def __init__(self, *verdicts):
        self.verdicts = verdicts

    def verify(self, decision, assignments, *, candidates=None, context):
        return xmckit.Verdicts(self.verdicts)


def said(folder, verdict, W, active, b=None, rule="sign", candidates=None):
    W = np.asarray(W, np.float64)
    sets = np.zeros((1, len(W)), np.float32)
    sets[0, list(active)] = 1
    shortlist = None
    if candidates is not None:
        shortlist = np.zeros((1, len(W)), np.float32)
        shortlist[0, list(candidates)] = 1
        shortlist = csr_matrix(shortlist)
    decision = xmckit.LinearDecision(W, None if b is None else np.asarray(b, np.float64), rule)
    verified(folder, Says(verdict), decision, csr_matrix(sets), shortlist)
    return check(folder)


def witness(*x):
    return xmckit.Verdict("argmaxable", witness=np.array(x, np.float64))


def certificate(*labels, multipliers=None):
    parts = np.ones(len(labels)) if multipliers is None else np.array(multipliers, np.float64)
    return xmckit.Verdict("unargmaxable", certificate=(np.array(labels), parts))


def test_a_witness_is_judged_beyond_float64(tmp_path):
    """1 + 2^-60 − 1 is 0 in float64: the exact sum decides, both ways."""
    tiny = 2.0**-60
    assert said(tmp_path / "a", witness(1.0, 1.0, 1.0), [[1.0, tiny, -1.0]], {0}).failures == []
    report = said(tmp_path / "b", witness(1.0, 1.0, 1.0), [[1.0, -tiny, -1.0]], {0})
    assert report.failures == [
        "head fixed, full, assignment 0: not argmaxable: its witness gives label 0 a logit of 0 or less"
    ]
    rows = [[1.0, tiny, -1.0], [0.0, 0.0, 0.0]]
    assert said(tmp_path / "c", witness(1.0, 1.0, 1.0), rows, {0}, rule="topk").failures == []
    (failure,) = said(tmp_path / "d", witness(1.0, 1.0, 1.0), rows, {1}, rule="topk").failures
    assert "does not rank label 1 before label 0" in failure


def test_what_overflows_is_settled_exactly(tmp_path):
    """Products of 1e350: their difference decides, both ways. The biases fix the scale of x."""
    rows = [[1e200, -1e200, 1e-200], [1e-200, 0.0, 0.0]]  # no power of two brings the first nearer without loss
    report = said(tmp_path / "a", witness(2e150, 1e150, 0), rows, {0, 1}, [1.0, 1.0])
    assert (report.failures, report.exact) == ([], 1)
    assert "0 or less" in said(tmp_path / "b", witness(1e150, 2e150, 0), rows, {0, 1}, [1.0, 1.0]).failures[0]
    rows = [[1e200, -1e200], [1e-200, 0.0]]
    assert said(tmp_path / "c", witness(2e150, 1e150), rows, {0}, rule="topk").failures == []
    assert said(tmp_path / "d", witness(2e150, 1e150), rows, {1}, rule="topk").failures != []


def test_a_margin_is_not_believed_where_error_bounds_overflow(tmp_path):
    told = xmckit.Verdict("argmaxable", witness=np.array([0.7e308, 0.65e308] * 3), margin=0.9)
    (failure,) = said(tmp_path / "v", told, [[1.0, -1.0] * 3], {0}, [1.0]).failures
    assert "its margin 0.9 is wrong or has no proof" in failure


def test_a_logit_of_exactly_zero_is_off(tmp_path):
    assert said(tmp_path / "a", witness(0.0), [[1.0]], set()).failures == []
    assert "a logit of 0 or less" in said(tmp_path / "b", witness(0.0), [[1.0]], {0}).failures[0]
    assert said(tmp_path / "c", witness(1.0), [[1.0], [0.0]], {0}).failures == []
    assert "logit of more than 0" in said(tmp_path / "d", witness(5e-324), [[1.0]], set()).failures[0]


def test_the_lower_id_wins_a_tie(tmp_path):
    twins = [[1.0], [1.0], [0.0]]
    assert said(tmp_path / "a", witness(1.0), twins, {0}, rule="topk").failures == []
    assert "rank label 1 before label 0" in said(tmp_path / "b", witness(1.0), twins, {1}, rule="topk").failures[0]
    assert said(tmp_path / "c", certificate(0, 1), twins, {1}, rule="topk").failures == []
    assert "this tie does not forbid the set" in said(
        tmp_path / "d", certificate(0, 1), twins, {0}, rule="topk"
    ).failures[0]  # fmt: skip


def test_a_combination_of_labels_that_may_be_zero_is_no_proof(tmp_path):
    """x = 0 puts out no label; with another column it is not the only x."""
    line = [[1.0], [-1.0], [3.0]]
    assert said(tmp_path / "a", certificate(0, 1), line, {2}).failures == []  # they span all: x = 0, and 2 is tied too
    assert "verify the run again" in said(tmp_path / "b", certificate(0, 1), line, set()).failures[0]
    plane = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]
    assert "does not forbid" in said(tmp_path / "c", certificate(0, 1), plane, {2}).failures[0]
    # with biases of opposite signs there is no x at all
    assert said(tmp_path / "d", certificate(0, 1), [[1.0], [-1.0]], set(), b=[1.0, -0.5]).failures == []
    assert "does not forbid" in said(tmp_path / "e", certificate(0, 1), plane, {2}, b=[1.0, -1.0, 0.0]).failures[0]


def test_the_last_two_multipliers_determine_the_others(tmp_path):
    """Labels 0 and 1 are equal, and 2 and 3: {0, 2} would tie all four, and 1 comes before 2."""
    twins = [[1.0], [1.0], [2.0], [2.0]]
    assert said(tmp_path / "a", certificate(0, 3, 1, 2), twins, {0, 2}, rule="topk").failures == []
    assert "no combination" in said(tmp_path / "b", certificate(1, 0, 2, 3), twins, {0, 2}, rule="topk").failures[0]
    assert "does not forbid" in said(tmp_path / "c", certificate(0, 1), twins, {0, 2}, rule="topk").failures[0]


def exactly(*integers):
    x = [number / integers[-1] for number in integers[:-1]]
    return xmckit.Verdict("argmaxable", witness=np.array(x), exact_witness=integers)


def test_a_witness_beyond_float64_is_checked_in_integers(tmp_path):
    """3x − 1 ≤ 0 and 1 − 3x ≤ 0 leave x = 1/3."""
    third = [[3.0], [-3.0]], set(), [-1.0, 1.0]
    assert said(tmp_path / "a", exactly(1, 3), *third).failures == []
    assert "more than 0" in said(tmp_path / "b", witness(1 / 3), *third).failures[0]
    assert "more than 0" in said(tmp_path / "c", exactly(6004799503160661, 2**54), *third).failures[0]
    far = xmckit.Verdict("argmaxable", witness=np.array([0.5]), exact_witness=(1, 3))
    assert "not next to" in said(tmp_path / "far", far, *third).failures[0]
    for number, wrong in enumerate([(1, -3), (1,), (1, 1, 3), (1, 0)]):
        told = xmckit.Verdict("argmaxable", witness=np.array([1 / 3]), exact_witness=wrong)
        assert "witness of integers" in said(tmp_path / f"d{number}", told, *third).failures[0]


def test_a_bias_that_leaves_room_is_no_proof(tmp_path):
    """x > 1 and −x > b forbid each other unless b < −1."""
    W = [[1.0], [-1.0]]
    assert said(tmp_path / "a", certificate(0, 1), W, {0, 1}, b=[-1.0, 1.0]).failures == []
    assert said(tmp_path / "b", certificate(0, 1), W, {0, 1}, b=[-2.0, 1.0]).failures == []
    (failure,) = said(tmp_path / "c", certificate(0, 1), W, {0, 1}, b=[-1.0, 2.0]).failures
    assert "no combination" in failure


def test_two_free_directions_need_the_bias_equation(tmp_path):
    """W = 0 for three labels with biases 1, 1 and −2 of one sign each: only with the biases is λ one line."""
    zero = [[0.0], [0.0]]
    assert said(tmp_path / "a", certificate(0, 1), zero, {0, 1}, b=[1.0, -1.0]).failures == []
    assert (
        "no combination with positive multipliers"
        in said(tmp_path / "b", certificate(0, 1), zero, {0, 1}, b=[1.0, 1.0]).failures[0]
    )
    assert said(tmp_path / "c", certificate(0), zero, {0, 1}, b=[0.0, 1.0]).failures == []


def test_topk_certificates_balance_active_and_other_labels(tmp_path):
    """The middle of three points on a line is never ranked first alone."""
    line = [[0.0], [1.0], [2.0]]
    assert said(tmp_path / "a", certificate(0, 1, 2), line, {1}, rule="topk").failures == []
    assert said(tmp_path / "b", certificate(0, 1, 2), line, {0}, rule="topk").failures != []


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (certificate(0, 0, 1), "expected different ones that count"),
        (certificate(0, 7), "expected different ones that count"),
        (certificate(-1, 0), "expected different ones that count"),
        (certificate(), "expected different ones that count"),
        (certificate(0, 1, multipliers=[1.0, -1.0]), "multiplier that is not positive"),
        (certificate(0, 1, multipliers=[1.0, np.nan]), "multiplier that is not positive"),
        (certificate(0, 2), "no combination with positive multipliers"),
        (certificate(0, 1, 2), "no combination with positive multipliers"),
        (xmckit.Verdict("unargmaxable"), "expected different ones that count"),
        (xmckit.Verdict("argmaxable"), "no witness of finite numbers"),
        (witness(np.inf, 1.0), "no witness of finite numbers"),
        (witness(1.0, 1.0), "a logit of 0 or less"),
        (xmckit.Verdict("unargmaxable", missed=(1,)), "claims missed labels [1], but the files give []"),
    ],
)
def test_forged_proofs_are_rejected(tmp_path, claim, reason):
    report = said(tmp_path / "v", claim, [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], {0, 1, 2})
    assert len(report.failures) == 1
    assert reason in report.failures[0]


def test_the_same_claim_honestly_made_passes(tmp_path):
    assert said(tmp_path / "v", certificate(0, 1), [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], {0, 1, 2}).failures == []


class Twice(Says):
    """The first answer is for the full layer, the second for the candidates."""

    def verify(self, decision, assignments, *, candidates=None, context):
        return xmckit.Verdicts([self.verdicts[candidates is not None]])


def shortlisted(folder, full, listed, active, candidates):
    W = np.array([[1.0], [-1.0], [2.0]])
    sets = np.zeros((2, 3), np.float32)
    sets[0, list(active)] = 1
    sets[1, list(candidates)] = 1
    verified(folder, Twice(full, listed), xmckit.LinearDecision(W, None), csr_matrix(sets[:1]), csr_matrix(sets[1:]))
    return check(folder)


def test_only_candidates_count_behind_a_shortlist(tmp_path):
    cannot = certificate(0, 2)  # x > 0 and 2x < 0
    assert shortlisted(tmp_path / "a", cannot, witness(1.0), {0}, {0, 1}).failures == []
    (failure,) = shortlisted(tmp_path / "b", cannot, cannot, {0}, {0, 1}).failures
    assert "fixed, shortlist" in failure
    assert "expected different ones that count" in failure
    missed = xmckit.Verdict("unargmaxable", "exact", missed=(0,))
    assert shortlisted(tmp_path / "c", cannot, missed, {0}, {1, 2}).failures == []
    (failure,) = shortlisted(tmp_path / "d", cannot, witness(1.0), {0}, {1, 2}).failures
    assert "claims missed labels [], but the files give [0]" in failure
    lying = xmckit.Verdict("argmaxable", witness=np.array([1.0]), missed=(0,))
    (failure,) = shortlisted(tmp_path / "e", cannot, lying, {0}, {1, 2}).failures
    assert "are not candidates" in failure


def test_it_shares_nothing_with_what_it_checks():
    """Nothing but numpy, flint and the reading of files; and each file is short enough to read in five minutes."""
    imported = set()
    for module in (checker, checker_claims, checker_evidence, checker_proofs):
        source = Path(module.__file__).read_text()
        assert len(source.splitlines()) <= 180
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    outside = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    own = {name for name in outside if name.startswith("xmckit_argmax.checker.")}
    assert outside - own == {"numpy", "flint.fmpq", "flint.fmpz_mat", "xmckit.store"}


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, original):
    """A run folder, as far as the checker looks."""
    folder = tmp_path / "runs" / "small" / "20260101T000000-aaaa" / "stages" / "3-verify"
    return shutil.copytree(original, folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory, oracle):
    folder = tmp_path_factory.mktemp("original") / "verify"
    verified(folder, oracle.BruteForce(), decision_of(1), all_label_sets(6))
    return folder


def rewrite(folder, name, change, *, forged=True):
    """Change the arrays of a file; a forger also brings the checksum up to date."""
    arrays = store.read_arrays(folder / name)
    change(arrays)
    store.write_arrays(folder / name, arrays)
    if forged:
        verdicts = store.read_json(folder / "verdicts.json")
        verdicts["files"][name] = content_sha256(arrays)
        store.write_json(folder / "verdicts.json", verdicts)


def other_label(arrays):
    labels = arrays["fixed/full/certificate_labels"]
    labels[0] = next(label for label in range(6) if label not in labels[:3])


def negative_multiplier(arrays):
    arrays["fixed/full/certificate_multipliers"][3] *= -1


def other_witness(arrays):
    arrays["fixed/full/witness"] *= -1


def swapped_positions(arrays):
    positions = arrays["fixed/full/certificate_of"]
    positions[:] = positions[::-1].copy()


def dropped_certificate(arrays):
    arrays["fixed/full/certificate_of"][0] = 10_000


def flipped_row(arrays):
    arrays["W"][0] *= -1


def other_bias(arrays):
    arrays["b"][:] += 3


def other_sets(arrays):
    arrays["indices"][:] = 5 - arrays["indices"]


def weightless_entry(arrays):
    arrays["data"][0] = 0


def overlapping_sets(arrays):
    arrays["indptr"][1] = arrays["indptr"][2] + 1


CHANGES = [
    ("certificates.npz", other_label),
    ("certificates.npz", negative_multiplier),
    ("certificates.npz", other_witness),
    ("certificates.npz", swapped_positions),
    ("certificates.npz", dropped_certificate),
    ("decision-fixed.npz", flipped_row),
    ("decision-fixed.npz", other_bias),
    ("assignments.npz", other_sets),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[change.__name__ for _, change in CHANGES])
def test_a_forged_file_is_rejected_even_with_its_checksum(stored, name, change):
    rewrite(stored, name, change)
    failures = check(stored).failures
    assert failures
    assert any("is not proved" in failure or ": not " in failure for failure in failures), failures


@pytest.mark.parametrize(
    ("change", "text"), [(weightless_entry, "expected ones in a matrix"), (overlapping_sets, "indptr decreases")]
)
def test_label_sets_that_another_reader_would_read_otherwise_are_rejected(stored, change, text):
    rewrite(stored, "assignments.npz", change)
    (failure,) = check(stored).failures
    assert text in failure


def test_an_edit_that_no_proof_notices_is_noticed_by_the_checksum(stored):
    """Twice the weights and biases: every proof still holds, for a layer that is not the head's."""

    def doubled(arrays):
        arrays["W"] *= 2
        arrays["b"] *= 2

    rewrite(stored, "decision-fixed.npz", doubled, forged=False)
    assert check(stored).failures == ["decision-fixed.npz is not the file that was written with verdicts.json"]


@pytest.mark.parametrize("status", ["argmaxable", "unargmaxable", "unresolved"])
def test_a_flipped_status_is_rejected(stored, status):
    original = store.read_json(stored / "verdicts.json")
    for update_counts in (False, True):
        verdicts = copy.deepcopy(original)
        result = verdicts["results"][0]
        flipped = next(item for item in result["verdicts"] if item["status"] not in (status, "unresolved"))
        flipped["status"] = status
        if update_counts:
            result.update(recounted(stored, result["verdicts"]))
        store.write_json(stored / "verdicts.json", verdicts)
        report = check(stored)
        if status == "unresolved" and update_counts:
            assert report.failures == []  # it claims nothing, and is counted as such
            assert report.proved["unresolved"] == 1
        else:
            assert report.failures
            assert any(": not " in failure for failure in report.failures) == (status != "unresolved")


def recounted(folder, verdicts):
    """What a forger writes beside verdicts that were changed."""
    facts = verification._verdict_facts(verdicts, store.read_csr(folder / "assignments.npz"))
    return {key: value for key, value in facts.items() if key != "verdicts"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda verdicts: verdicts["results"][0]["verdicts"].pop(),
        lambda verdicts: verdicts["results"][0].pop("counts"),
        lambda verdicts: verdicts["results"][0]["verdicts"][0].update(status="perhaps"),
        lambda verdicts: verdicts["results"][0]["verdicts"][0].update(missed=None),
        lambda verdicts: verdicts["results"][0].update(head="other"),
        lambda verdicts: verdicts["results"][0].update(scope="shortlist"),
        lambda verdicts: verdicts.pop("files"),
        lambda verdicts: verdicts.update(results=[None]),
    ],
)
def test_damaged_verdicts_are_a_sentence_not_a_traceback(stored, damage):
    verdicts = store.read_json(stored / "verdicts.json")
    damage(verdicts)
    store.write_json(stored / "verdicts.json", verdicts)
    assert check(stored).failures


def call(*arguments):
    return CliRunner().invoke(certificates, ["check", *map(str, arguments)])


def test_the_command_finds_what_to_check_and_says_how_it_went(stored, tmp_path):
    run = stored.parents[1]
    root = ["--runs", tmp_path / "runs"]
    for named in (run, stored, run.name, "small"):
        done = call(named, *root)
        assert done.exit_code == 0, done.output
        assert "64 verdicts proved" in done.output
        assert "all right" in done.output
    assert find_verified_folders("small", tmp_path / "runs") == [stored]
    with pytest.raises(xmckit.StorageError, match="no verdicts here"):
        find_verified_folders("smal", tmp_path / "runs")
    assert isinstance(call("smal", *root).exception, xmckit.StorageError)


def test_the_command_fails_with_code_5(stored):
    rewrite(stored, "certificates.npz", negative_multiplier)
    done = call(stored.parents[1], "--json")
    assert isinstance(done.exception, xmckit.VerificationError)
    assert done.exception.exit_code == 5
    assert '"ok": false' in done.output
    assert "multiplier that is not positive" in str(done.exception)


def test_a_missing_or_broken_file_is_code_3(stored):
    content = (stored / "certificates.npz").read_bytes()
    (stored / "certificates.npz").write_bytes(content[: len(content) // 2])
    assert call(stored).exception.exit_code == 3
    (stored / "certificates.npz").unlink()
    assert isinstance(call(stored).exception, xmckit.StorageError)
    assert "certificates.npz: no such file" in str(call(stored).exception)


def test_copies_at_the_top_of_the_run_are_compared_with_the_checked_files(stored):
    run = stored.parents[1]
    store.link_file(stored / "verdicts.json", run / "verdicts.json")
    assert call(run).exit_code == 0
    (run / "verdicts.json").unlink()
    (run / "verdicts.json").write_text("{}")
    assert "is not the file of the same name" in str(call(run).exception)


def test_the_oracle_agrees_with_its_own_arithmetic(oracle):
    """Its witnesses are floats of fractions that it proved; its combinations sum to zero."""
    rows = [[Fraction(1), Fraction(2)], [Fraction(-3), Fraction(1)], [Fraction(1), Fraction(-5)]]
    chosen, multipliers = next(oracle.zero_combinations(rows))
    sums = [sum(part * rows[row][column] for row, part in zip(chosen, multipliers, strict=True)) for column in (0, 1)]
    assert sums == [0, 0]


# -- with the verifier that it is there to check ----------------------------------------------------------------------

RECIPE = """
[data]
use = "synthetic"
rows = 600
test_rows = 120
features = 200
labels = 40
topics = 4
[[head]]
use = "bsl"
dim = 3
epochs = 3
[[head]]
use = "dft"
slack = 2
epochs = 3
[verify]
use = "argmax"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    registry = Registry()
    if "argmax" not in registry.names("verifier"):
        pytest.skip("the plugin xmckit_argmax is not installed")
    folder = tmp_path_factory.mktemp("made")
    (folder / "recipe.toml").write_text(RECIPE)
    return pipeline.run(folder / "recipe.toml", root=folder / "runs", registry=registry)


def test_a_run_from_recipe_to_checked_proofs(made):
    done = call(made.path, "--model", "--json")
    assert done.exit_code == 0, done.output
    (facts,) = json.loads(done.output)["checks"]
    assert (facts["proved"], facts["unresolved"], facts["failures"]) == (240, 0, [])
    verdicts = store.read_json(made.path / "verdicts.json")
    bsl, dft = verdicts["results"]
    assert bsl["share"] < 0.5 < dft["share"]
    assert facts["exact"] >= bsl["counts"]["unargmaxable"]
    assert "<b>Ideal</b>" in made.report.read_text()


def test_tampering_with_a_run_is_caught(made, tmp_path):
    run = Path(shutil.copytree(made.path, tmp_path / "copy"))
    (folder,) = find_verified_folders(str(run), tmp_path)

    def halved(arrays):
        arrays["W"][:] /= 2
        arrays["b"][:] /= 2

    rewrite(folder, "decision-bsl.npz", halved)
    reseal(run)
    # every proof holds for half the weights too; but they are not the head's, and the copy at the top is another now
    assert check(folder).failures == []
    failures = str(call(run, "--model").exception)
    assert "is not the decision of the head" in failures
    assert "is not the file of the same name" in failures
    rewrite(folder, "certificates.npz", lambda arrays: arrays["bsl/full/certificate_labels"].__iadd__(1))
    reseal(run)
    assert "not unargmaxable" in str(call(run).exception)


def test_an_order_that_is_not_the_heads_takes_the_model_to_notice(made, tmp_path):
    run = Path(shutil.copytree(made.path, tmp_path / "copy"))
    (folder,) = find_verified_folders(str(run), tmp_path)
    # turned by one place, every set has as many runs as before
    rewrite(folder, "decision-dft.npz", lambda arrays: arrays.update(order=(arrays["order"] + 1) % len(arrays["W"])))
    reseal(run)
    assert check(folder).failures == []
    assert "is not the decision of the head" in str(call(run, "--model").exception)


def test_a_replay_that_was_not_so_takes_the_model_to_notice(made, tmp_path):
    run = Path(shutil.copytree(made.path, tmp_path / "copy"))
    (folder,) = find_verified_folders(str(run), tmp_path)
    verdicts = store.read_json(folder / "verdicts.json")
    result = verdicts["results"][1]
    forged = next(item for item in result["verdicts"] if item["replayed"])
    forged["replayed"] = False
    result.update(recounted(folder, result["verdicts"]))
    for place in (folder, run):
        (place / "verdicts.json").unlink()
        store.write_json(place / "verdicts.json", verdicts)
    reseal(run)
    done = call(run)
    assert done.exit_code == 0, done.output
    assert "replays by the head (--model does)" in done.output
    assert "the replay of its witness by the head differs" in str(call(run, "--model").exception)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    st.integers(2, 5).flatmap(lambda labels: st.integers(1, 3).flatmap(lambda dim: st.tuples(
        st.lists(st.lists(whole, min_size=dim, max_size=dim), min_size=labels, max_size=labels),
        st.none() | st.lists(whole, min_size=labels, max_size=labels),
    ))),
    st.sampled_from(["sign", "topk"]),
    st.integers(0, 100),
)  # fmt: skip
def test_the_verifier_agrees_with_the_oracle(tmp_path_factory, oracle, weights, rule, seed):
    verifier = pytest.importorskip("xmckit_argmax.verifier").ArgmaxVerifier()
    W, b = weights
    decision = xmckit.LinearDecision(np.array(W, np.float64), None if b is None else np.array(b, np.float64), rule)
    sets = all_label_sets(len(W))
    candidates = csr_matrix((np.random.default_rng(seed).random(sets.shape) < 0.7).astype(np.float32))
    place = tmp_path_factory.mktemp("both")
    answers = [
        [[verdict["status"] for verdict in result["verdicts"]] for result in summary["results"]]
        for summary in (
            verified(place / "oracle", oracle.BruteForce(), decision, sets, candidates),
            verified(place / "verifier", verifier, decision, sets, candidates),
        )
    ]
    assert answers[0] == answers[1]
    assert check(place / "oracle").failures == []
    assert check(place / "verifier").failures == []
