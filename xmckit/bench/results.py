"""Everything that a suite found, in one JSON: the outcome of each cell, means over seeds, and what is significant.

Significance is a paired bootstrap over test rows (see `xmckit.analysis.compare`), on each row's mean over seeds.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from xmckit import store
from xmckit.analysis.compare import DRAWS, Difference, compare_rows
from xmckit.bench.cells import SuiteCell, key_parts, mean_rows, read_rows
from xmckit.bench.runner import DONE, NO_DATA
from xmckit.bench.suite import Suite
from xmckit.components.metrics import RowScores
from xmckit.errors import DataError, StorageError, UsageError

FORMAT = 1
COSTS = ("train_seconds", "predict_seconds", "seconds", "cpu_seconds", "peak_bytes", "bytes")
_LEFT_OUT = ("format", "identity", "run", "prints", "propensity", "machine", "versions")


@dataclass(frozen=True)
class Standing:
    """A system in one metric beside the best of the data set: `best` minus it, and whether that may be chance."""

    best: str
    difference: float
    low: float
    high: float
    p: float
    same: bool


@dataclass(frozen=True)
class Duel:
    """The best recipe against the best peer in one metric; the difference is recipe minus peer.

    `p` and `significant` are after Holm's correction over all pairs of systems; `standing` is by the interval of this
    one difference, since a correction for questions that nobody asks here would hide that a recipe is behind.
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
    def standing(self) -> Literal["better", "matches", "behind"]:
        return "better" if self.low > 0 else "behind" if self.high < 0 else "matches"


