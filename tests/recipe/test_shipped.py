"""Every recipe that comes with xmckit runs, on a few functions and for one epoch."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from xmckit import pipeline
from xmckit.bench.suite import load_suite
from xmckit.data.python_source import StdlibCalls
from xmckit.recipe import load_recipe, shipped_recipes
from xmckit.registry import default_registry

SUITES = Path(__file__).resolve().parents[2] / "benchmarks" / "suites"
ASK_FOR_A_FOLDER = {"files", "python-source"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    shutil.copytree(Path(sysconfig.get_path("stdlib"), "json"), folder / "json")
    return folder


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_it_runs(name: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = default_registry()
    monkeypatch.setattr(StdlibCalls, "folder", library)
    sets = []
    if name in ASK_FOR_A_FOLDER:
        sets += ["data.use=python-source", f"data.path='{library}'", "features.use=tfidf"]
    heads = load_recipe(name, sets=sets, registry=registry).heads
    sets += [f"head.{place}.epochs=1" for place, head in enumerate(heads) if "epochs" in head.params]
    result = pipeline.run(load_recipe(name, sets=sets, registry=registry), root=tmp_path / "runs", registry=registry)
    scored = [one["role"] for one in result.metrics["results"]]
    assert scored[0] == ("ensemble" if len(heads) > 1 else "head")
    assert scored.count("head") == (len(heads) if len(heads) > 1 else 1)
    assert all(0 <= value <= 1 for one in result.metrics["results"] for value in one["metrics"].values())


@pytest.mark.skipif(not SUITES.is_dir(), reason="an installed xmckit has no suites")
def test_the_smoke_suite_has_all_but_the_one_that_needs_source_of_your_own() -> None:
    suite = load_suite(SUITES / "smoke.toml", default_registry())
    used = {Path(system.use).stem for system in suite.systems if system.kind == "recipe"}
    assert used == set(shipped_recipes()) - {"python-source"}
