"""The verify stage: its files, blocks that outlive a killed run, and both scopes of a shortlisted head."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import xmckit
from xmckit import pipeline, store
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.data.saved import load_label_names
from xmckit.errors import PluginError
from xmckit.registry import Registry
from xmckit.runs import find_runs
from xmckit.verification import blocks
from xmckit.verification.blocks import content_sha256
from xmckit.verification.verify import verify

ASSETS = Path(__file__).parents[1] / "assets"


class FixedHead:
    """A head of one decision, for which every row has the vector of ones."""

    def __init__(self, decision):
        self._decision = decision

    def decision(self):
        return self._decision

    def features(self, X):
        return np.ones((X.shape[0], self._decision.W.shape[1]), np.float32)

    def labels(self, X):
        W, b = self._decision.W, self._decision.b
        scores = self.features(X) @ W.T + (0 if b is None else b)
        return csr_matrix((scores > 0).astype(np.float32))


class Shortlisted(FixedHead):
    def __init__(self, decision, candidates):
        super().__init__(decision)
        self._candidates = candidates

    def candidates(self, X):
        return self._candidates[: X.shape[0]]

    def labels(self, X):
        listed = self.candidates(X).copy()
        listed.data[:] = 1
        return super().labels(X).multiply(listed).tocsr()


class OneColumn(xmckit.Configured):
    """Exact for one column without bias, and counts how often it is asked."""

    def __init__(self, **params):
        super().__init__(**params)
        self.asked = 0

    def verify(self, decision, assignments, *, candidates=None, context):
        self.asked += assignments.shape[0]
        verdicts = []
        for row in range(assignments.shape[0]):
            active = set(assignments[row].indices.tolist())
            labels = range(len(decision.W)) if candidates is None else candidates[row].indices.tolist()
            missed = tuple(sorted(active - set(labels)))
            signed = np.array([decision.W[label, 0] * (1 if label in active else -1) for label in labels])
            fits = [sign for sign in (1.0, -1.0) if (sign * signed > 0).all()]
            if fits and not missed:
                verdicts.append(
                    xmckit.Verdict("argmaxable", "exact", np.array(fits[:1]), None, replayed=row % 2 == 0, margin=1.0)
                )
            else:
                verdicts.append(xmckit.Verdict("unargmaxable", "exact", missed=missed))
        return xmckit.Verdicts(verdicts)


def decision(*weights):
    return xmckit.LinearDecision(np.array(weights, np.float32)[:, None], None)


def rows_of(*sets, labels=3):
    Y = np.zeros((len(sets), labels), np.float32)
    for row, active in enumerate(sets):
        Y[row, list(active)] = 1
    return Split(X=csr_matrix(np.ones((len(sets), 1), np.float32)), Y=csr_matrix(Y))


def test_the_folder_holds_all_that_was_asked_and_answered(tmp_path):
    alternating = xmckit.Alternating(1, 0, np.array([2, 0, 1]))
    layer = xmckit.LinearDecision(np.ones((3, 2), np.float32), np.arange(3, dtype=np.float32), "topk", alternating)

    class Unsure:
        def verify(self, decision, assignments, *, candidates=None, context):
            return xmckit.Verdicts([xmckit.Verdict("unresolved")] * assignments.shape[0])

    summary = verify(tmp_path, Unsure(), [("mine", FixedHead(layer))], rows_of({0}, set()), most=9, context=Context())
    assert summary == store.read_json(tmp_path / "verdicts.json")
    stored = store.read_arrays(tmp_path / "decision-mine.npz")
    assert stored["W"].dtype == np.float32
    assert (stored["b"].tolist(), str(stored["rule"]), int(stored["degree"])) == ([0.0, 1.0, 2.0], "topk", 1)
    assert stored["order"].tolist() == [2, 0, 1]
    assert store.read_csr(tmp_path / "assignments.npz").toarray().tolist() == [[1, 0, 0], [0, 0, 0]]
    proofs = store.read_arrays(tmp_path / "certificates.npz")
    assert proofs["mine/full/witness"].shape == (0, 2)
    assert proofs["mine/full/certificate_start"].tolist() == [0]
    assert set(summary["files"]) == {"assignments.npz", "decision-mine.npz", "certificates.npz"}
    for name, checksum in summary["files"].items():
        assert content_sha256(store.read_arrays(tmp_path / name)) == checksum


def test_a_shortlisted_head_is_judged_twice(tmp_path):
    # the second candidate of the last row has the score 0, and is a candidate all the same
    candidates = csr_matrix((np.array([3.0, 1.0, 2.0, 0.0]), np.array([0, 1, 1, 2]), np.array([0, 2, 4])), (2, 3))
    heads = [("plain", FixedHead(decision(1, -1, 2))), ("short", Shortlisted(decision(1, -1, 2), candidates))]
    summary = verify(tmp_path, OneColumn(), heads, rows_of({0}, {0, 2}), most=9, context=Context())
    statuses = {
        (result["head"], result["scope"]): [verdict["status"] for verdict in result["verdicts"]]
        for result in summary["results"]
    }
    assert statuses == {
        ("plain", "full"): ["unargmaxable", "argmaxable"],
        ("short", "full"): ["unargmaxable", "argmaxable"],
        ("short", "shortlist"): ["argmaxable", "unargmaxable"],
    }
    listed = summary["results"][2]
    assert listed["verdicts"][1]["missed"] == [0]
    assert listed["missed"] == 1
    assert listed["never"] == [{"labels": [0, 2], "times": 1, "position": 1, "missed": [0]}]
    assert store.read_csr(tmp_path / "candidates-short.npz").toarray().tolist() == [[1, 1, 0], [0, 1, 1]]


def test_label_sets_without_rows_have_no_candidates(tmp_path):
    head = Shortlisted(decision(1, 1, 1), None)
    asked = Split(X=None, Y=rows_of({0, 1, 2}).Y)
    summary = verify(tmp_path, OneColumn(), [("short", head)], asked, most=9, context=Context())
    assert [result["scope"] for result in summary["results"]] == ["full"]


def test_shares_margins_and_the_sets_that_never_come(tmp_path):
    sets = [{0}, {0, 1, 2}, {0}, {1, 2}, set(), {0, 1, 2}]
    summary = verify(tmp_path, OneColumn(), [("h", FixedHead(decision(1, 2, 3)))], rows_of(*sets), most=9,
                     context=Context())  # fmt: skip
    (result,) = summary["results"]
    assert result["counts"] == {"argmaxable": 3, "unargmaxable": 3, "unresolved": 0}
    assert (result["share"], result["smallest_margin"]) == (0.5, 1.0)
    assert result["replayed"] == {"yes": 1, "no": 2, "not tried": 0}
    assert [(item["labels"], item["times"]) for item in result["never"]] == [([0], 2), ([1, 2], 1)]


def test_blocks_give_what_one_block_gives(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    Y = csr_matrix((rng.random((50, 3)) < 0.5).astype(np.float32))
    asked = Split(X=None, Y=Y)
    heads = [("h", FixedHead(decision(1, 2, 3)))]
    folders = [tmp_path / "one", tmp_path / "many"]
    for folder, size in zip(folders, (100, 7), strict=True):
        folder.mkdir()
        monkeypatch.setattr(blocks, "BLOCK", size)
        verify(folder, OneColumn(), heads, asked, most=99, context=Context())
    one, many = (store.read_arrays(folder / "certificates.npz") for folder in folders)
    assert one.keys() == many.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, many[name])
    statuses = [
        [verdict["status"] for verdict in store.read_json(folder / "verdicts.json")["results"][0]["verdicts"]]
        for folder in folders
    ]
    assert statuses[0] == statuses[1]


class Tired(OneColumn):
    def verify(self, decision, assignments, *, candidates=None, context):
        if self.asked >= 14:
            raise RuntimeError("enough")
        return super().verify(decision, assignments, candidates=candidates, context=context)


def test_finished_blocks_are_not_verified_again(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 7)
    rng = np.random.default_rng(0)
    asked = Split(X=None, Y=csr_matrix((rng.random((50, 3)) < 0.5).astype(np.float32)))
    heads = [("h", FixedHead(decision(1, 2, 3)))]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    scratch = Context(folder=tmp_path / "scratch")
    tired = Tired()
    with pytest.raises(RuntimeError, match="enough"):
        verify(first, tired, heads, asked, most=99, context=scratch)
    rested = Tired()
    rested.asked = -100
    verify(first, rested, heads, asked, most=99, context=scratch)
    assert rested.asked == -100 + 50 - 14
    verify(second, Tired(), [("h", FixedHead(decision(1, 2, 3)))], asked, most=14, context=Context())
    # other weights, other verdicts: nothing of the first is served
    other = OneColumn()
    verify(second, other, [("h", FixedHead(decision(1, 2, -3)))], asked, most=99, context=scratch)
    assert other.asked == 50


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "gave a NoneType, expected Verdicts"),
        (xmckit.Verdicts([]), "gave 0 verdicts for 1 assignments"),
        (xmckit.Verdicts([xmckit.Verdict("maybe")]), "gave the status 'maybe'"),
        (
            xmckit.Verdicts([xmckit.Verdict("argmaxable", witness=np.zeros(2))]),
            r"witness of size \(2,\), expected \(1,\)",
        ),
        (
            xmckit.Verdicts([xmckit.Verdict("unargmaxable", certificate=(np.zeros(2), np.zeros(1)))]),
            "labels and multipliers differ in number",
        ),
        (xmckit.Verdicts([xmckit.Verdict("argmaxable", margin=np.nan)]), "margin nan"),
    ],
)
def test_a_verifier_that_breaks_its_promise_is_named(tmp_path, answer, message):
    class Broken:
        def verify(self, decision, assignments, *, candidates=None, context):
            return answer

    with pytest.raises(PluginError, match=f"verifier Broken .*{message}"):
        verify(tmp_path, Broken(), [("h", FixedHead(decision(1, 2, 3)))], rows_of({0}), most=9, context=Context())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "gave a int, expected a LinearDecision"),
        (decision(1, 2), "expected floating-point numbers in 2-D, one row for each of the 3 labels"),
        (xmckit.LinearDecision(np.ones((3, 1), np.int64), None), "W as int64"),
        (xmckit.LinearDecision(np.ones((3, 1)), np.ones(2)), "b as float64 of size"),
    ],
)
def test_a_head_that_breaks_its_promise_is_named(tmp_path, given, message):
    with pytest.raises(PluginError, match=f"head h .*{message}"):
        verify(tmp_path, OneColumn(), [("h", FixedHead(given))], rows_of({0}), most=9, context=Context())
    candidates = csr_matrix(np.ones((1, 2)))
    with pytest.raises(PluginError, match=r"candidates\(\) of head h .*expected a CSR matrix of size \(1, 3\)"):
        verify(tmp_path, OneColumn(), [("h", Shortlisted(decision(1, 2, 3), candidates))], rows_of({0}), most=9,
               context=Context())  # fmt: skip


# -- in a run ----------------------------------------------------------------------------------------------------

RECIPE = """
    [data]
    use = "synthetic"
    rows = 300
    test_rows = 1300
    features = 100
    labels = 6
    topics = 2
    [[index]]
    use = "frequent"
    [[head]]
    use = "shortlisted"
    [[head]]
    use = "popularity"
    [verify]
    use = "brute-force"
    most = 1200
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(textwrap.dedent(RECIPE))
    return path