@dataclass(frozen=True)
class DataResults:
    """What was found on one data set; `standings` are by metric and system."""

    name: str
    facts: Mapping[str, int]
    checksum: str
    published: Sequence[Mapping[str, Any]]
    standings: Mapping[str, Mapping[str, Standing]]
    duels: Sequence[Duel]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Results:
    suite: str
    title: str
    seeds: Sequence[int]
    threads: int
    k: Sequence[int]
    systems: Sequence[Mapping[str, str]]  # name, title, kind
    data: Sequence[DataResults]
    cells: Sequence[Mapping[str, Any]]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    missing: Sequence[str] = field(default_factory=tuple)  # keys of cells that were never run
    # machine and versions of each sitting that differs; a cell has the number of its own as `environment`
    environments: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def of(self, data: str, system: str) -> list[Mapping[str, Any]]:
        """The cells that are done, one for each seed."""
        return [cell for cell in self.done(data) if cell["system"] == system]

    def done(self, data: str) -> list[Mapping[str, Any]]:
        return [cell for cell in self.cells if cell["data_set"] == data and cell["status"] == DONE]

    @property
    def names(self) -> set[str]:
        """Those of the data sets."""
        return {data.name for data in self.data}

    def failed(self) -> list[Mapping[str, Any]]:
        return [cell for cell in self.cells if cell["status"] != DONE]

    def failures(self) -> list[list[str]]:
        """(data, system, seed, why, message) of each cell that failed; one line for a data set that is not there."""
        rows = [[cell["data_set"], *_which(cell), cell["reason"], _one_line(cell["error"])] for cell in self.failed()]
        return [row for place, row in enumerate(rows) if row not in rows[:place]]

    def mean(self, data: str, system: str, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation over seeds of a metric or a cost; None where nothing is done."""
        values = [
            value for cell in self.of(data, system)
            if (value := cell["metrics"].get(name) if name not in COSTS else cell.get(name)) is not None
        ]  # fmt: skip
        if not values:
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **{key: value for key, value in vars(self).items() if key not in ("data", "systems")},
            "systems": [dict(system) for system in self.systems],
            "data": [
                {
                    **vars(data),
                    "standings": {
                        metric: {name: vars(standing) for name, standing in by_system.items()}
                        for metric, by_system in data.standings.items()
                    },
                    "duels": [vars(duel) for duel in data.duels],
                }
                for data in self.data
            ],
        }


def collect(suite: Suite, work: Path, seeds: Sequence[int] = (), *, draws: int = DRAWS) -> Results:
    """All cells of a suite that have an outcome, and the comparison of those that are done."""
    cells = [SuiteCell(suite, data, system, seed, work) for data, system, seed in suite.cells(seeds)]
    outcomes = [(cell, outcome) for cell in cells if (outcome := cell.outcome()) is not None]
    newest = max((outcome for _, outcome in outcomes), key=lambda outcome: outcome["ended"], default={})
    versions: dict[str, str] = {}
    for _, outcome in outcomes:
        versions |= outcome.get("versions", {})
    environments: list[dict[str, Any]] = []
    kept = []
    for _, outcome in outcomes:
        environment = {"machine": outcome["machine"], "versions": outcome.get("versions", {})}
        if environment not in environments:
            environments.append(environment)
        told = {key: value for key, value in outcome.items() if key not in _LEFT_OUT}
        kept.append({**told, "environment": environments.index(environment)})
    return Results(
        suite=suite.name,
        title=suite.title,
        seeds=list(seeds or suite.seeds),
        threads=suite.threads,
        k=list(suite.k),
        systems=[{"name": one.name, "title": one.title, "kind": one.kind} for one in suite.systems],
        data=[
            _compared(data.name, data.published, suite, [pair for pair in outcomes if pair[0].data == data], draws)
            for data in suite.data
        ],
        cells=kept,
        machine=newest.get("machine", {}),
        versions=dict(sorted(versions.items())),
        missing=[cell.key for cell in cells if cell.outcome() is None],
        environments=environments,
    )


def with_earlier(results: Results, earlier: Results) -> tuple[Results, list[str]]:
    """`results`, with the data sets that they have no cell of as they are in `earlier`; the names of those.

    Rows, from which standings are made, stay in the folder that a suite was run in. So what was run in another one,
    or on another machine, is kept whole, and nothing that this folder knows of a data set is mixed with it.
    """
    begun = {cell["data_set"] for cell in results.cells}
    asked = {system["name"] for system in results.systems}
    same_suite = all(getattr(earlier, name) == getattr(results, name) for name in ("suite", "threads", "k"))
    kept = [
        data for data in earlier.data
        if same_suite and data.name in results.names - begun
        and asked >= {cell["system"] for cell in earlier.cells if cell["data_set"] == data.name}
        and earlier.done(data.name)
    ]  # fmt: skip
    if not kept:
        return results, []
    names = [data.name for data in kept]
    cells, environments = list(results.cells), list(results.environments)
    for cell in earlier.cells:
        if cell["data_set"] in names:
            environment = earlier.environments[cell["environment"]]
            if environment not in environments:
                environments.append(environment)
            cells.append({**cell, "environment": environments.index(environment)})
    there = {(cell["data_set"], cell["system"], cell["seed"]) for cell in cells}
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
        missing=[key for key in results.missing if key_parts(key) not in there],
        environments=environments,
    ), names


def _compared(
    name: str,
    published: Sequence[Mapping[str, Any]],
    suite: Suite,
    outcomes: Sequence[tuple[SuiteCell, dict[str, Any]]],
    draws: int,
) -> DataResults:
    done = [(cell, outcome) for cell, outcome in outcomes if outcome["status"] == DONE]
    if not done:
        return DataResults(name, {}, "", published, {}, ())
    checksum = done[-1][1]["checksum"]
    notes, rows = [], {}
    for system in suite.systems:
        own = [(cell, outcome) for cell, outcome in done if cell.system == system]
        if other := [cell.key for cell, outcome in own if outcome["checksum"] != checksum]:
            notes.append(f"made with other data, run again to compare: {', '.join(other)}")
            continue
        if own:
            rows[system.name] = mean_rows([read_rows(cell.folder / "rows.npz") for cell, _ in own])
    rows = _comparable(rows, notes)
    differences: tuple[Difference, ...] = ()
    if len(rows) > 1:
        differences = compare_rows(list(rows), list(rows.values()), draws=draws).differences
    kinds = {system.name: system.kind for system in suite.systems}
    facts = next(outcome["data"] for _, outcome in done if outcome["checksum"] == checksum)  # the baseline's
    return DataResults(
        name, facts, checksum, published, _standings(rows, differences), _duels(rows, differences, kinds), notes
    )


def _comparable(rows: dict[str, RowScores], notes: list[str]) -> dict[str, RowScores]:
    """Those with the truth and the propensities that the first has."""
    if not rows:
        return rows
    first = next(iter(rows.values()))
    kept = {
        name: one for name, one in rows.items()
        if one.names == first.names and one.norms.shape == first.norms.shape and (one.norms == first.norms).all()
    }  # fmt: skip
    if others := [name for name in rows if name not in kept]:
        notes.append(f"scored with other true labels or propensities, so not compared: {', '.join(others)}")
    return kept


def _standings(rows: Mapping[str, RowScores], differences: Sequence[Difference]) -> dict[str, dict[str, Standing]]:
    found: dict[str, dict[str, Standing]] = {}
    by_pair = {(one.metric, frozenset((one.one, one.other))): one for one in differences}
    for metric in next(iter(rows.values())).names if rows else ():
        values = {name: one.totals[metric] for name, one in rows.items()}
        best = max(values, key=lambda name: values[name])
        found[metric] = {best: Standing(best, 0.0, 0.0, 0.0, 1.0, same=True)}
        for name in values:
            if name != best:
                pair = by_pair[metric, frozenset((best, name))]
                pair = pair if pair.one == best else pair.reversed
                found[metric][name] = Standing(
                    best, pair.value, pair.low, pair.high, pair.adjusted, same=not pair.significant
                )
    return found


def _duels(rows: Mapping[str, RowScores], differences: Sequence[Difference], kinds: Mapping[str, str]) -> list[Duel]:
    """In every metric: the best recipe against the best peer."""
    found = []
    for metric in next(iter(rows.values())).names if rows else ():
        best = {}
        for kind in ("recipe", "peer"):
            of_kind = {name: one.totals[metric] for name, one in rows.items() if kinds[name] == kind}
            if of_kind:
                best[kind] = max(of_kind, key=lambda name: of_kind[name])
        if len(best) < 2:
            continue
        pair = next(one for one in differences if one.metric == metric and {one.one, one.other} == set(best.values()))
        pair = pair if pair.one == best["recipe"] else pair.reversed
        found.append(
            Duel(metric, pair.one, pair.other, pair.value, pair.low, pair.high, pair.adjusted, pair.significant)
        )
    return found


def write_results(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(path, results.to_json())


def read_results(path: Path) -> Results:
    """The results in a JSON file; StorageError where it is another kind of file."""
    found = store.read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or "suite" not in found:
        raise _not_results(path, f"there is no format {FORMAT}")
    try:
        data = [
            DataResults(
                **{
                    **one,
                    "standings": {
                        metric: {name: Standing(**standing) for name, standing in by_system.items()}
                        for metric, by_system in one["standings"].items()
                    },
                    "duels": [Duel(**duel) for duel in one["duels"]],
                }
            )
            for one in found["data"]
        ]
        results = Results(**{key: value for key, value in found.items() if key not in ("format", "data")}, data=data)
        for cell in results.cells:
            _ = (
                [cell[key] for key in ("data_set", "system", "seed", "status")],
                results.environments[cell["environment"]],
            )
        return results
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise _not_results(path, str(error)) from None


def _not_results(path: Path, why: str) -> StorageError:
    return StorageError(f"{path}: expected results as `xmckit bench run` writes them ({why})")


# -- two sets of results -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A system on a data set in two sets of results: the later minus the earlier, and the ratio of the times.

    `significant` is None where the rows of one of them were not kept.
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
    """Systems that both have on data sets that both have, in the order of the second."""
    found = []
    earlier = {data.name: data for data in before.data}
    for data in after.data:
        for system in after.systems:
            old, new = (results.of(data.name, system["name"]) for results in (before, after))
            if not old or not new:
                continue
            pairs = {
                metric: (
                    _mean(before, data.name, system["name"], metric),
                    _mean(after, data.name, system["name"], metric),
                )
                for metric in old[0]["metrics"]
                if metric in new[0]["metrics"]
            }
            significant = None
            if rows is not None and (both := rows.get(f"{data.name} / {system['name']}")) is not None:
                significant = _significant(*both)
            train, predict, memory = (
                _ratio(before, after, data.name, system["name"], cost)
                for cost in ("train_seconds", "predict_seconds", "peak_bytes")
            )
            other_data = earlier[data.name].checksum != data.checksum
            found.append(Change(data.name, system["name"], pairs, significant, train, predict, memory, other_data))
    if not found:
        raise UsageError(f"{before.suite} and {after.suite} have no system on the same data set in common")
    return found


def kept_rows(suite: Suite, work: Path) -> dict[str, RowScores]:
    """The rows of every system, mean over seeds, by data set and system."""
    found: dict[str, list[RowScores]] = {}
    for data, system, seed in suite.cells():
        cell = SuiteCell(suite, data, system, seed, work)
        outcome = cell.outcome()
        if outcome is not None and outcome["status"] == DONE:
            try:
                found.setdefault(f"{data.name} / {system.name}", []).append(read_rows(cell.folder / "rows.npz"))
            except StorageError as error:
                raise DataError(f"{cell.key} has lost its rows: {error}") from None
    return {key: mean_rows(rows) for key, rows in found.items()}


def _significant(before: RowScores, after: RowScores) -> dict[str, bool] | None:
    if before.names != after.names or before.norms.shape != after.norms.shape or (before.norms != after.norms).any():
        return None
    found = compare_rows(["after", "before"], [after, before]).differences
    return {one.metric: one.significant for one in found}


def _mean(results: Results, data: str, system: str, name: str) -> float:
    found = results.mean(data, system, name)
    assert found is not None
    return found[0]


def _ratio(before: Results, after: Results, data: str, system: str, cost: str) -> float | None:
    old, new = before.mean(data, system, cost), after.mean(data, system, cost)
    return new[0] / old[0] if old and new and old[0] > 0 else None


def _which(cell: Mapping[str, Any]) -> list[str]:
    return ["all", "all"] if cell["reason"] == NO_DATA else [cell["system"], str(cell["seed"])]


def _one_line(text: str) -> str:
    return textwrap.shorten(text.strip().splitlines()[-1], 200, placeholder=" …") if text.strip() else ""
