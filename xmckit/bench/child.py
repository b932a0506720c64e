"""What runs in the child process of a cell.

It leaves `found.json` and `rows.npz` beside the job. A system that cannot run says so in `found.json` and exits with 0;
anything else that goes wrong ends the process, and the parent reads its output.
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
_PREDICTED_TWICE = 2


def main(job_file: str) -> None:
    """Run the job of a cell and write its outcome beside the job; a killed suite takes its cell with it."""
    end_with_stdin()
    folder = Path(job_file).parent
    store.write_json(folder / "found.json", outcome(store.read_json(Path(job_file)), folder))


def outcome(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the system gave and cost, or why it cannot run."""
    try:
        return _run(job, folder)
    except ImportError as error:
        return {"reason": NOT_INSTALLED, "error": f"{error}{_way_out(job)}"}
    except XmckitError as error:
        return {"reason": ERROR, "error": str(error)}


def _run(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    with Measured() as cost:
        found = run_peer(job, folder) if job["kind"] == "peer" else run_recipe(job, folder)
    found["cpu_seconds"] = round(cost.cpu_seconds + found.get("cpu_seconds", 0), 3)
    # Stages of a run set the mark back and keep their own peaks.
    found["peak_bytes"] = max(cost.peak_bytes, found.get("peak_bytes", 0))
    return found


def run_recipe(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    from xmckit import pipeline
    from xmckit.analysis.compare import cost_of, score_rows
    from xmckit.model import load
    from xmckit.recipe import load_recipe
    from xmckit.registry import registry_from_environment

    registry = registry_from_environment([Path(file) for file in job["plugins"]])
    recipe = load_recipe(folder / "cell.toml", sets=job["changes"], registry=registry)
    result = pipeline.run(recipe, root=Path(job["root"]), registry=registry)
    run, stages = result.run, result.run.stages
    dataset = run.dataset()
    constants = (result.metrics["propensity"]["A"], result.metrics["propensity"]["B"])
    _keep_rows(folder, score_rows(run.predictions(), dataset, job["k"], constants))
    model = load(run, workers=job["threads"], registry=registry)
    sees = [run.features_stage(one.name) for one in run.head_stages]
    first = run.features_stage()
    features = {name: run.test_features(name, dataset) for name in {first, *sees}}
    return {
        "metrics": result.metrics["results"][0]["metrics"],
        "train_seconds": round(sum(one.seconds for one in stages if one.is_training), 3),
        "predict_seconds": _better_of_two(lambda: _rank(model, [features[name] for name in sees], max(job["k"]))),
        "bytes": cost_of(run).bytes,
        "cpu_seconds": cpu_spent_before(stages),
        "peak_bytes": max(one.peak_bytes for one in stages if not (one.reused and one.is_input)),
        "versions": run.manifest.versions,
        "prints": run.manifest.data,
        "data": facts_of(dataset, features[first]),
        "propensity": list(constants),
        "run": str(run.path),
    }


def run_peer(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """On the rows and features of the baseline's run, whose propensities are used too."""
    from xmckit.analysis.compare import score_rows
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
    counts = _counts(dataset)
    weights = inverse_propensity(counts, dataset.train.rows, *job["propensity"])
    metrics = rank_metrics(topk, dataset.test.Y, ks=job["k"], inverse_propensity=weights, filtered=dataset.test.filter)
    _keep_rows(folder, score_rows(topk, dataset, job["k"], tuple(job["propensity"])))
    return {
        "metrics": metrics,
        "train_seconds": round(train_seconds, 3),
        "predict_seconds": _better_of_two(lambda: peer.predict(test, depth)),
        "bytes": peer.size(),
        "versions": {**library_versions(), **_versions(peer.distributions)},
        "prints": run.manifest.data,
        "data": facts_of(dataset, test),
        "propensity": job["propensity"],
    }


def facts_of(dataset: Any, X: Any) -> dict[str, int]:
    return {
        "rows": int(dataset.train.rows),
        "test_rows": int(dataset.test.rows),
        "features": int(X.shape[1]),
        "labels": int(dataset.labels),
    }


def _rank(model: Any, seen: Sequence[Any], k: int) -> None:
    """The ranking of rows that are the features of each head already, as peers are asked for it."""
    from xmckit.pipeline.stages.score import BLOCK

    deep = k if len(model.heads) == 1 else model.top
    for head, X in zip(model.heads, seen, strict=True):
        for start in range(0, X.shape[0], BLOCK):
            head.predict(X[start : start + BLOCK], deep)


def cpu_spent_before(stages: Sequence[StageRecord]) -> float:
    """What another cell of the suite spent on stages of this one; the input is the same for all, and nobody's."""
    return float(sum(one.cpu_seconds for one in stages if one.reused and not one.is_input))


def _better_of_two(work: Callable[[], Any]) -> float:
    """Seconds; the first time also loads and compiles."""
    seconds = []
    for _ in range(_PREDICTED_TWICE):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(min(seconds), 3)


def _counts(dataset: Any) -> Any:
    import numpy as np

    return np.bincount(dataset.train.Y.indices, minlength=dataset.labels)


def _keep_rows(folder: Path, rows: Any) -> None:
    from xmckit.bench.cells import write_rows

    write_rows(folder / "rows.npz", rows)


def _way_out(job: Mapping[str, Any]) -> str:
    from xmckit.bench.peers import PEERS

    return '; peers come with pip install "xmckit[peers]"' if job.get("use") in PEERS else ""


def _versions(distributions: tuple[str, ...]) -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in distributions}
