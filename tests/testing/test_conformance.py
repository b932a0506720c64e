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
from xmckit.kinds import KINDS, load
from xmckit.testing import Case, CheckResult, check_component, common, parametrize_with_checks, summarise
from xmckit.testing.subjects import kept_folder
from xmckit.testing.suite import checks_of
from xmckit.testing.watching import watched

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
        (toy_heads.HasNoNeeds, "offers_what_its_kind_must"),
        (toy_heads.WantsNoGroups, "offers_what_its_kind_must"),
        (toy_heads.TakesAnyParameter, "rejects_unknown_parameters"),
        (toy_heads.RanksNothing, "ranks_in_proper_form"),
        (toy_heads.RanksInLists, "ranks_in_proper_form"),
        (toy_heads.RanksInFloat64, "ranks_in_proper_form"),
        (toy_heads.RanksWorstFirst, "ranks_in_proper_form"),
        (toy_heads.RepeatsLabels, "ranks_in_proper_form"),
        (toy_heads.LabelsAnotherWayInOnePass, "answers_the_same_in_one_pass"),
        (toy_heads.RanksAnotherWayInOnePass, "answers_the_same_in_one_pass"),
        (toy_heads.KeepsWhatItLearned, "trains_once_more_on_all_rows"),
        (toy_heads.ForgetsItsWeights, "trains_once_more_on_all_rows"),
        (toy_heads.OutputsMoreThanItsCandidates, "outputs_are_candidates"),
        (toy_heads.KeepsTheOldLabels, "added_labels_are_ranked"),
        (toy_heads.CountsTooManyLabels, "index_labels_counts_labels"),
        (toy_heads.KeepsLossesOnly, "history_is_json"),
        (toy_heads.IsPerhapsProbabilistic, "flags_are_booleans"),
        (toy_heads.TellsArraysOfTheTest, "facts_are_json"),
        (toy_heads.ShowsNumbers, "exhibits_can_be_stored"),
        (toy_heads.CutsOffAtTheLabels, "pads_when_k_exceeds_the_labels"),
        (toy_heads.RanksDifferentlyForLargeK, "pads_when_k_exceeds_the_labels"),
        (toy_heads.UsesItsOwnSeed, "repeats_itself_with_the_same_seed"),
        (toy_heads.DependsOnWorkers, "ignores_the_number_of_workers"),
        (toy_heads.NormalisesInPlace, "leaves_its_inputs_alone"),
        (toy_heads.ChangesRowsOfPredict, "leaves_its_inputs_alone"),
        (toy_heads.DrawsFromTheSharedGenerator, "leaves_the_process_alone"),
        (toy_heads.DrawsFromTorchsGenerator, "leaves_the_process_alone"),
        (toy_heads.WantsSparseRows, "takes_dense_and_sparse_rows_alike"),
        (toy_heads.ChangesDenseRows, "takes_dense_and_sparse_rows_alike"),
        (toy_heads.LabelsSparseRowsOnly, "takes_dense_and_sparse_rows_alike"),
        (toy_heads.LabelsAboveTheMean, "does_not_care_how_rows_are_batched"),
        (toy_heads.CentresEachBatch, "does_not_care_how_rows_are_batched"),
        (toy_heads.NeedsARow, "handles_no_rows_at_all"),
        (toy_heads.GivesLabelsAsPairs, "handles_no_rows_at_all"),
        (toy_heads.DividesByTheNorm, "handles_rows_without_features_or_labels"),
        (toy_heads.NeedsTwoLabels, "handles_a_single_label"),
        (toy_heads.NeedsTwoRows, "handles_a_single_row"),
        (toy_heads.ForgetsItsThreshold, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.RanksByAnotherMatrix, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.HasFeaturesWithoutDecision, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.CallsThresholdsARanking, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.RoundsItsDecision, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.MiscountsItsInputs, "says_by_its_decision_what_its_labels_are"),
        (toy_heads.ClaimsAStructure, "builds_what_its_structure_promises"),
        (toy_heads.RanksByAnotherMatrix, "ranks_as_its_decision_says"),
        (toy_heads.RanksByItself, "ranks_as_its_decision_says"),
        (toy_heads.ReplaysSomethingElse, "replays_vectors_through_its_own_scorer"),
        (toy_heads.FollowsAnotherSlope, "has_the_slopes_of_its_loss"),
        (toy_heads.RoundsWhenSaved, "answers_the_same_in_a_fresh_process"),
        (toy_heads.KeepsItsPath, "answers_the_same_in_a_fresh_process"),
        (toy_heads.SavesBeside, "writes_only_into_its_folder"),
        (toy_heads.PicklesInside, "saves_without_pickle"),
        (toy_heads.Pickles, "saves_without_pickle"),
        (toy_heads.IgnoresDamage, "names_the_damaged_file"),
    ],
    "indexer": [
        (toy_indexers.HasNoProvides, "offers_what_its_kind_must"),
        (toy_indexers.PromisesClusters, "builds_an_index_that_keeps_its_promises"),
        (toy_indexers.LeavesLabelsOut, "clusters_hold_every_label"),
        (toy_indexers.KeepsItsVectors, "rebuild_uses_the_new_vectors"),
        (toy_indexers.ListsNoNewLabels, "added_labels_are_listed"),
        (toy_indexers.TellsCentroids, "facts_are_json"),
        (toy_indexers.TellsCentroids, "exhibits_can_be_stored"),
        (toy_indexers.ListsNothing, "lists_candidates_in_proper_form"),
        (toy_indexers.ListsTooMany, "lists_candidates_in_proper_form"),
        (toy_indexers.WidensForLargeK, "lists_no_more_labels_than_there_are"),
        (toy_indexers.ScoresDenseRowsOtherwise, "takes_dense_and_sparse_rows_alike"),
        (toy_indexers.CentresScores, "does_not_care_how_rows_are_batched"),
        (toy_indexers.IndexNeedsARow, "handles_no_rows_at_all"),
        (toy_indexers.IndexDividesByTheNorm, "handles_rows_without_features_or_labels"),
        (toy_indexers.IndexNeedsTwoLabels, "handles_a_single_label"),
        (toy_indexers.IndexNeedsTwoRows, "handles_a_single_row"),
    ],
    "label-preprocessor": [
        (toy_stages.DropsRows, "keeps_rows_and_labels"),
        (toy_stages.ScalesFeatures, "keeps_rows_and_labels"),
        (toy_stages.LooksAtTheForm, "takes_dense_and_sparse_rows_alike"),
        (toy_stages.ChangesDenseFeatures, "takes_dense_and_sparse_rows_alike"),
        (toy_stages.WantsFeaturesEverywhere, "handles_rows_without_features_or_labels"),
        (toy_stages.StageNeedsTwoLabels, "handles_a_single_label"),
        (toy_stages.StageNeedsTwoRows, "handles_a_single_row"),
        (toy_stages.TellsArrays, "facts_are_json"),
        (toy_stages.ShowsText, "exhibits_can_be_stored"),
        (toy_stages.KeepsAPickle, "saves_without_pickle"),
    ],
    "featurizer": [
        (toy_stages.TransformsInFloat64, "transforms_in_proper_form"),
        (toy_stages.LooksAtLabels, "does_not_look_at_labels"),
        (toy_stages.TransformsDenseRowsOtherwise, "takes_dense_and_sparse_rows_alike"),
        (toy_stages.ScalesEachBatch, "does_not_care_how_rows_are_batched"),
        (toy_stages.FeaturizerNeedsARow, "handles_no_rows_at_all"),
        (toy_stages.FeaturizerDividesByTheNorm, "handles_rows_without_features"),
        (toy_stages.FeaturizerNeedsTwoRows, "handles_a_single_row"),
        (toy_stages.FeaturizerDividesByTheNorm, "gives_numbers"),
    ],
    "encoder": [
        (toy_stages.TooNarrow, "encodes_in_proper_form"),
        (toy_stages.StartsTheSame, "draws_its_weights_from_the_generator"),
        (toy_stages.EncodesDenseRowsOtherwise, "takes_dense_and_sparse_rows_alike"),
        (toy_stages.CentresBatches, "does_not_care_how_rows_are_batched"),
        (toy_stages.EncoderNeedsARow, "handles_no_rows_at_all"),
        (toy_stages.NeedsTwoFeatures, "handles_a_single_feature"),
        (toy_stages.EndsInReLU, "ends_without_an_activation"),
        (toy_stages.EndsInTanh, "ends_without_an_activation"),
        (toy_stages.LosesItsSlope, "has_the_slopes_of_its_output"),
        (toy_stages.KeepsWeightsToItself, "answers_the_same_in_a_fresh_process"),
    ],
    "metric": [
        (toy_metrics.LacksCompute, "offers_what_its_kind_must"),
        (toy_metrics.DocumentsNothing, "documents_its_parameters"),
        (toy_metrics.TakesUnknown, "rejects_unknown_parameters"),
        (toy_metrics.TakesAnything, "rejects_parameters_of_a_wrong_type"),
        (toy_metrics.GivesNaN, "gives_finite_numbers_by_name"),
        (toy_metrics.LooksAtTheFirstRow, "does_not_care_about_the_order_of_rows"),
        (toy_metrics.CountsPlaces, "does_not_care_how_far_rankings_are_padded"),
        (toy_metrics.CountsWhatIsFiltered, "leaves_out_what_is_filtered"),
        (toy_metrics.NeedsSets, "handles_heads_without_sets"),
        (toy_metrics.VariesOverRows, "handles_a_single_row"),
        (toy_metrics.MetricNeedsTwoLabels, "handles_a_single_label"),
        (toy_metrics.DividesByTheTruth, "handles_rows_without_any_label"),
        (toy_metrics.GivesNaN, "gives_numbers"),
        (toy_metrics.DrawsAnew, "repeats_itself_with_the_same_seed"),
        (toy_metrics.CountsItsCalls, "repeats_itself_with_the_same_seed"),
        (toy_metrics.DependsOnWorkers, "ignores_the_number_of_workers"),
        (toy_metrics.ChangesTheTruth, "leaves_its_inputs_alone"),
        (toy_metrics.ChangesTheEnvironment, "leaves_the_process_alone"),
        (toy_metrics.Phones, "reaches_no_network"),
        (toy_metrics.SendsAWord, "reaches_no_network"),
        (toy_metrics.KeepsADatabase, "writes_only_into_its_folder"),
        (toy_metrics.WritesElsewhere, "writes_only_into_its_folder"),
        (toy_metrics.RemovesElsewhere, "writes_only_into_its_folder"),
        (toy_metrics.TouchesElsewhere, "writes_only_into_its_folder"),
        (toy_metrics.RemembersItsProcess, "answers_the_same_in_a_fresh_process"),
    ],
    "executor": [
        (toy_metrics.Backwards, "keeps_the_order"),
        (toy_metrics.NeedsAnItem, "handles_few_items"),
        (toy_metrics.SwallowsErrors, "passes_errors_on"),
        (toy_metrics.CountsWorkers, "ignores_the_number_of_workers"),
    ],
    "verifier": [
        (toy_verifiers.DeniesAll, "agrees_with_brute_force"),
        (toy_verifiers.KnowsNothing, "agrees_with_brute_force"),
        (toy_verifiers.TurnsWitnesses, "proves_what_it_says"),
        (toy_verifiers.Denies, "proves_what_it_says"),
        (toy_verifiers.BelievesItself, "replays_its_witnesses"),
        (toy_verifiers.SortsSets, "keeps_the_order"),
        (toy_verifiers.AnswersManyOnly, "answers_one_set_like_many"),
        (toy_verifiers.IgnoresCandidates, "knows_what_candidates_mean"),
        (toy_verifiers.DeniesSingleLabels, "handles_a_single_label"),
        (toy_verifiers.AnswersAnything, "refuses_what_does_not_fit"),
        (toy_verifiers.HoldsItsSetsInParams, "params_are_json"),
    ],
    "dataset": [
        (toy_data.GivesOddShapes, "reads_sound_data"),
        (toy_data.ForgetsTheSeed, "says_what_its_data_depends_on"),
        (toy_data.TrustsNames, "notices_that_a_file_has_changed"),
        (toy_data.LeavesErrorsToPython, "explains_what_is_not_there"),
        (toy_data.DependsOnHashes, "answers_the_same_in_a_fresh_process"),
        (toy_data.TidiesUp, "writes_only_into_its_folder"),
    ],
    "reader": [
        (toy_data.ReadsBadData, "reads_sound_data"),
        (toy_data.MatchesAnything, "knows_its_format"),
        (toy_data.RaisesWhenAsked, "knows_its_format"),
        (toy_data.OpensMore, "names_all_files_that_it_opens"),
        (toy_data.LooksForNothing, "looks_for_is_text"),
        (toy_data.LosesTexts, "reads_what_it_wrote"),
        (toy_data.TrustsItsFiles, "explains_damaged_files"),
        (toy_data.ReadsMissingFiles, "explains_what_is_not_there"),
    ],
}
UNSEEN = ("reaches_no_network", "writes_only_into_its_folder")
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
    assert set(map(load, KINDS[kind].optional)) <= set(covered)


