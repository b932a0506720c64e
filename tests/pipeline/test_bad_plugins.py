"""Components that break their contract during a run: the error names their plugin, file and line."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from xmckit import pipeline, store
from xmckit.data.model import Split
from xmckit.errors import DataError, PluginError
from xmckit.pipeline.output_checks import check_saved, check_unchanged
from xmckit.registry import Registry

RECIPE = """
    [data]
    use = "synthetic"
    rows = 60
    test_rows = 20
    features = 40
    labels = 12
    topics = 3
    [head]
    use = "{head}"
    [score]
    k = [1]
"""
PLUGIN = """
    import numpy as np
    import xmckit
    from xmckit import store
    from xmckit.components.popularity import PopularityHead

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("bad", __name__ + ":Bad")

    class Bad(PopularityHead):
"""
LINE = 11  # of the class


@pytest.fixture
def bad_head(tmp_path, monkeypatch):
    """Run a recipe with a head of this body; the error that it gives, and the plugin's file."""
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
    file = tmp_path / "bad_plugin.py"

    def error_of(body: str) -> str:
        file.write_text(textwrap.dedent(PLUGIN) + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")
        (tmp_path / "bad.toml").write_text(textwrap.dedent(RECIPE.format(head="bad")))
        with pytest.raises(PluginError) as caught:
            pipeline.run(tmp_path / "bad.toml", root=tmp_path / "runs", registry=Registry(files=[file]))
        return str(caught.value)

    yield error_of
    sys.modules.pop("bad_plugin", None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            """
            def fit(self, train, *, indexes=(), context):
                super().fit(train, context=context)
                train.X.data *= 2
            """,
            "head bad changed the features that it was given: it has to work on a copy",
        ),
        (
            """
            def fit(self, train, *, indexes=(), context):
                super().fit(train, context=context)
                train.Y.data[0] = 7
            """,
            "head bad changed the labels that it was given",
        ),
        (
            """
            def predict(self, X, k, *, groups=None):
                best = super().predict(X, k)
                best.scores[3, 0] = np.nan
                return best
            """,
            "head bad predicted a score that is not a number, the first in row 3 of 20",
        ),
        (
            """
            def predict(self, X, k, *, groups=None):
                X.data[:] = 0
                return super().predict(X, k)
            """,
            "head bad changed the rows that it was given",
        ),
        ("def labels(self, X): return [[1]]", "labels() of head bad gave a list, expected a CSR matrix"),
        ("def labels(self, X): return super().labels(X)[1:]", "labels() of head bad gave 19 × 12, expected 20 × 12"),
        ("def facts(self, truth): return 5", "facts() of head bad gave a int, expected facts by name"),
        (
            "def facts(self, truth): return {'a': float('nan')}",
            "facts() of head bad gave values that cannot be stored: Out of",
        ),
        (
            "def facts(self, truth): return {'a': np.eye(2)}",
            "facts() of head bad gave values that cannot be stored: Object of",
        ),
        (
            """
            def save(self, folder):
                super().save(folder)
                store.write_arrays(folder / "more.npz", {"good": np.arange(3), "odd": np.array([1.0, np.nan])})
            """,
            "head bad saved more.npz with a value in odd that is not a number",
        ),
    ],
)
def test_a_head_that_breaks_its_contract(bad_head, tmp_path, body, expected):
    message = bad_head(body)
    file = tmp_path / "bad_plugin.py"
    assert expected in message
    assert f"(head:bad of plugin 'bad_plugin' ({file}), {file}:{LINE})" in message
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(store.TEMPORARY)]


BROKEN_INDEX = """
    import xmckit
    from xmckit import store
    from xmckit_heads.bsl import BSLHead
    import numpy as np

    @xmckit.hookimpl
    def xmckit_indexers():
        yield xmckit.Component("odd-index", __name__ + ":Indexer")

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("odd-head", __name__ + ":Head")

    class Indexer(xmckit.Configured):
        provides = frozenset({"shortlist"})

        def build(self, train, *, context):
            return Index()

        @classmethod
        def load(cls, folder, *, context):
            return None

    class Index:
        query_space = "input"

        def shortlist(self, Q, k):
            return np.zeros((Q.shape[0], k))

        def save(self, folder):
            store.write_arrays(folder / "nothing.npz", {})

    class Head(BSLHead):
        def decision(self):
            return 5
"""


