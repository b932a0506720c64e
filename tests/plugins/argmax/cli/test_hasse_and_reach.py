"""`xmckit argmax hasse` and `xmckit argmax reach`"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from forging import reseal
from xmckit_argmax.cli.argmax import argmax
from xmckit_argmax.paper.counting import argmaxable_count

import xmckit
from xmckit import pipeline, store

RECIPE = """
[data]
use = "synthetic"
rows = 200
test_rows = 40
features = 60
labels = 12
topics = 3
[[head]]
use = "bsl"
dim = {dim}
epochs = 2
[verify]
use = "argmax"
"""
# the paper's six labels at multiples of 60°, the sine column scaled so that the numbers are exact
W63 = np.array([[1, 1, 0], [1, 0.5, 1], [1, -0.5, 1], [1, -1, 0], [1, -0.5, -1], [1, 0.5, -1]])


def call(*arguments: Any) -> str:
    result = CliRunner().invoke(argmax, list(map(str, arguments)), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    for dim in (2, 6):
        (folder / f"of{dim}.toml").write_text(RECIPE.format(dim=dim))
        pipeline.run(folder / f"of{dim}.toml", root=folder / "runs")
    return folder / "runs"


def test_the_papers_example_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "W.npy", W63)
    store.write_arrays(tmp_path / "W.npz", {"W": W63, "rule": np.asarray("sign")})
    for name in ("W.npy", "W.npz"):
        facts = json.loads(call("hasse", tmp_path / name, "--plot", tmp_path / "h.svg", "--json"))
        assert facts["sets"] - len(facts["never"]) == argmaxable_count(6, 3) == 32
        assert ["0", "2"] in facts["never"]
        assert (tmp_path / "h.svg").read_text("utf-8").startswith("<svg")
    assert call("hasse", tmp_path / "W.npy").splitlines()[0] == "32 of the 64 sets of 6 labels can be output"


def test_some_labels_of_a_run(runs: Path, tmp_path: Path) -> None:
    name = "of2"
    decision = store.read_arrays(next((runs / name).glob("*/stages/*-verify/decision-bsl.npz")))
    facts = json.loads(call("hasse", name, "--runs", runs, *(f"--label={i}" for i in range(5)), "--json"))
    # five lines in the plane cut it into 16 parts, whatever the other labels' lines do
    assert facts["sets"] - len(facts["never"]) == argmaxable_count(5, 2, bias=True) == 16
    assert decision["W"].shape == (12, 2)
    named = json.loads(call("hasse", name, "--runs", runs, *(f"--label={i}" for i in facts["labels"]), "--json"))
    assert named == facts


def test_reach_by_columns(runs: Path, tmp_path: Path) -> None:
    found = json.loads(call("reach", "of6", "of2", "--runs", runs, "--json", "--plot", tmp_path / "r.svg"))
    assert [(one["head"], one["columns"], one["sets"]) for one in found] == [("bsl", 2, 40), ("bsl", 6, 40)]
    assert found[0]["argmaxable"] < found[1]["argmaxable"] <= 40
    assert (tmp_path / "r.svg").read_text("utf-8").startswith("<svg")
    assert f"bsl, 6 columns: {found[1]['argmaxable']} of 40 label sets" in call("reach", "of6", "--runs", runs)


def test_only_the_same_label_sets_are_compared(runs: Path, tmp_path: Path) -> None:
    """Others that were asked about a run change nothing, and runs without common ones are refused."""
    copies = shutil.copytree(runs, tmp_path / "runs")
    before = call("reach", "of2", "of6", "--runs", copies)
    (run,) = (copies / "of2").iterdir()
    (stage,) = run.glob("stages/*-verify")
    others = shutil.copytree(stage, run / "verify" / "others")
    summary = store.read_json(others / "verdicts.json")
    summary["files"]["assignments.npz"] = "other label sets"
    store.write_json(others / "verdicts.json", summary)
    reseal(run)
    assert call("reach", "of2", "of6", "--runs", copies) == before
    store.write_json(stage / "verdicts.json", summary)
    reseal(run)
    with pytest.raises(xmckit.UsageError, match="of2 was not verified for the label sets of of6"):
        call("reach", "of6", "of2", "--runs", copies)


def test_mistakes_are_named(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(xmckit.UsageError, match="the layer has 12 labels: pick up to 6"):
        call("hasse", "of2", "--runs", runs)
    with pytest.raises(xmckit.UsageError, match="no label is called 'nobody'"):
        call("hasse", "of2", "--runs", runs, "--label", "nobody")
    with pytest.raises(xmckit.UsageError, match=r"verified heads of .*: bsl"):
        call("hasse", "of2", "--runs", runs, "--head", "dft")
    with pytest.raises(xmckit.StorageError, match="no verdicts"):
        call("hasse", tmp_path / "none.npy", "--runs", runs)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(xmckit.DataError, match="not a matrix in numpy's format"):
        call("hasse", tmp_path / "bad.npy")
    store.write_arrays(tmp_path / "empty.npz", {"V": W63})
    with pytest.raises(xmckit.DataError, match="no array W"):
        call("hasse", tmp_path / "empty.npz")
