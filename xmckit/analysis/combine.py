"""Combine the predictions of finished runs on the same test rows, and score the combination.

    <folder>/
      ensemble.json    the rule and the runs, by their paths from here
      predictions.npz  sets.npz  metrics.json     as in a run

`xmckit.load(folder)` and `xmckit predict folder` label new texts with the models of all these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix
from typing_extensions import TypedDict

from xmckit import store
from xmckit.components.ensembles import combine_rankings, combine_sets
from xmckit.components.metrics import RankingMetrics, SetMetrics
from xmckit.data.model import Dataset, as_csr
from xmckit.errors import DataError, UsageError
from xmckit.recipe import ENSEMBLE
from xmckit.records import Combining, Evaluation, TopK
from xmckit.runs import Run, layout
from xmckit.runs.run import open_linked

FORMAT = 1


class _MemberEntry(TypedDict):
    path: str
    identity: str
    top: Annotated[int, Field(ge=1)]


class _EnsembleFile(TypedDict):
    """The content of ensemble.json."""

    format: Literal[1]
    rule: Combining
    runs: Annotated[list[_MemberEntry], Field(min_length=2)]


@dataclass(frozen=True)
class Member:
    """A run and its predictions of the test rows; `sets` is None if the run did not keep them."""

    run: Run
    topk: TopK
    sets: csr_matrix | None


@dataclass(frozen=True)
class Combined:
    """The combined predictions, and the content of metrics.json: the ensemble first, then each member."""

    rule: Combining
    members: Sequence[Member]
    topk: TopK
    sets: csr_matrix | None
    metrics: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write a new folder, which appears complete or not at all."""
        store.check_new_folder(folder)
        folder = folder.resolve()
        store.remove_stale(folder.parent)
        runs = [
            {
                "path": member.run.path_from(folder),
                "identity": member.run.manifest.identity,
                "top": member.topk.k,
            }
            for member in self.members
        ]
        with store.atomic_folder(folder, exclusive=True) as fresh:
            store.write_arrays(fresh / layout.PREDICTIONS, {"indices": self.topk.indices, "scores": self.topk.scores})
            if self.sets is not None:
                store.write_csr(fresh / layout.SETS, self.sets)
            store.write_json(fresh / layout.METRICS, self.metrics)
            store.write_json(fresh / layout.ENSEMBLE, {"format": FORMAT, "rule": self.rule, "runs": runs})


def combine_runs(runs: Sequence[Run], rule: Combining, *, workers: int = 1) -> Combined:
    """Combine the predictions of all runs, and score them with the depths and propensities of the first run."""
    if len(runs) < 2:
        raise UsageError("an ensemble needs two runs or more")
    check_done(runs)
    dataset = common_data(runs, "combined")
    members = [member_of(run, dataset) for run in runs]
    topk = combine_rankings([member.topk for member in members], max(member.topk.k for member in members), rule)
    kept = [member.sets for member in members if member.sets is not None]
    sets = combine_sets(kept) if len(kept) == len(members) else None
    first = runs[0].metrics()
    outputs = [(ENSEMBLE, "ensemble", topk, sets)]
    named = zip(distinct_names(runs), members, strict=True)
    outputs += [(name, "run", member.topk, member.sets) for name, member in named]
    constants = (first["propensity"]["A"], first["propensity"]["B"])
    metrics = {
        **{key: first[key] for key in ("dataset", "rows", "labels", "k", "propensity")},
        "ensemble": rule,
        "results": [
            {
                "name": name,
                "role": role,
                "metrics": _score(ranking, kept, dataset, first["k"], constants, workers),
            }
            for name, role, ranking, kept in outputs
        ],
    }
    return Combined(rule, members, topk, sets, metrics)


def members_of(folder: Path) -> tuple[Combining, list[tuple[Run, int]]]:
    """Read the rule and the runs, each with its number of listed labels, from a folder that `Combined.save` wrote."""
    advice = "Make the folder again with `xmckit ensemble`."
    about = store.read_json(folder / layout.ENSEMBLE, _EnsembleFile, advice=advice)
    members = [
        (open_linked(folder, "combines", entry["path"], entry["identity"]), entry["top"]) for entry in about["runs"]
    ]
    return about["rule"], members


def check_done(runs: Sequence[Run]) -> None:
    """Raise UsageError if a run is listed twice or is not done."""
    for place, run in enumerate(runs):
        if run.path in {other.path for other in runs[:place]}:
            raise UsageError(f"{run.path} is given twice: name each run once")
    for run in runs:
        if not run.is_done:
            raise UsageError(f"{run.path} is {run.status}, not done: continue with `xmckit run --resume {run.path}`")


