"""Collect the results of a suite in one JSON file: the outcome of each cell, and which differences are significant.

Significance is tested by a paired bootstrap over test rows (see `xmckit.analysis.compare`), on the mean over seeds in
each row.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from xmckit import store
from xmckit.analysis.compare import DRAWS, Difference, compare_rows, find_difference
from xmckit.bench.cells import SuiteCell, key_parts, mean_rows, read_rows, suite_cells
from xmckit.bench.runner import DONE, NO_DATA
from xmckit.bench.suite import Suite, SuiteData
from xmckit.components.metrics import RowScores
from xmckit.errors import DataError, StorageError, UsageError, shorten

FORMAT = 1
COSTS = ("train_seconds", "predict_seconds", "seconds", "cpu_seconds", "peak_bytes", "bytes")
_COMPARED_COSTS = ("train_seconds", "predict_seconds", "peak_bytes")
_LEFT_OUT = ("format", "identity", "run", "prints", "propensity", "machine", "versions")


@dataclass(frozen=True)
class GapToBest:
    """How far a system is behind the best system of the data set in one metric.

    The difference is `best` minus this system; `same` says that it is not significant.
    """

    best: str
    difference: float
    low: float
    high: float
    p: float
    same: bool


@dataclass(frozen=True)
class Duel:
    """The best recipe against the best peer in one metric; the difference is recipe minus peer.

    `p` and `significant` include Holm's correction over all pairs of systems. `conclusion` uses the interval of this
    one difference, because a correction for all the other pairs could hide that a recipe is behind.
    """

    metric: str
    recipe: str
    peer: str
    difference: float
    low: float
    high: float
    p: float
    significant: bool

    @property
    def conclusion(self) -> Literal["better", "matches", "behind"]:
        return "better" if self.low > 0 else "behind" if self.high < 0 else "matches"


@dataclass(frozen=True)
class DataResults:
    """The results on one data set; `standings` maps metrics to systems to their gaps."""

    name: str
    facts: Mapping[str, int]
    checksum: str
    published: Sequence[Mapping[str, Any]]
    standings: Mapping[str, Mapping[str, GapToBest]]
    duels: Sequence[Duel]
    notes: Sequence[str] = ()


class CellKeys(TypedDict):
    """The keys of every cell; one that is done also has metrics and costs, one that failed a reason and an error."""

    data_set: str
    system: str
    seed: int
    status: str
    environment: NonNegativeInt
    metrics: NotRequired[Mapping[str, float]]
    reason: NotRequired[str]
    error: NotRequired[str]
    train_seconds: NotRequired[float | None]
    predict_seconds: NotRequired[float | None]
    seconds: NotRequired[float | None]
    cpu_seconds: NotRequired[float | None]
    peak_bytes: NotRequired[float | None]
    bytes: NotRequired[float | None]


@dataclass(frozen=True)
class Results:
    """The results of a suite; `systems` have name, title and kind."""

    suite: str
    title: str
    seeds: Sequence[int]
    threads: int
    k: Sequence[int]
    systems: Sequence[Mapping[str, str]]
    data: Sequence[DataResults]
    cells: Sequence[Mapping[str, Any]]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    missing: Sequence[str] = field(default_factory=tuple)  # keys of cells that were never run
    # distinct pairs of machine and versions; `environment` of a cell is an index into this list
    environments: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def of(self, data: str, system: str) -> list[Mapping[str, Any]]:
        """Return the cells of a system that are done, one for each seed."""
        return [cell for cell in self.done(data) if cell["system"] == system]

    def done(self, data: str) -> list[Mapping[str, Any]]:
        """Return the cells of a data set that are done."""
        return [cell for cell in self.cells if cell["data_set"] == data and cell["status"] == DONE]

    def failed(self) -> list[Mapping[str, Any]]:
        """Return the cells that are not done."""
        return [cell for cell in self.cells if cell["status"] != DONE]

    def failures(self) -> list[list[str]]:
        """Return (data, system, seed, reason, message) of each failed cell; one line for a missing data set."""
        rows = []
        for cell in self.failed():
            system, seed = ("all", "all") if cell["reason"] == NO_DATA else (cell["system"], str(cell["seed"]))
            last_line = (cell["error"].strip().splitlines() or [""])[-1]
            rows.append((cell["data_set"], system, seed, cell["reason"], shorten(" ".join(last_line.split()), 200)))
        return [list(row) for row in dict.fromkeys(rows)]

    def mean(self, data: str, system: str, name: str) -> tuple[float, float] | None:
        """Return mean and standard deviation of a metric or a cost over seeds; None if no cell has it."""
        values = [
            value for cell in self.of(data, system)
            if (value := cell["metrics"].get(name) if name not in COSTS else cell.get(name)) is not None
        ]  # fmt: skip
        if not values:
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the content of a results file."""
        return {"format": FORMAT, **asdict(self)}


