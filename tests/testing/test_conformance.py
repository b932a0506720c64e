"""The suite passes what is right, and each check catches its break."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest
import toy_heads

import xmckit
from xmckit.testing import Case, CheckResult, check_component, parametrize_with_checks, summarise
from xmckit.testing.heads import CHECKS

QUICK = {"epochs": 5, "dim": 16, "encoder": {"use": "sparse-linear", "width": 24}}
NARROW = {"epochs": 5, "dim": 16, "encoder": {"use": "sparse-mlp", "width": 4, "hidden": 8}}


@parametrize_with_checks(
    [
        ("head", "popularity"),
        ("head", "bsl", QUICK),
        ("head", "bsl", NARROW),
        ("head", toy_heads.CentroidHead),
        ("head", toy_heads.OutputsTheBestTwo),
    ]
)
def test_heads_keep_the_contract(check):
    check()


BREAKS = [
    (toy_heads.HasNoNeeds, "offers_what_a_head_must"),
    (toy_heads.TakesAnyParameter, "rejects_unknown_parameters"),
    (toy_heads.RanksInFloat64, "ranks_in_proper_form"),
    (toy_heads.RanksWorstFirst, "ranks_in_proper_form"),
    (toy_heads.RepeatsLabels, "ranks_in_proper_form"),
    (toy_heads.LabelsAnotherWayInOnePass, "answers_the_same_in_one_pass"),
    (toy_heads.RanksAnotherWayInOnePass, "answers_the_same_in_one_pass"),
    (toy_heads.CutsOffAtTheLabels, "pads_when_k_exceeds_the_labels"),
    (toy_heads.RanksDifferentlyForLargeK, "pads_when_k_exceeds_the_labels"),
    (toy_heads.UsesItsOwnSeed, "repeats_itself_with_the_same_seed"),
    (toy_heads.DependsOnWorkers, "ignores_the_number_of_workers"),
    (toy_heads.NormalisesInPlace, "leaves_its_inputs_alone"),
    (toy_heads.ChangesRowsOfPredict, "leaves_its_inputs_alone"),
    (toy_heads.DrawsFromTheSharedGenerator, "leaves_the_process_alone"),
    (toy_heads.DrawsFromTorchsGenerator, "leaves_the_process_alone"),
    (toy_heads.WantsSparseRows, "takes_dense_and_sparse_rows_alike"),
    (toy_heads.CentresEachBatch, "does_not_care_how_rows_are_batched"),
    (toy_heads.NeedsARow, "handles_no_rows_at_all"),
    (toy_heads.GivesLabelsAsPairs, "handles_no_rows_at_all"),
    (toy_heads.DividesByTheNorm, "handles_rows_without_features_or_labels"),
    (toy_heads.NeedsTwoLabels, "handles_a_single_label"),
    (toy_heads.NeedsTwoRows, "handles_a_single_row"),
    (toy_heads.ForgetsItsThreshold, "says_by_its_decision_what_its_labels_are"),
    (toy_heads.RanksByAnotherMatrix, "says_by_its_decision_what_its_labels_are"),
    (toy_heads.HasFeaturesWithoutDecision, "says_by_its_decision_what_its_labels_are"),
    (toy_heads.ReplaysSomethingElse, "replays_vectors_through_its_own_scorer"),
    (toy_heads.RoundsWhenSaved, "loads_in_a_fresh_process"),
    (toy_heads.Pickles, "saves_without_pickle"),
    (toy_heads.IgnoresDamage, "names_the_damaged_file"),
]


@pytest.mark.parametrize(("head", "name"), BREAKS, ids=[head.__name__ for head, _ in BREAKS])
def test_each_check_catches_its_break(head, name):
    (check,) = [check for check in Case("head", head).checks if check.name == name]
    result = check.run()
    assert (result.status, bool(result.detail)) == ("failed", True)


def test_a_failing_test_shows_where_the_component_raised():
    (check,) = [check for check in Case("head", toy_heads.NeedsTwoRows).checks if check.name == "handles_a_single_row"]
    with pytest.raises(AssertionError) as caught:
        check()
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert toy_heads.__file__ in {frame.filename for frame in frames}


def test_parameters_that_are_not_saved_are_caught():
    (check,) = [
        check
        for check in Case("head", toy_heads.ForgetsItsParameters, {"threshold": 0.4}).checks
        if check.name == "loads_in_a_fresh_process"
    ]
    assert "label_rows" in check.run().detail


def test_a_class_that_cannot_be_imported_elsewhere_is_said():
    class Local(toy_heads.CentroidHead):
        pass

    (check,) = [check for check in Case("head", Local).checks if check.name == "loads_in_a_fresh_process"]
    result = check.run()
    assert result.status == "failed"
    assert "fresh process" in result.detail


def test_every_check_has_a_head_that_breaks_it():
    assert {name for _, name in BREAKS} == {check.__name__ for check in CHECKS}


def test_expected_failures_are_counted_apart_and_must_fail(monkeypatch):
    monkeypatch.setattr("xmckit.testing.fresh.answers_in_fresh_process", None)
    name = "rejects_unknown_parameters"
    broken = Case("head", toy_heads.TakesAnyParameter, expected_failures={name: "on purpose"})
    sound = Case("head", toy_heads.CentroidHead, expected_failures={name: "long ago"})
    results = [check.run() for case in (broken, sound) for check in case.checks if check.name == name]
    assert [result.status for result in results] == ["xfailed", "failed"]
    assert "passed" in results[1].detail
    with pytest.raises(xmckit.UsageError, match="did you mean 'rejects_unknown_parameters'"):
        check_component("head", toy_heads.CentroidHead, expected_failures={"rejects_unknown_parameter": "typo"})


def test_a_suite_in_which_nothing_ran_is_a_failure():
    assert not summarise([]).ok
    skipped = [CheckResult("a", "skipped", "not today")]
    assert not summarise(skipped).ok
    assert "nothing ran" in str(summarise(skipped))
    assert summarise([*skipped, CheckResult("b", "passed")]).ok
    assert not summarise([CheckResult("b", "passed"), CheckResult("c", "failed")]).ok
    assert summarise([CheckResult("b", "xfailed")]).ran == 1
    with pytest.raises(xmckit.UsageError, match="nothing runs"):
        parametrize_with_checks([])


def test_kinds_without_checks_are_said():
    with pytest.raises(xmckit.UsageError, match="no checks for the kind 'verifier'"):
        check_component("verifier", "argmax")


def test_the_suite_needs_no_pytest_to_give_results():
    code = "import sys; sys.modules['pytest'] = None; import xmckit.testing; print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "fine\n"