def test_a_failing_test_shows_where_the_component_raised():
    with pytest.raises(AssertionError) as caught:
        one_check("handles_a_single_row", "head", toy_heads.NeedsTwoRows)()
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert toy_heads.__file__ in {frame.filename for frame in frames}


@pytest.mark.parametrize(
    ("toy", "told"), [(toy_heads.NeedsTwoRows, "IndexError: "), (toy_heads.Leaves, "SystemExit: 0")]
)
def test_a_result_names_the_line_of_the_component_that_raised(toy, told):
    result = one_check("handles_a_single_row", "head", toy).run()
    (line,) = re.fullmatch(rf"{told}.*\({re.escape(toy_heads.__file__)}:(\d+)\)", result.detail).groups()
    lines, first = inspect.getsourcelines(toy)
    assert first < int(line) < first + len(lines)


def test_programs_that_nobody_watches_are_told():
    results = [one_check(name, "head", toy_heads.StartsPrograms).run() for name in UNSEEN]
    assert [result.status for result in results] == ["passed"] * 2
    assert all("but for what true did" in result.detail for result in results)


def test_what_others_clean_up_is_not_held_against_a_component(tmp_path):
    class Owner:
        pass

    owner = Owner()
    folder = kept_folder(owner)
    with watched(tmp_path) as seen:
        del owner
        gc.collect()
    assert not seen.writes
    assert not folder.exists()