@pytest.mark.parametrize(
    ("head", "also", "expected", "blamed"),
    [
        ("bsl", "", "the index Index gave a ndarray, expected shortlists as a CSR matrix", "indexer:odd-index"),
        ("odd-head", "index = []", "decision() of head mine gave a int, expected a LinearDecision", "head:odd-head"),
    ],
)
def test_the_component_at_fault_is_named_by_any_stage(tmp_path, head, also, expected, blamed):
    file, recipe = tmp_path / "odd_plugin.py", tmp_path / "odd.toml"
    file.write_text(textwrap.dedent(BROKEN_INDEX))
    recipe.write_text(
        textwrap.dedent(RECIPE.format(head=head)).replace("[score]", f'name = "mine"\nepochs = 1\n{also}\n[score]')
        + '\n[index]\nuse = "odd-index"\n[verify]\nuse = "argmax"\n'
    )
    registry = Registry(files=[file])

    def error() -> str:
        with pytest.raises(PluginError) as caught:
            pipeline.run(recipe, root=tmp_path / "runs", registry=registry)
        return str(caught.value)

    try:
        message = error()
        assert expected in message
        assert f"({blamed} of plugin 'odd_plugin' ({file}), {file}:" in message
        if head == "bsl":  # the index is now loaded while the head is made
            message = error()
            assert "indexer odd-index built a NoneType" in message
            assert f"({blamed} of plugin" in message
    finally:
        sys.modules.pop("odd_plugin", None)


OTHERS = """
    import numpy as np
    import xmckit
    from dataclasses import replace

    @xmckit.hookimpl
    def xmckit_datasets():
        yield from OFFERED["dataset"]

    @xmckit.hookimpl
    def xmckit_featurizers():
        yield from OFFERED["featurizer"]

    @xmckit.hookimpl
    def xmckit_label_preprocessors():
        yield from OFFERED["label-preprocessor"]

    @xmckit.hookimpl
    def xmckit_metrics():
        yield from OFFERED["metric"]

    OFFERED = {kind: [] for kind in ("dataset", "featurizer", "label-preprocessor", "metric")}
    OFFERED["{kind}"].append(xmckit.Component("bad", __name__ + ":Bad"))

    class Bad(xmckit.Configured):
"""
AT_THE_CLASS = OTHERS.count("\n")
DATA = {"kind": "dataset", "section": '[data]\nuse = "bad"'}
FEATURES = {"kind": "featurizer", "section": '[features]\nuse = "bad"'}
LABELS = {"kind": "label-preprocessor", "section": '[labels]\nuse = "bad"'}
METRIC = {"kind": "metric", "section": '[[score.metrics]]\nuse = "bad"'}


@pytest.mark.parametrize(
    ("of", "body", "expected", "line"),
    [
        (DATA, "def fingerprint(self, *, context): return 7\nread = fingerprint", "gave 7, expected texts by name", 0),
        (DATA, "def fingerprint(self, *, context): return {}\ndef read(self, *, context): return 5", "gave a int", 0),
        (
            FEATURES,
            "def fit(self, train, *, context): pass\ndef transform(self, split, *, context):\n"
            "    split.matrix.data[:] = 1\n    return split.matrix",
            "featurizer bad changed the features that it was given",
            0,
        ),
        (
            FEATURES,
            "def fit(self, train): pass\ndef transform(self, split): pass",
            "lacks context in fit(), context",
            0,
        ),
        (LABELS, "def apply(self, train, *, context): return train.take([0])", "changed the number of rows or", 0),
        (
            LABELS,
            "def apply(self, train, *, context):\n    return replace(train, weights=train.Y[:1])",
            "after label preprocessor bad: train has ",
            0,
        ),
        (
            LABELS,
            "def apply(self, train, *, context):\n    weights = train.Y.copy()\n    weights.indptr[-1] = 0\n"
            "    return replace(train, weights=weights)",
            "weights of label preprocessor bad is not a sound CSR matrix: indptr decreases",
            0,
        ),
        (LABELS, "def apply(self, train, *, context):\n    return {}['gone']", "bad raised KeyError: 'gone'", 2),
        (METRIC, "def compute(self, evaluation): return 3.0", "metric Bad gave a float, expected numbers by name", 0),
        (
            METRIC,
            "def compute(self, evaluation):\n    evaluation.topk.scores[:] = 0\n    return {}",
            "metric Bad changed the scores that it was given",
            0,
        ),
        (METRIC, "def compute(self, evaluation):\n\n    raise OSError('odd')", "metric bad raised OSError: odd", 3),
    ],
)
def test_every_kind_is_named(tmp_path, monkeypatch, of, body, expected, line):
    """`line` counts from the class: where it raised, or the class itself."""
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
    file, recipe = tmp_path / "bad_others.py", tmp_path / "bad.toml"
    source = textwrap.dedent(OTHERS).replace("{kind}", of["kind"])
    file.write_text(source + textwrap.indent(body, "    ") + "\n")
    text = textwrap.dedent(RECIPE.format(head="popularity"))
    data, rest = text.split("[head]")
    recipe.write_text(f"{'' if of is DATA else data}\n{of['section']}\n[head]{rest}")
    try:
        with pytest.raises(PluginError) as caught:
            pipeline.run(recipe, root=tmp_path / "runs", registry=Registry(files=[file]))
        message = str(caught.value)
        assert expected in message
        assert f"{of['kind']}:bad of plugin 'bad_others'" in message
        assert f"{file}:{AT_THE_CLASS + line}" in message
        logs = "".join(log.read_text() for log in tmp_path.rglob("log.txt"))
        assert ("Traceback" in logs) == bool(line)  # an author needs it where the plugin's own code raised
    finally:
        sys.modules.pop("bad_others", None)