@pytest.fixture
def plugins(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    return [Path(shutil.copy(ASSETS / name, folder)) for name in ("toy_plugin.py", "brute_force_plugin.py")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process")
def test_a_killed_run_loses_no_finished_verdict(tmp_path, recipe, plugins):
    diary, root = tmp_path / "diary", tmp_path / "runs"
    command = [sys.executable, "-m", "xmckit", "run", "--runs", str(root)]
    for plugin in plugins:
        command += ["--plugin", str(plugin)]
    sets = ["--set", f"verify.diary={str(diary)!r}", "--set", "verify.blocks=2"]
    killed = subprocess.run([*command, str(recipe), *sets], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (stopped,) = find_runs(root)
    assert stopped.status == "killed"
    kept = list(stopped.path.rglob("scratch/verify/*/blocks/*.npz"))
    assert len(kept) == 2
    # 1200 label sets, for the full layer and with candidates: 512 + 512 + 176 each, two blocks were done
    for _ in range(3):
        done = subprocess.run([*command, "--resume", str(stopped.path)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.returncode == 0
    (finished,) = find_runs(root)
    assert finished.status == "done"
    assert not list(root.rglob("scratch"))
    (result, listed, _) = store.read_json(finished.path / "verdicts.json")["results"]
    assert len(result["verdicts"]) == len(listed["verdicts"]) == 1200
    # the last attempt noted only what it had left to do
    assert diary.read_text().split() == ["512", "176"]


def test_the_report_says_what_the_layer_can_never_produce(tmp_path, recipe, plugins):
    try:
        registry = Registry(files=plugins)
        result = pipeline.run(recipe, sets=["verify.most=40"], root=tmp_path / "runs", registry=registry)
    finally:
        for plugin in plugins:
            sys.modules.pop(plugin.stem, None)
    page = result.report.read_text()
    for text in (
        "full layer",
        "with each row's candidates",
        "not verifiable: its decision is not one linear layer",
        "<b>Stored matrix</b>",
        "label sets that can never be predicted",
        "do not apply to a model behind a shortlist",
    ):
        assert text.replace("'", "&#39;") in page or text in page, text
    verdicts = store.read_json(result.path / "verdicts.json")["results"][0]
    assert verdicts["never"]
    known = load_label_names(result.run.stage_folder("data"))
    names = [known[label] for label in verdicts["never"][0]["labels"]]
    assert ", ".join(f"<bdi>{name}</bdi>" for name in names) in page
    # neither a structure nor a tolerance was in play
    assert "<b>Ideal</b>" not in page
    assert "<b>At eps</b>" not in page


def test_a_head_with_another_name_is_spoken_of_by_it(tmp_path, recipe, plugins):
    try:
        registry = Registry(files=plugins)
        for name in ("shortlisted", "renamed"):
            sets = ["verify.most=3", f"head.0.name={name!r}"]
            result = pipeline.run(recipe, sets=sets, root=tmp_path / "runs", registry=registry)
            told = store.read_json(result.path / "verdicts.json")
            assert {one["head"] for one in told["results"]} == {name, "popularity"}
            assert f"decision-{name}.npz" in told["files"]
    finally:
        for plugin in plugins:
            sys.modules.pop(plugin.stem, None)


def test_vectors_that_no_row_can_give_are_spoken_of(tmp_path):
    W = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    heads = [(f"from-{inputs}", FixedHead(xmckit.LinearDecision(W, None, inputs=inputs))) for inputs in (1, 2, None)]

    class Unsure:
        def verify(self, decision, assignments, *, candidates=None, context):
            return xmckit.Verdicts([xmckit.Verdict("unresolved")] * assignments.shape[0])

    summary = verify(tmp_path, Unsure(), heads, rows_of({0}), most=9, context=Context())
    few, enough, unknown = (result["caveat"] for result in summary["results"])
    assert few.startswith("its vectors have 2 entries and are made of 1 features")
    assert (enough, unknown) == (None, None)


def test_a_narrow_input_is_a_warning_in_the_report(tmp_path):
    path = tmp_path / "few-features.toml"
    path.write_text(
        textwrap.dedent(
            """
            [data]
            use = "synthetic"
            rows = 200
            test_rows = 30
            features = 20
            labels = 6
            topics = 2
            [head]
            use = "bsl"
            dim = 24
            epochs = 2
            [verify]
            use = "argmax"
            """
        )
    )
    registry = Registry()
    if "argmax" not in registry.names("verifier") or "bsl" not in registry.names("head"):
        pytest.skip("the plugins xmckit_heads and xmckit_argmax are not installed")
    result = pipeline.run(path, root=tmp_path / "runs", registry=registry)
    page = result.report.read_text()
    assert "bsl: its vectors have 24 entries and are made of 20 features" in page
    assert sorted(path.name for path in (result.path / "plots").glob("margins-*")) == ["margins-bsl-full.svg"]
    assert "bsl, full layer: margins of the label sets that it can output" in page
