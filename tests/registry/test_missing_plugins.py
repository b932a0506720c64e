"""A model without its plugin: the error names the missing component, its distribution, and how to get it."""

from __future__ import annotations

import sys
import textwrap

import pytest

import xmckit
from xmckit import pipeline
from xmckit.errors import PluginError
from xmckit.registry import Registry

RECIPE = """
    [data]
    use = "synthetic"
    rows = 60
    test_rows = 20
    features = 40
    labels = 12
    topics = 3
    [features]
    use = "own-featurizer"
    [index]
    use = "own-indexer"
    [head]
    use = "bsl"
    dim = 3
    epochs = 1
    [head.encoder]
    use = "own-encoder"
    width = 4
"""
# Each is what the core or the toy plugin has, under a name of its own.
SOURCES = {
    "featurizer": "from xmckit.components.featurizers import Blocks as Own",
    "encoder": "from xmckit.nn import SparseLinear as Own",
    "indexer": "from toy_for_missing import Frequent as Own",
}
PLUGIN = """
{source}
import xmckit

@xmckit.hookimpl
def xmckit_{kind}s():
    yield xmckit.Component("own-{kind}", __name__ + ":Own")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory, request):
    """A run with three plugins in files and their names, and one that is an installed distribution."""
    folder = tmp_path_factory.mktemp("missing")
    site = folder / "site"
    site.mkdir()
    toys = (request.path.parents[1] / "assets" / "toy_plugin.py").read_text()
    (site / "toy_for_missing.py").write_text(toys)
    files = {}
    for kind, source in SOURCES.items():
        place = site if kind == "encoder" else folder
        files[kind] = place / f"own_{kind}_plugin.py"
        files[kind].write_text(PLUGIN.format(source=source, kind=kind))
    info = site / "outside_encoder-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-encoder\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text("[xmckit]\nown = own_encoder_plugin\n")
    (folder / "small.toml").write_text(textwrap.dedent(RECIPE))
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
        everything = Registry(files=[files["featurizer"], files["indexer"]])
        assert not everything.problems
        run = pipeline.run(folder / "small.toml", root=folder / "runs", registry=everything).run
        yield run.path, site, files
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("featurizer", "a file of its own: give it with --plugin own_featurizer_plugin.py"),
        ("indexer", "a file of its own: give it with --plugin own_indexer_plugin.py"),
        (
            "encoder",
            "the distribution outside-encoder 2.5, which is not installed: pip install 'outside-encoder==2.5'",
        ),
        ("bsl", f"the distribution xmckit {xmckit.__version__}, which is installed"),
    ],
)
def test_what_is_missing_is_named_wherever_it_is_used(model, monkeypatch, missing, expected):
    path, site, files = model
    given = [files[kind] for kind in ("featurizer", "indexer") if kind != missing]
    if missing == "encoder":
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(site)])
    registry = Registry(files=given, disable=["heads"] if missing == "bsl" else [])
    what = "head:bsl" if missing == "bsl" else f"{missing}:own-{missing}"
    with pytest.raises(PluginError) as caught:
        xmckit.load(path, registry=registry)
    assert f"needs {what}, which came from {expected}" in str(caught.value)


def test_with_all_of_them_it_is_loaded(model):
    path, _, files = model
    found = xmckit.load(path, registry=Registry(files=[files["featurizer"], files["indexer"]]))
    assert len(found.label_names) == 12