def test_errors_of_the_machine_and_of_the_data_stay_what_they_are(tmp_path):
    file, recipe = tmp_path / "bad_others.py", tmp_path / "bad.toml"
    source = textwrap.dedent(OTHERS).replace("{kind}", "label-preprocessor")
    recipe.write_text(textwrap.dedent(RECIPE.format(head="popularity")) + "[labels]\nuse = 'bad'\n")
    for raised, expected in (("OSError(28, 'full')", OSError), ("xmckit.DataError('odd')", DataError)):
        file.write_text(f"{source}    def apply(self, train, *, context): raise {raised}\n")
        try:
            with pytest.raises(expected):
                pipeline.run(recipe, root=tmp_path / "runs", registry=Registry(files=[file]))
        finally:
            sys.modules.pop("bad_others", None)


def rows(X: object) -> Split:
    return Split(X=X, Y=csr_matrix(np.eye(3, dtype=np.float32)))


@pytest.mark.parametrize("dense", [True, False])
def test_only_a_change_is_a_change(dense):
    split = rows(np.eye(3, dtype=np.float32) if dense else csr_matrix(np.eye(3, dtype=np.float32)))
    with check_unchanged("nobody", split):
        split.X.sum()
    blocks = rows({"one": split.X, "two": split.X * 2})
    value, other = (part if dense else part.data for part in (blocks.X["two"], split.X))
    changed = "somebody changed the features two that it was given"
    with pytest.raises(PluginError, match=changed), check_unchanged("somebody", blocks):
        value[0] = 9
    with pytest.raises(PluginError, match="the features that"), check_unchanged("somebody", split):
        other[0] = 9
    with pytest.raises(PluginError, match="the labels that"), check_unchanged("somebody", split):
        split.Y.data[1] = 0


def test_an_error_in_the_body_is_not_hidden():
    with pytest.raises(ZeroDivisionError), check_unchanged("somebody", rows(np.eye(3, dtype=np.float32))):
        raise ZeroDivisionError


def test_what_is_saved_is_numbers_that_need_no_pickle(tmp_path: Path):
    import torch

    store.write_arrays(tmp_path / "fine.npz", {"a": np.array([1.0, np.inf]), "words": np.array(["x"])})
    store.write_tensors(tmp_path / "fine.safetensors", {"w": torch.ones(2), "n": torch.ones(2, dtype=torch.int64)})
    check_saved(tmp_path, "head mine")
    (tmp_path / "deep").mkdir()
    store.write_tensors(tmp_path / "deep" / "w.safetensors", {"w": torch.tensor([1.0, float("nan")])})
    with pytest.raises(PluginError, match=r"head mine saved w.safetensors with a value in w that is not a number"):
        check_saved(tmp_path, "head mine")
    np.savez(tmp_path / "a_pickle.npz", things=np.array([{}], dtype=object))
    with pytest.raises(PluginError, match=r"head mine saved a_pickle.npz, .*: things: it holds Python objects"):
        check_saved(tmp_path, "head mine")
