"""Run one cell; this is the code of the child process.

It writes `found.json` and `rows.npz` next to the job file. If a system cannot run, `found.json` contains the reason and
the exit code is 0. Any other error ends the process, and the parent reads its output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.errors import XmckitError
from xmckit.processes import end_with_stdin
from xmckit.runs import StageRecord
from xmckit.runs.resources import Measured

NOT_INSTALLED, ERROR = "not installed", "error"


def main(job_file: str) -> None:
    """Run a job file and write found.json next to it; end if the parent ends."""
    end_with_stdin()
    folder = Path(job_file).parent
    store.write_json(folder / "found.json", outcome(store.read_json(Path(job_file)), folder))


def outcome(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the metrics and costs of the system, or the reason why it cannot run."""
    try:
        return _run(job, folder)
    except ImportError as error:
        return {"reason": NOT_INSTALLED, "error": f"{error}{_install_hint(job)}"}
    except XmckitError as error:
        return {"reason": ERROR, "error": str(error)}


def _run(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    with Measured() as cost:
        measured = run_peer(job, folder) if job["kind"] == "peer" else run_recipe(job, folder)
    measured["cpu_seconds"] = round(cost.cpu_seconds + measured.get("cpu_seconds", 0), 3)
    # Stages of a run reset the peak of the process and record their own peaks.
    measured["peak_bytes"] = max(cost.peak_bytes, measured.get("peak_bytes", 0))
    return measured


def run_recipe(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run the recipe of the cell; return its metrics and costs."""
    from xmckit import pipeline
    from xmckit.analysis.compare import cost_of, score_rows
    from xmckit.bench.cells import write_rows
    from xmckit.model import load
    from xmckit.recipe import load_recipe
    from xmckit.registry import registry_from_environment

    registry = registry_from_environment([Path(file) for file in job["plugins"]])
    recipe = load_recipe(folder / "cell.toml", sets=job["changes"], registry=registry)
    result = pipeline.run(recipe, root=Path(job["root"]), registry=registry)
    run, stages = result.run, result.run.stages
    dataset = run.dataset()
    constants = (result.metrics["propensity"]["A"], result.metrics["propensity"]["B"])
    write_rows(folder / "rows.npz", score_rows(run.predictions(), dataset, job["k"], constants))
    model = load(run, workers=job["threads"], registry=registry)
    views = [run.features_stage(one.name) for one in run.head_stages]
    first = run.features_stage()
    features = {name: run.test_features(name, dataset) for name in {first, *views}}
    return {
        "metrics": result.metrics["results"][0]["metrics"],
        "train_seconds": round(sum(one.seconds for one in stages if one.is_training), 3),
        "predict_seconds": _faster_of_two(lambda: _rank(model, [features[name] for name in views], max(job["k"]))),
        "bytes": cost_of(run).bytes,
        "cpu_seconds": cpu_of_reused(stages),
        "peak_bytes": max(one.peak_bytes for one in stages if not (one.reused and one.is_input)),
        "versions": run.manifest.versions,
        "prints": run.manifest.data,
        "data": size_facts(dataset, features[first]),
        "propensity": list(constants),
        "run": str(run.path),
    }


def run_peer(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run a peer on the rows, features and propensities of the baseline's run; return its metrics and costs."""
    from importlib.metadata import version

    import numpy as np

    from xmckit.analysis.compare import score_rows
    from xmckit.bench.cells import write_rows
    from xmckit.bench.peers import peer_class
    from xmckit.components.metrics import inverse_propensity, rank_metrics
    from xmckit.runs import Run
    from xmckit.runs.provenance import library_versions

    run = Run.open(Path(job["baseline"]))
    dataset = run.dataset()
    train, Y = run.training_rows()
    test = run.test_features(run.features_stage(), dataset)
    peer = peer_class(job["use"])(**job["options"])
    model = folder / "model"
    model.mkdir()
    began = time.perf_counter()
    peer.fit(train, Y, seed=job["seed"], threads=job["threads"], folder=model)
    train_seconds = time.perf_counter() - began
    depth = max(job["k"])
    topk = peer.predict(test, depth)
    counts = np.bincount(dataset.train.Y.indices, minlength=dataset.labels)
    weights = inverse_propensity(counts, dataset.train.rows, *job["propensity"])
    metrics = rank_metrics(topk, dataset.test.Y, ks=job["k"], inverse_propensity=weights, filtered=dataset.test.filter)
    write_rows(folder / "rows.npz", score_rows(topk, dataset, job["k"], tuple(job["propensity"])))
    return {
        "metrics": metrics,
        "train_seconds": round(train_seconds, 3),
        "predict_seconds": _faster_of_two(lambda: peer.predict(test, depth)),
        "bytes": peer.size(),
        "versions": {**library_versions(), **{name: version(name) for name in peer.distributions}},
        "prints": run.manifest.data,
        "data": size_facts(dataset, test),
        "propensity": job["propensity"],
    }


def size_facts(dataset: Any, X: Any) -> dict[str, int]:
    """Return the numbers of rows, features and labels."""
    return {
        "rows": int(dataset.train.rows),
        "test_rows": int(dataset.test.rows),
        "features": int(X.shape[1]),
        "labels": int(dataset.labels),
    }


def _rank(model: Any, features: Sequence[Any], k: int) -> None:
    """Rank rows that are already the features of each head, since the time of peers excludes featurizing too."""
    from xmckit.pipeline.stages.score import BLOCK

    depth = k if len(model.heads) == 1 else model.top
    for head, X in zip(model.heads, features, strict=True):
        for start in range(0, X.shape[0], BLOCK):
            head.predict(X[start : start + BLOCK], depth)


def cpu_of_reused(stages: Sequence[StageRecord]) -> float:
    """Return the CPU seconds that another cell spent on stages of this run, except the input, which all cells share."""
    return float(sum(one.cpu_seconds for one in stages if one.reused and not one.is_input))


def _faster_of_two(work: Callable[[], Any]) -> float:
    """Return the seconds of the faster of two calls; the first one also loads and compiles code."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(min(seconds), 3)


def _install_hint(job: Mapping[str, Any]) -> str:
    from xmckit.bench.peers import PEERS

    return '; peers come with pip install "xmckit[peers]"' if job.get("use") in PEERS else ""