def common_data(runs: Sequence[Run], done: str) -> Dataset:
    """Return the data of all runs, which must have the same labels on the same rows; features may differ.

    `done` says in an error what is to be done with the runs.
    """
    first, *others = runs
    key = first.stage(layout.DATA).key
    dataset = first.dataset()
    for run in others:
        if run.stage(layout.DATA).key != key:
            other = run.dataset()
            if differs := _difference(dataset, other):
                raise DataError(f"{run.path} cannot be {done} with {first.path}: {differs}")
    return dataset


def _difference(one: Dataset, other: Dataset) -> str:
    """Describe the first difference between two data sets; return an empty string if there is none."""
    if one.labels != other.labels:
        return f"{one.labels:,} labels there, {other.labels:,} here"
    names, other_names = (list(map(data.label, range(data.labels))) for data in (one, other))
    for label, (name, other_name) in enumerate(zip(names, other_names, strict=True)):
        if name != other_name:
            return f"label {label} is called {name!r} there and {other_name!r} here"
    if one.test.rows != other.test.rows:
        return f"{one.test.rows:,} test rows there, {other.test.rows:,} here"
    for what, strings, others in (
        ("name", one.test.names, other.test.names),
        ("text", one.test.texts, other.test.texts),
    ):
        if strings is not None and others is not None and list(strings) != list(others):
            first = next(row for row, pair in enumerate(zip(strings, others, strict=True)) if pair[0] != pair[1])
            return f"test row {first} has another {what}"
    left_out = [csr_matrix(split.Y.shape) if split.filter is None else split.filter for split in (one.test, other.test)]
    for what, pair in (
        ("test row {} has other labels", (one.test.Y, other.test.Y)),
        ("other pairs of test row {} are left out of scoring", left_out),
        ("train row {} has other labels", (one.train.Y, other.train.Y)),
    ):
        if (row := _unlike(*pair)) is not None:
            return what.format(row)
    return ""


def _unlike(one: csr_matrix, other: csr_matrix) -> int | None:
    """Return the first row that differs between the matrices, or is in only one of them; None if there is none."""
    if one.shape != other.shape:
        return min(one.shape[0], other.shape[0])
    here, there = as_csr(one), as_csr(other)
    lengths = np.flatnonzero(here.indptr != there.indptr)
    same = int(lengths[0]) - 1 if len(lengths) else here.shape[0]
    entries = np.flatnonzero(here.indices[: here.indptr[same]] != there.indices[: here.indptr[same]])
    if len(entries):
        return int(np.searchsorted(here.indptr, entries[0], "right")) - 1
    return same if len(lengths) else None


def member_of(run: Run, dataset: Dataset) -> Member:
    """Read a run's predictions, which must be of the test rows of `dataset`."""
    topk, file = run.predictions(), run.path / layout.PREDICTIONS
    shape = (dataset.test.rows, topk.indices.shape[-1] if topk.indices.ndim else 0)
    if not shape[1] or topk.indices.shape != shape or topk.scores.shape != shape:
        raise store.damaged(file, f"expected the best labels of {dataset.test.rows} rows")
    if topk.indices.dtype != np.int32 or topk.scores.dtype != np.float32:
        raise store.damaged(file, "expected labels as int32 and scores as float32")
    if topk.indices.size and not -1 <= topk.indices.min() <= topk.indices.max() < dataset.labels:
        raise store.damaged(file, f"a label is not one of the {dataset.labels}")
    sets = run.predicted_sets()
    if sets is not None and sets.shape != dataset.test.Y.shape:
        raise store.damaged(run.path / layout.SETS, f"expected label sets of size {dataset.test.Y.shape}")
    return Member(run, topk, sets)


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return the recipes' names, with the folder's name added if two runs have the same recipe."""
    recipes = [run.name for run in runs]
    return [
        name if recipes.count(name) == 1 else f"{name}/{run.path.name}" for name, run in zip(recipes, runs, strict=True)
    ]


def _score(
    topk: TopK,
    sets: csr_matrix | None,
    dataset: Dataset,
    ks: Sequence[int],
    constants: tuple[float, float],
    workers: int,
) -> dict[str, float]:
    evaluation = Evaluation(
        topk=topk,
        truth=dataset.test.Y,
        train_counts=np.bincount(dataset.train.Y.indices, minlength=dataset.labels).astype(np.int64),
        train_rows=dataset.train.rows,
        propensity=constants,
        sets=sets,
        filtered=dataset.test.filter,
        workers=workers,
    )
    return {**RankingMetrics(k=list(ks)).compute(evaluation), **SetMetrics().compute(evaluation)}