def collect(suite: Suite, work: Path, seeds: Sequence[int] = (), *, draws: int = DRAWS) -> Results:
    """Collect all cells of a suite that have an outcome, and compare those that are done."""
    cells = suite_cells(suite, work, seeds)
    outcomes = [(cell, outcome) for cell in cells if (outcome := cell.outcome()) is not None]
    newest = max((outcome for _, outcome in outcomes), key=lambda outcome: outcome["ended"], default={})
    versions: dict[str, str] = {}
    environments: list[dict[str, Any]] = []
    public = []
    for _, outcome in outcomes:
        versions |= outcome.get("versions", {})
        environment = {"machine": outcome["machine"], "versions": outcome.get("versions", {})}
        cell = {key: value for key, value in outcome.items() if key not in _LEFT_OUT}
        public.append({**cell, "environment": _index(environments, environment)})
    return Results(
        suite=suite.name,
        title=suite.title,
        seeds=list(seeds or suite.seeds),
        threads=suite.threads,
        k=list(suite.k),
        systems=[{"name": one.name, "title": one.title, "kind": one.kind} for one in suite.systems],
        data=[_compare(data, suite, [pair for pair in outcomes if pair[0].data == data], draws) for data in suite.data],
        cells=public,
        machine=newest.get("machine", {}),
        versions=dict(sorted(versions.items())),
        missing=[cell.key for cell in cells if cell.outcome() is None],
        environments=environments,
    )


def with_earlier(results: Results, earlier: Results) -> tuple[Results, list[str]]:
    """Take data sets without cells in `results` from `earlier`; return the new results and the names of these.

    Comparisons need rows, which stay in the work folder of a suite. So a data set that ran in another folder, or on
    another machine, is copied as a whole, and never mixed with cells of this folder.
    """
    empty = {data.name for data in results.data} - {cell["data_set"] for cell in results.cells}
    known = {system["name"] for system in results.systems}
    same_suite = all(getattr(earlier, name) == getattr(results, name) for name in ("suite", "threads", "k"))
    kept = [
        data for data in earlier.data
        if same_suite and data.name in empty
        and known >= {cell["system"] for cell in earlier.cells if cell["data_set"] == data.name}
        and earlier.done(data.name)
    ]  # fmt: skip
    if not kept:
        return results, []
    names = [data.name for data in kept]
    cells, environments = list(results.cells), list(results.environments)
    for cell in earlier.cells:
        if cell["data_set"] in names:
            environment = earlier.environments[cell["environment"]]
            cells.append({**cell, "environment": _index(environments, environment)})
    present = {(cell["data_set"], cell["system"], cell["seed"]) for cell in cells}
    before = {data.name: data for data in kept}
    versions: dict[str, str] = {}
    for environment in reversed(environments):
        versions |= environment["versions"]
    return replace(
        results,
        data=[before.get(data.name, data) for data in results.data],
        cells=cells,
        machine=results.machine or earlier.machine,
        versions=dict(sorted(versions.items())),
        missing=[key for key in results.missing if key_parts(key) not in present],
        environments=environments,
    ), names


def _index(environments: list[Any], environment: Mapping[str, Any]) -> int:
    """Return the index of an environment; append it if it is new."""
    if environment not in environments:
        environments.append(environment)
    return environments.index(environment)


