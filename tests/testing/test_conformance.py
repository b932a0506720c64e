"""The suite passes what is right, and each check catches its break."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import toy_data
import toy_heads
import toy_indexers
import toy_metrics
import toy_stages
import toy_verifiers

import xmckit
from xmckit.kinds import KINDS, load_protocol
from xmckit.testing import Case, CheckResult, check_component, common, parametrize_with_checks, summarise
from xmckit.testing.monitoring import monitor
from xmckit.testing.subjects import kept_folder
from xmckit.testing.suite import checks_of

QUICK = {"epochs": 5, "dim": 16, "encoder": {"use": "sparse-linear", "width": 24}}
NARROW = {"epochs": 5, "dim": 16, "encoder": {"use": "sparse-mlp", "width": 4, "hidden": 8}}
WIDTH = {"width": 6}


@parametrize_with_checks(
    [
        ("head", toy_heads.CentroidHead),
        ("head", toy_heads.OutputsTheBestTwo),
        ("head", toy_heads.BreaksTies),
        ("head", "bsl", QUICK),
        ("head", "bsl", NARROW),
        Case("head", "bsl", {**QUICK, "candidates": 6}, indexers=[{"use": "faiss"}]),
        ("indexer", toy_indexers.CentroidIndexer),
        ("label-preprocessor", toy_stages.DropRare),
        ("label-preprocessor", toy_stages.KeepsATable),
        ("featurizer", toy_stages.Scaled),
        ("encoder", toy_stages.Linear, WIDTH),
        ("metric", toy_metrics.Share),
        ("executor", toy_metrics.Loop),
        ("verifier", toy_verifiers.Guesses),
        Case("dataset", toy_data.Lines, example=toy_data.lines),
        ("reader", toy_data.Tabbed),
    ]
)
def test_what_is_right_passes(check):
    check()


BREAKS = {
    "head": [
        (toy_heads.HasNoNeeds, "methods_match_protocol"),
        (toy_heads.WantsNoGroups, "methods_match_protocol"),
        (toy_heads.TakesAnyParameter, "unknown_parameters_are_rejected"),
        (toy_heads.RanksNothing, "ranking_is_well_formed"),
        (toy_heads.RanksInLists, "ranking_is_well_formed"),
        (toy_heads.RanksInFloat64, "ranking_is_well_formed"),
        (toy_heads.RanksWorstFirst, "ranking_is_well_formed"),
        (toy_heads.RepeatsLabels, "ranking_is_well_formed"),
        (toy_heads.LabelsAnotherWayInOnePass, "one_pass_matches_two"),
        (toy_heads.RanksAnotherWayInOnePass, "one_pass_matches_two"),
        (toy_heads.KeepsWhatItLearned, "refit_uses_all_rows"),
        (toy_heads.ForgetsItsWeights, "refit_uses_all_rows"),
        (toy_heads.OutputsMoreThanItsCandidates, "outputs_are_candidates"),
        (toy_heads.KeepsTheOldLabels, "added_labels_are_ranked"),
        (toy_heads.CountsTooManyLabels, "index_labels_counts_labels"),
        (toy_heads.KeepsLossesOnly, "history_is_json"),
        (toy_heads.IsPerhapsProbabilistic, "flags_are_booleans"),
        (toy_heads.TellsArraysOfTheTest, "facts_are_json"),
        (toy_heads.ShowsNumbers, "exhibits_can_be_stored"),
        (toy_heads.CutsOffAtTheLabels, "large_k_is_padded"),
        (toy_heads.RanksDifferentlyForLargeK, "large_k_is_padded"),
        (toy_heads.UsesItsOwnSeed, "same_seed_same_results"),
        (toy_heads.DependsOnWorkers, "workers_do_not_change_results"),
        (toy_heads.NormalisesInPlace, "inputs_are_unchanged"),
        (toy_heads.ChangesRowsOfPredict, "inputs_are_unchanged"),
        (toy_heads.DrawsFromTheSharedGenerator, "process_state_is_unchanged"),
        (toy_heads.DrawsFromTorchsGenerator, "process_state_is_unchanged"),
        (toy_heads.WantsSparseRows, "dense_matches_sparse"),
        (toy_heads.ChangesDenseRows, "dense_matches_sparse"),
        (toy_heads.LabelsSparseRowsOnly, "dense_matches_sparse"),
        (toy_heads.LabelsAboveTheMean, "batches_do_not_change_results"),
        (toy_heads.CentresEachBatch, "batches_do_not_change_results"),
        (toy_heads.NeedsARow, "accepts_no_rows"),
        (toy_heads.GivesLabelsAsPairs, "accepts_no_rows"),
        (toy_heads.DividesByTheNorm, "accepts_empty_rows"),
        (toy_heads.NeedsTwoLabels, "accepts_single_label"),
        (toy_heads.NeedsTwoRows, "accepts_single_row"),
        (toy_heads.ForgetsItsThreshold, "decision_matches_labels"),
        (toy_heads.RanksByAnotherMatrix, "decision_matches_labels"),
        (toy_heads.HasFeaturesWithoutDecision, "decision_matches_labels"),
        (toy_heads.CallsThresholdsARanking, "decision_matches_labels"),
        (toy_heads.RoundsItsDecision, "decision_matches_labels"),
        (toy_heads.MiscountsItsInputs, "decision_matches_labels"),
        (toy_heads.DropsALabel, "decision_matches_labels"),
        (toy_heads.DropsALabelOfLongRows, "decision_matches_labels"),
        (toy_heads.DropsALabelInLargeBatches, "decision_matches_labels"),
        (toy_heads.BlamesRounding, "decision_matches_labels"),
        (toy_heads.BlamesItsThreshold, "decision_matches_labels"),
        (toy_heads.ClaimsAStructure, "structure_matches_decision"),
        (toy_heads.RanksByAnotherMatrix, "decision_matches_ranking"),
        (toy_heads.RanksByItself, "decision_matches_ranking"),
        (toy_heads.ReplaysSomethingElse, "replay_matches_decision"),
        (toy_heads.ReplaysUnitVectorsOtherwise, "replay_matches_labels"),
        (toy_heads.DropsALabel, "replay_matches_labels"),
        (toy_heads.FollowsAnotherSlope, "loss_gradient_is_correct"),
        (toy_heads.RoundsWhenSaved, "fresh_process_same_results"),
        (toy_heads.KeepsItsPath, "fresh_process_same_results"),
        (toy_heads.SavesBeside, "no_writes_outside_folder"),
        (toy_heads.PicklesInside, "saved_without_pickle"),
        (toy_heads.Pickles, "saved_without_pickle"),
        (toy_heads.IgnoresDamage, "damaged_file_is_named"),
    ],
    "indexer": [
        (toy_indexers.HasNoProvides, "methods_match_protocol"),
        (toy_indexers.PromisesClusters, "index_matches_provides"),
        (toy_indexers.LeavesLabelsOut, "clusters_hold_every_label"),
        (toy_indexers.KeepsItsVectors, "rebuild_uses_new_vectors"),
        (toy_indexers.ListsNoNewLabels, "added_labels_are_listed"),
        (toy_indexers.TellsCentroids, "facts_are_json"),
        (toy_indexers.TellsCentroids, "exhibits_can_be_stored"),
        (toy_indexers.ListsNothing, "shortlist_is_well_formed"),
        (toy_indexers.ListsTooMany, "shortlist_is_well_formed"),
        (toy_indexers.WidensForLargeK, "large_k_is_bounded"),
        (toy_indexers.ScoresDenseRowsOtherwise, "dense_matches_sparse"),
        (toy_indexers.CentresScores, "batches_do_not_change_results"),
        (toy_indexers.IndexNeedsARow, "accepts_no_rows"),
        (toy_indexers.IndexDividesByTheNorm, "accepts_empty_rows"),
        (toy_indexers.IndexNeedsTwoLabels, "accepts_single_label"),
        (toy_indexers.IndexNeedsTwoRows, "accepts_single_row"),
    ],
    "label-preprocessor": [
        (toy_stages.DropsRows, "rows_and_labels_are_kept"),
        (toy_stages.ScalesFeatures, "rows_and_labels_are_kept"),
        (toy_stages.LooksAtTheForm, "dense_matches_sparse"),
        (toy_stages.ChangesDenseFeatures, "dense_matches_sparse"),
        (toy_stages.WantsFeaturesEverywhere, "accepts_empty_rows"),
        (toy_stages.StageNeedsTwoLabels, "accepts_single_label"),
        (toy_stages.StageNeedsTwoRows, "accepts_single_row"),
        (toy_stages.TellsArrays, "facts_are_json"),
        (toy_stages.ShowsText, "exhibits_can_be_stored"),
        (toy_stages.KeepsAPickle, "saved_without_pickle"),
    ],
    "featurizer": [
        (toy_stages.TransformsInFloat64, "matrix_is_well_formed"),
        (toy_stages.LooksAtLabels, "labels_are_not_used"),
        (toy_stages.TransformsDenseRowsOtherwise, "dense_matches_sparse"),
        (toy_stages.ScalesEachBatch, "batches_do_not_change_results"),
        (toy_stages.FeaturizerNeedsARow, "accepts_no_rows"),
        (toy_stages.FeaturizerDividesByTheNorm, "accepts_rows_without_features"),
        (toy_stages.FeaturizerNeedsTwoRows, "accepts_single_row"),
        (toy_stages.FeaturizerDividesByTheNorm, "results_have_no_nan"),
    ],
    "encoder": [
        (toy_stages.TooNarrow, "vectors_are_well_formed"),
        (toy_stages.StartsTheSame, "weights_follow_generator"),
        (toy_stages.EncodesDenseRowsOtherwise, "dense_matches_sparse"),
        (toy_stages.CentresBatches, "batches_do_not_change_results"),
        (toy_stages.EncoderNeedsARow, "accepts_no_rows"),
        (toy_stages.NeedsTwoFeatures, "accepts_single_feature"),
        (toy_stages.EndsInReLU, "no_final_activation"),
        (toy_stages.EndsInTanh, "no_final_activation"),
        (toy_stages.LosesItsSlope, "gradient_is_correct"),
        (toy_stages.KeepsWeightsToItself, "fresh_process_same_results"),
    ],
    "metric": [
        (toy_metrics.LacksCompute, "methods_match_protocol"),
        (toy_metrics.DocumentsNothing, "parameters_are_documented"),
        (toy_metrics.TakesUnknown, "unknown_parameters_are_rejected"),
        (toy_metrics.TakesAnything, "wrong_types_are_rejected"),
        (toy_metrics.GivesNaN, "values_are_finite"),
        (toy_metrics.LooksAtTheFirstRow, "row_order_does_not_change_values"),
        (toy_metrics.CountsPlaces, "padding_does_not_change_values"),
        (toy_metrics.CountsWhatIsFiltered, "filtered_pairs_do_not_count"),
        (toy_metrics.NeedsSets, "accepts_missing_sets"),
        (toy_metrics.VariesOverRows, "accepts_single_row"),
        (toy_metrics.MetricNeedsTwoLabels, "accepts_single_label"),
        (toy_metrics.DividesByTheTruth, "accepts_rows_without_labels"),
        (toy_metrics.GivesNaN, "results_have_no_nan"),
        (toy_metrics.DrawsAnew, "same_seed_same_results"),
        (toy_metrics.CountsItsCalls, "same_seed_same_results"),
        (toy_metrics.DependsOnWorkers, "workers_do_not_change_results"),
        (toy_metrics.ChangesTheTruth, "inputs_are_unchanged"),
        (toy_metrics.ChangesTheEnvironment, "process_state_is_unchanged"),
        (toy_metrics.Phones, "no_network_access"),
        (toy_metrics.SendsAWord, "no_network_access"),
        (toy_metrics.KeepsADatabase, "no_writes_outside_folder"),
        (toy_metrics.WritesElsewhere, "no_writes_outside_folder"),
        (toy_metrics.RemovesElsewhere, "no_writes_outside_folder"),
        (toy_metrics.TouchesElsewhere, "no_writes_outside_folder"),
        (toy_metrics.RemembersItsProcess, "fresh_process_same_results"),
    ],
    "executor": [
        (toy_metrics.Backwards, "order_is_kept"),
        (toy_metrics.NeedsAnItem, "accepts_few_items"),
        (toy_metrics.SwallowsErrors, "errors_are_raised"),
        (toy_metrics.CountsWorkers, "workers_do_not_change_results"),
    ],
    "verifier": [
        (toy_verifiers.DeniesAll, "verdicts_match_brute_force"),
        (toy_verifiers.KnowsNothing, "verdicts_match_brute_force"),
        (toy_verifiers.DeniesTies, "ties_count_as_outputs"),
        (toy_verifiers.TurnsWitnesses, "proofs_are_valid"),
        (toy_verifiers.Denies, "proofs_are_valid"),
        (toy_verifiers.BelievesItself, "replayed_matches_scorer"),
        (toy_verifiers.SortsSets, "order_is_kept"),
        (toy_verifiers.AnswersManyOnly, "single_set_matches_batch"),
        (toy_verifiers.IgnoresCandidates, "candidates_restrict_outputs"),
        (toy_verifiers.DeniesSingleLabels, "accepts_single_label"),
        (toy_verifiers.AnswersAnything, "mismatched_inputs_are_rejected"),
        (toy_verifiers.HoldsItsSetsInParams, "params_are_json"),
    ],
    "dataset": [
        (toy_data.GivesOddShapes, "data_is_well_formed"),
        (toy_data.ForgetsTheSeed, "fingerprint_covers_seed"),
        (toy_data.TrustsNames, "fingerprint_covers_files"),
        (toy_data.LeavesErrorsToPython, "missing_path_is_named"),
        (toy_data.DependsOnHashes, "fresh_process_same_results"),
        (toy_data.TidiesUp, "no_writes_outside_folder"),
    ],
    "reader": [
        (toy_data.ReadsBadData, "data_is_well_formed"),
        (toy_data.MatchesAnything, "matches_only_its_format"),
        (toy_data.RaisesWhenAsked, "matches_only_its_format"),
        (toy_data.OpensMore, "files_lists_all_read_files"),
        (toy_data.LooksForNothing, "looks_for_is_text"),
        (toy_data.LosesTexts, "written_data_reads_back"),
        (toy_data.TrustsItsFiles, "damaged_files_are_named"),
        (toy_data.ReadsMissingFiles, "missing_path_is_named"),
    ],
}
UNSEEN = ("no_network_access", "no_writes_outside_folder")
BROKEN = [(kind, toy, name) for kind, breaks in BREAKS.items() for toy, name in breaks]


def one_check(name: str, *arguments, **options):
    (check,) = [check for check in Case(*arguments, **options).checks if check.name == name]
    return check


@pytest.mark.parametrize(("kind", "toy", "name"), BROKEN, ids=[f"{toy.__name__}-{name}" for _, toy, name in BROKEN])
def test_each_check_catches_its_break(kind, toy, name):
    params = WIDTH if kind == "encoder" else {}
    result = one_check(name, kind, toy, params, example=toy_data.lines if kind == "dataset" else None).run()
    assert (result.status, bool(result.detail)) == ("failed", True)
    assert not (Path(__file__).parent / "left-behind.txt").exists()


def test_every_check_has_a_component_that_breaks_it():
    everywhere = {check.__name__ for check in (*common.FIRST, *common.ALWAYS, *common.STORED)}
    assert everywhere <= {name for _, _, name in BROKEN}
    assert BREAKS.keys() == {kind for kind in KINDS if KINDS[kind].checks}
    for kind, breaks in BREAKS.items():
        own = {check.__name__ for check in checks_of(kind)} - everywhere
        assert own - {name for _, name in breaks} == set(), kind


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].checks])
def test_every_optional_protocol_has_a_check(kind):
    covered = [protocol for check in checks_of(kind) for protocol in getattr(check, "covered", ())]
    assert set(map(load_protocol, KINDS[kind].optional)) <= set(covered)


def test_a_failing_test_shows_where_the_component_raised():
    with pytest.raises(AssertionError) as caught:
        one_check("accepts_single_row", "head", toy_heads.NeedsTwoRows)()
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert toy_heads.__file__ in {frame.filename for frame in frames}


@pytest.mark.parametrize(
    ("toy", "told"), [(toy_heads.NeedsTwoRows, "IndexError: "), (toy_heads.Leaves, "SystemExit: 0")]
)
def test_a_result_names_the_line_of_the_component_that_raised(toy, told):
    result = one_check("accepts_single_row", "head", toy).run()
    (line,) = re.fullmatch(rf"{told}.*\({re.escape(toy_heads.__file__)}:(\d+)\)", result.detail).groups()
    lines, first = inspect.getsourcelines(toy)
    assert first < int(line) < first + len(lines)


def test_programs_that_are_not_monitored_are_named():
    results = [one_check(name, "head", toy_heads.StartsPrograms).run() for name in UNSEEN]
    assert [result.status for result in results] == ["passed"] * 2
    assert all("not monitored: true, which it started" in result.detail for result in results)


def test_what_others_clean_up_is_not_held_against_a_component(tmp_path):
    class Owner:
        pass

    owner = Owner()
    folder = kept_folder(owner)
    with monitor(tmp_path) as seen:
        del owner
        gc.collect()
    assert not seen.writes
    assert not folder.exists()


def test_parameters_that_are_not_saved_are_caught():
    check = one_check("fresh_process_same_results", "head", toy_heads.ForgetsItsParameters, {"threshold": 0.4})
    assert "label rows" in check.run().detail


def test_what_a_fresh_process_cannot_do_is_said():
    class Local(toy_heads.CentroidHead):
        pass

    result = one_check("fresh_process_same_results", "head", Local).run()
    assert result.status == "failed"
    assert "fresh process" in result.detail
    crashed = one_check("fresh_process_same_results", "metric", toy_metrics.CrashesElsewhere).run()
    assert "died" in crashed.detail
    # and the next one is served as if nothing had happened
    assert one_check("fresh_process_same_results", "metric", toy_metrics.Share).run().status == "passed"


def test_expected_failures_are_counted_apart_and_must_fail():
    name = "unknown_parameters_are_rejected"
    broken = one_check(name, "head", toy_heads.TakesAnyParameter, expected_failures={name: "on purpose"})
    sound = one_check(name, "head", toy_heads.CentroidHead, expected_failures={name: "long ago"})
    declared = one_check(name, "metric", toy_metrics.SaysThatItTakesUnknown)
    results = [check.run() for check in (broken, sound, declared)]
    assert [result.status for result in results] == ["xfailed", "failed", "xfailed"]
    assert "passed" in results[1].detail
    assert "it is old" in results[2].detail
    name = "one_pass_matches_two"
    idle = one_check(name, "head", toy_heads.CentroidHead, expected_failures={name: "long ago"}).run()
    assert (idle.status, "does not apply" in idle.detail) == ("failed", True)
    with pytest.raises(xmckit.UsageError, match="did you mean 'unknown_parameters_are_rejected'"):
        check_component("head", toy_heads.CentroidHead, expected_failures={"rejects_unknown_parameter": "typo"})
    with pytest.raises(xmckit.UsageError, match="needs a reason"):
        check_component("head", toy_heads.CentroidHead, expected_failures={name: " "})


def test_a_declaration_that_says_something_else_is_refused():
    (result,) = Case("metric", toy_metrics.DeclaresNonsense).results()
    assert result.status == "failed"
    assert "conformance" in result.detail


def test_a_component_that_cannot_be_made_has_one_result():
    (result,) = Case("dataset", toy_data.Lines).results()
    assert (result.status, "it needs --set path=" in result.detail) == ("failed", True)
    (result,) = Case("reader", "no-such-reader").results()
    assert "no reader named" in result.detail


def test_results_say_what_was_checked():
    results = list(Case("metric", toy_metrics.Share).results())
    assert {result.component for result in results} == {"metric:Share"}
    assert summarise(results).ok
    assert summarise(results).ran == len(results) - 1  # it has no parameters of which a type could be wrong


def test_a_suite_in_which_nothing_ran_is_a_failure():
    assert not summarise([]).ok
    skipped = [CheckResult("a", "skipped", "not today")]
    assert not summarise(skipped).ok
    assert "no check ran" in str(summarise(skipped))
    assert summarise([*skipped, CheckResult("b", "passed")]).ok
    assert not summarise([CheckResult("b", "passed"), CheckResult("c", "failed")]).ok
    excused = summarise([CheckResult("b", "xfailed")])
    assert (excused.ran, excused.ok, "no check passed" in str(excused)) == (1, False, True)
    with pytest.raises(xmckit.UsageError, match="a suite that runs nothing"):
        parametrize_with_checks([])


def test_kinds_without_checks_are_said():
    with pytest.raises(xmckit.UsageError, match="no checks for the kind 'command'"):
        check_component("command", "run")


def test_the_suite_needs_neither_pytest_nor_torch_to_give_results():
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['torch'] = None\n"
        "from xmckit.testing import check_component, summarise\n"
        "print(summarise(check_component('metric', 'sets')).ok)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