def test_parameters_that_are_not_saved_are_caught():
    check = one_check("answers_the_same_in_a_fresh_process", "head", toy_heads.ForgetsItsParameters, {"threshold": 0.4})
    assert "label rows" in check.run().detail


def test_what_a_fresh_process_cannot_do_is_said():
    class Local(toy_heads.CentroidHead):
        pass

    result = one_check("answers_the_same_in_a_fresh_process", "head", Local).run()
    assert result.status == "failed"
    assert "fresh process" in result.detail
    crashed = one_check("answers_the_same_in_a_fresh_process", "metric", toy_metrics.CrashesElsewhere).run()
    assert "died" in crashed.detail
    # and the next one is served as if nothing had happened
    assert one_check("answers_the_same_in_a_fresh_process", "metric", toy_metrics.Share).run().status == "passed"


def test_expected_failures_are_counted_apart_and_must_fail():
    name = "rejects_unknown_parameters"
    broken = one_check(name, "head", toy_heads.TakesAnyParameter, expected_failures={name: "on purpose"})
    sound = one_check(name, "head", toy_heads.CentroidHead, expected_failures={name: "long ago"})
    declared = one_check(name, "metric", toy_metrics.SaysThatItTakesUnknown)
    results = [check.run() for check in (broken, sound, declared)]
    assert [result.status for result in results] == ["xfailed", "failed", "xfailed"]
    assert "passed" in results[1].detail
    assert "it is old" in results[2].detail
    name = "answers_the_same_in_one_pass"
    idle = one_check(name, "head", toy_heads.CentroidHead, expected_failures={name: "long ago"}).run()
    assert (idle.status, "does not apply" in idle.detail) == ("failed", True)
    with pytest.raises(xmckit.UsageError, match="did you mean 'rejects_unknown_parameters'"):
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
    assert "nothing ran" in str(summarise(skipped))
    assert summarise([*skipped, CheckResult("b", "passed")]).ok
    assert not summarise([CheckResult("b", "passed"), CheckResult("c", "failed")]).ok
    excused = summarise([CheckResult("b", "xfailed")])
    assert (excused.ran, excused.ok, "nothing was kept" in str(excused)) == (1, False, True)
    with pytest.raises(xmckit.UsageError, match="nothing runs"):
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