def _compare(
    data: SuiteData, suite: Suite, outcomes: Sequence[tuple[SuiteCell, dict[str, Any]]], draws: int
) -> DataResults:
    done = [(cell, outcome) for cell, outcome in outcomes if outcome["status"] == DONE]
    if not done:
        return DataResults(data.name, {}, "", data.published, {}, ())
    checksum = done[-1][1]["checksum"]
    notes, rows = [], {}
    for system in suite.systems:
        own = [(cell, outcome) for cell, outcome in done if cell.system == system]
        if outdated := [cell.key for cell, outcome in own if outcome["checksum"] != checksum]:
            notes.append(f"not compared, because the data has changed; run again: {', '.join(outdated)}")
            continue
        if own:
            rows[system.name] = mean_rows([read_rows(cell.folder / "rows.npz") for cell, _ in own])
    rows = _comparable(rows, notes)
    differences: tuple[Difference, ...] = ()
    if len(rows) > 1:
        differences = compare_rows(list(rows), list(rows.values()), draws=draws).differences
    kinds = {system.name: system.kind for system in suite.systems}
    facts = next(outcome["data"] for _, outcome in done if outcome["checksum"] == checksum)  # the baseline's
    gaps, duels = _gaps(rows, differences), _duels(rows, differences, kinds)
    return DataResults(data.name, facts, checksum, data.published, gaps, duels, notes)


def _comparable(rows: dict[str, RowScores], notes: list[str]) -> dict[str, RowScores]:
    """Return the systems with the same true labels and propensities as the first; add a note about the others."""
    if not rows:
        return rows
    first = next(iter(rows.values()))
    kept = {name: one for name, one in rows.items() if _same_truth(one, first)}
    if others := [name for name in rows if name not in kept]:
        notes.append(f"not compared, because true labels or propensities differ: {', '.join(others)}")
    return kept


def _same_truth(one: RowScores, other: RowScores) -> bool:
    return one.names == other.names and np.array_equal(one.norms, other.norms)


def _gaps(rows: Mapping[str, RowScores], differences: Sequence[Difference]) -> dict[str, dict[str, GapToBest]]:
    """Compare each system with the best one, in every metric."""
    gaps: dict[str, dict[str, GapToBest]] = {}
    for metric in next(iter(rows.values())).names if rows else ():
        values = {name: one.totals[metric] for name, one in rows.items()}
        best = max(values, key=lambda name: values[name])
        gaps[metric] = {best: GapToBest(best, 0.0, 0.0, 0.0, 1.0, same=True)}
        for name in values:
            if name != best:
                pair = find_difference(differences, metric, best, name)
                gaps[metric][name] = GapToBest(
                    best, pair.value, pair.low, pair.high, pair.adjusted, same=not pair.significant
                )
    return gaps


def _duels(rows: Mapping[str, RowScores], differences: Sequence[Difference], kinds: Mapping[str, str]) -> list[Duel]:
    """Compare the best recipe with the best peer, in every metric."""
    duels = []
    for metric in next(iter(rows.values())).names if rows else ():
        best = {}
        for kind in ("recipe", "peer"):
            of_kind = {name: one.totals[metric] for name, one in rows.items() if kinds[name] == kind}
            if of_kind:
                best[kind] = max(of_kind, key=lambda name: of_kind[name])
        if len(best) < 2:
            continue
        pair = find_difference(differences, metric, best["recipe"], best["peer"])
        duels.append(
            Duel(metric, pair.one, pair.other, pair.value, pair.low, pair.high, pair.adjusted, pair.significant)
        )
    return duels


def write_results(results: Results, path: Path) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(path, results.to_json())


def read_results(path: Path) -> Results:
    """Read a results file; raise StorageError if it is another kind of file."""
    content = store.read_json(path)
    try:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        results = TypeAdapter(Results).validate_python(content)
        cells = TypeAdapter(list[CellKeys]).validate_python(results.cells)
        _check_references(results, cells)
    except ValueError as error:
        why = store.reasons(error) if isinstance(error, ValidationError) else str(error)
        raise StorageError(f"{path}: expected results as `xmckit bench run` writes them ({why})") from None
    return results


def _check_references(results: Results, cells: Sequence[CellKeys]) -> None:
    """Raise ValueError if a part of the results is about another part that is not there."""
    if any(cell["environment"] >= len(results.environments) for cell in cells):
        raise ValueError("a cell refers to an environment that is not listed")
    for cell in cells:
        needed = {"metrics"} if cell["status"] == DONE else {"reason", "error"}
        if missing := needed - cell.keys():
            raise ValueError(f"the cell of {cell['system']} on {cell['data_set']} is without {', '.join(missing)}")
    if not all({"name", "title", "kind"} <= system.keys() for system in results.systems):
        raise ValueError("systems: expected name, title and kind of each")
    if not results.k or min(results.k) < 1:
        raise ValueError("k: expected depths of 1 or more")
    named = {cell["system"] for cell in cells}
    for data in results.data:
        named |= {name for duel in data.duels for name in (duel.recipe, duel.peer)}
        if data.facts and not {"rows", "test_rows", "features", "labels"} <= data.facts.keys():
            raise ValueError(f"data: expected rows, test_rows, features and labels in the facts of {data.name}")
    if unknown := named - {system["name"] for system in results.systems}:
        raise ValueError(f"{', '.join(sorted(unknown))} is not among the systems")


# -- two sets of results -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """How a system changed on a data set between two results; ratios are the later value over the earlier one.

    `significant` is None if the rows of one of them are not available.
    """

    data: str
    system: str
    metrics: Mapping[str, tuple[float, float]]  # (before, after)
    significant: Mapping[str, bool] | None
    train_ratio: float | None
    predict_ratio: float | None
    memory_ratio: float | None
    other_data: bool


def changes(
    before: Results, after: Results, rows: Mapping[str, tuple[RowScores, RowScores]] | None = None
) -> list[Change]:
    """Compare the systems and data sets that both results have, in the order of the second."""
    compared: list[Change] = []
    earlier = {data.name: data for data in before.data}
    for data in after.data:
        for system in after.systems:
            old, new = (results.of(data.name, system["name"]) for results in (before, after))
            if not old or not new:
                continue
            means = {
                name: (first[0], second[0])
                for name in (*old[0]["metrics"], *_COMPARED_COSTS)
                if (first := before.mean(data.name, system["name"], name))
                and (second := after.mean(data.name, system["name"], name))
            }
            pairs = {metric: means[metric] for metric in old[0]["metrics"] if metric in means}
            significant = None
            if rows is not None and (both := rows.get(f"{data.name} / {system['name']}")) is not None:
                significant = _significant(*both)
            train, predict, memory = (_ratio(means.get(cost)) for cost in _COMPARED_COSTS)
            other_data = earlier[data.name].checksum != data.checksum
            compared.append(Change(data.name, system["name"], pairs, significant, train, predict, memory, other_data))
    if not compared:
        raise UsageError(f"{before.suite} and {after.suite} have no system on the same data set in common")
    return compared


def kept_rows(suite: Suite, work: Path) -> dict[str, RowScores]:
    """Return the stored rows, mean over seeds; the keys are `data / system`."""
    rows: dict[str, list[RowScores]] = {}
    for cell in suite_cells(suite, work):
        outcome = cell.outcome()
        if outcome is not None and outcome["status"] == DONE:
            try:
                own = read_rows(cell.folder / "rows.npz")
            except StorageError as error:
                raise DataError(f"the rows of {cell.key} cannot be read: {error}") from None
            rows.setdefault(f"{cell.data.name} / {cell.system.name}", []).append(own)
    return {key: mean_rows(by_seed) for key, by_seed in rows.items()}


def _significant(before: RowScores, after: RowScores) -> dict[str, bool] | None:
    if not _same_truth(before, after):
        return None
    differences = compare_rows(["after", "before"], [after, before]).differences
    return {one.metric: one.significant for one in differences}


def _ratio(means: tuple[float, float] | None) -> float | None:
    return means[1] / means[0] if means and means[0] > 0 else None
