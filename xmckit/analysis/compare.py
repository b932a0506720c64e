"""Compare finished runs on the same test rows, and say which differences are significant.

Significance is a paired bootstrap over test rows: rows are drawn with replacement, the same for all systems, and every
metric is computed again from the rows that were drawn. A p-value is the share of draws whose difference is as far from
the observed one as that is from 0. Of each metric all pairs of systems are compared, and Holm's correction is over
these pairs.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.analysis.combine import check_done, common_data, distinct_names, member_of
from xmckit.components.metrics import RowScores, inverse_propensity, row_scores
from xmckit.data.model import Dataset
from xmckit.errors import DataError, UsageError
from xmckit.runs import Metrics, Run
from xmckit.runs.layout import DEFAULT_ORIGIN, ORIGINS
from xmckit.runs.records import ValueOrigin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DRAWS, LEVEL = 4000, 0.95
FEWEST_ROWS = 20  # with fewer test rows nothing is called significant
_BUFFER = 1 << 23  # numbers held at once while rows are drawn
_NOT_IN_RESULTS = ("name", "title", "description", "report", "workers", "executor")


@dataclass(frozen=True)
class Cost:
    """Time and memory of a system. `bytes`: the trained model on disk; `stages`: the seconds of each stage."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    bytes: int
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """A system in a comparison: all its metrics, and the intervals of the metrics that are compared."""

    name: str
    metrics: Mapping[str, float]
    cost: Cost
    title: str = ""
    path: Path | None = None
    seed: int | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """`one` minus `other` in one metric, with its interval; `adjusted` is the p-value after Holm's correction."""

    metric: str
    one: str
    other: str
    value: float
    low: float
    high: float
    p: float
    adjusted: float
    significant: bool

    @property
    def reversed(self) -> Difference:
        """Return the difference `other` minus `one`."""
        return replace(self, one=self.other, other=self.one, value=-self.value, low=-self.high, high=-self.low)


@dataclass(frozen=True)
class RecipeDifference:
    """A key whose value differs between recipes: its value for each system, None where the key is absent.

    `unset`: only some recipes have a component with that key, and none of them sets it.
    """

    key: str
    values: tuple[Any, ...]
    unset: bool = False


@dataclass(frozen=True)
class Comparison:
    """Systems on the same test rows. `metrics` names the metrics that are compared row by row."""

    dataset: str
    rows: int
    labels: int
    propensity: Mapping[str, Any]
    checksums: Mapping[str, str]
    systems: tuple[System, ...]
    metrics: tuple[str, ...]
    differences: tuple[Difference, ...]
    recipes: tuple[RecipeDifference, ...]
    draws: int
    level: float
    seed: int

    def best(self, metric: str) -> tuple[str, ...]:
        """Return the systems with the highest value: several if they are equal."""
        values = {system.name: system.metrics[metric] for system in self.systems if metric in system.metrics}
        return tuple(name for name, value in values.items() if value == max(values.values()))

    def difference(self, metric: str, one: str, other: str) -> Difference:
        """Return `one` minus `other`."""
        return find_difference(self.differences, metric, one, other)

    def equals_best(self, metric: str, name: str) -> bool:
        """Return whether a system is the best, or does not differ significantly from the best."""
        best = self.best(metric)
        return name in best or not self.difference(metric, best[0], name).significant

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "rows": self.rows,
            "labels": self.labels,
            "propensity": dict(self.propensity),
            "checksums": dict(self.checksums),
            "bootstrap": {"draws": self.draws, "level": self.level, "seed": self.seed, "correction": "Holm"},
            "systems": [_system_json(system) for system in self.systems],
            "best": {metric: list(self.best(metric)) for metric in self.metrics},
            "differences": [vars(difference) for difference in self.differences],
            "recipe_differences": [{"key": one.key, "values": list(one.values)} for one in self.recipes],
        }


def find_difference(differences: Sequence[Difference], metric: str, one: str, other: str) -> Difference:
    """Return `one` minus `other`, which may be listed the other way round."""
    for difference in differences:
        if difference.metric == metric and {difference.one, difference.other} == {one, other}:
            return difference if difference.one == one else difference.reversed
    raise UsageError(f"{one} and {other} were not compared by {metric}")


def _system_json(system: System) -> dict[str, Any]:
    return {
        "name": system.name,
        "title": system.title,
        "path": None if system.path is None else str(system.path),
        "seed": system.seed,
        "metrics": dict(system.metrics),
        "intervals": {metric: list(interval) for metric, interval in system.intervals.items()},
        "cost": {**vars(system.cost), "stages": dict(system.cost.stages)},
    }


def compare_runs(runs: Sequence[Run], *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> Comparison:
    """Compare finished runs on the same rows, with the depths and propensities of the first run."""
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs or more")
    check_done(runs)
    dataset = common_data(runs, "compared")
    first = runs[0].metrics()
    constants = (first["propensity"]["A"], first["propensity"]["B"])
    scores = [score_rows(member_of(run, dataset).topk, dataset, first["k"], constants) for run in runs]
    names = distinct_names(runs)
    compared = compare_rows(names, scores, draws=draws, level=level, seed=seed)
    return Comparison(
        dataset=dataset.name,
        rows=dataset.test.rows,
        labels=dataset.labels,
        propensity=first["propensity"],
        checksums=runs[0].manifest.data or {},
        systems=tuple(
            System(
                name=name,
                metrics={**_own_metrics(run, first), **rows.totals},
                cost=cost_of(run),
                title=run.manifest.title or "",
                path=run.path,
                seed=run.manifest.seed,
                intervals=intervals,
            )
            for name, run, rows, intervals in zip(names, runs, scores, compared.intervals, strict=True)
        ),
        metrics=scores[0].names,
        differences=compared.differences,
        recipes=recipe_differences([run.resolved_recipe for run in runs]),
        draws=draws,
        level=level,
        seed=seed,
    )


def _own_metrics(run: Run, first: Metrics) -> dict[str, float]:
    """Return the run's own metrics, without propensity-scored ones if its propensities differ from the first run's."""
    metrics = run.metrics()
    same = all(metrics["propensity"][name] == first["propensity"][name] for name in ("A", "B"))
    own: dict[str, float] = metrics["results"][0]["metrics"]
    return {name: value for name, value in own.items() if same or not name.startswith("PS")}


def score_rows(topk: Any, dataset: Dataset, ks: Sequence[int], constants: tuple[float, float]) -> RowScores:
    """Return what each test row adds to the metrics of a ranking; propensities follow from the training labels."""
    counts = np.bincount(dataset.train.Y.indices, minlength=dataset.labels)
    weights = inverse_propensity(counts, dataset.train.rows, *constants)
    return row_scores(topk, dataset.test.Y, weights, ks=ks, filtered=dataset.test.filter)


def cost_of(run: Run) -> Cost:
    """Add up the costs of all stages; a stage from the cache counts with its original cost."""
    stages = run.stages
    return Cost(
        seconds=sum(stage.seconds for stage in stages),
        cpu_seconds=sum(stage.cpu_seconds for stage in stages),
        peak_bytes=max((stage.peak_bytes for stage in stages), default=0),
        bytes=sum(stage.bytes for stage in stages if stage.is_model),
        stages={stage.name: stage.seconds for stage in stages},
    )


# -- significance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowComparison:
    """The differences of all pairs of systems in each metric, and the interval of each system's value."""

    differences: tuple[Difference, ...]
    intervals: tuple[Mapping[str, tuple[float, float]], ...]


def compare_rows(
    names: Sequence[str], scores: Sequence[RowScores], *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> RowComparison:
    """Compare every pair of systems, given what each row adds to their metrics."""
    first = scores[0]
    for name, other in zip(names, scores, strict=True):
        if other.names != first.names or other.parts.shape != first.parts.shape:
            raise DataError(f"{name} was scored on other rows or with other metrics than {names[0]}")
        if not np.array_equal(other.norms, first.norms):
            raise DataError(f"{name} was scored with other true labels or propensities than {names[0]}")
    if draws < 1 or not 0 < level < 1:
        raise UsageError(f"expected at least one draw and a level between 0 and 1, found {draws} and {level}")
    drawn = bootstrap([one.parts for one in scores], first.norms, draws, seed)
    observed = np.array([list(one.totals.values()) for one in scores])
    tail = 100 * np.array([(1 - level) / 2, (1 + level) / 2])
    own = np.percentile(drawn, tail, axis=0)
    intervals = tuple(
        {metric: (float(low), float(high)) for metric, low, high in zip(first.names, *own[:, place], strict=True)}
        for place in range(len(names))
    )
    pairs = list(itertools.combinations(range(len(names)), 2))
    differences: list[Difference] = []
    for column, metric in enumerate(first.names):
        values = [float(observed[left, column] - observed[right, column]) for left, right in pairs]
        spread = [drawn[:, left, column] - drawn[:, right, column] for left, right in pairs]
        p = np.array([_p_value(*pair) for pair in zip(values, spread, strict=True)])
        if len(first.parts) < FEWEST_ROWS:
            p = np.ones(len(pairs))
        for place, adjusted in enumerate(holm(p).tolist()):
            left, right = pairs[place]
            low, high = np.percentile(spread[place], tail).tolist()
            pair = (names[left], names[right], values[place], low, high, float(p[place]), adjusted)
            differences.append(Difference(metric, *pair, significant=adjusted < 1 - level))
    return RowComparison(tuple(differences), intervals)


def _p_value(observed: float, drawn: np.ndarray) -> float:
    """Return the share of draws that move the difference as far as it is from 0 (two-sided); never 0."""
    as_far = np.abs(drawn - observed) >= abs(observed) - 1e-12
    return float((1 + as_far.sum()) / (1 + len(drawn)))


def bootstrap(parts: Sequence[np.ndarray], norms: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Return draws × systems × metrics: Σ parts / Σ norms over rows drawn with replacement, as many as there are.

    A draw is a vector of row counts, and the sums are its product with all columns at once. Only as many of these
    vectors are held as fit into a buffer.
    """
    rows, metrics = norms.shape
    rng = np.random.default_rng(seed)
    columns = np.hstack([*parts, norms])
    sums = np.empty((draws, columns.shape[1]))
    block = max(1, min(draws, _BUFFER // max(rows, 1)))
    times = np.empty((block, rows))
    for start in range(0, draws, block):
        here = times[: min(block, draws - start)]
        for line in here:
            line[:] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        sums[start : start + len(here)] = here @ columns
    found = sums[:, :-metrics].reshape(draws, len(parts), metrics)
    norm = sums[:, None, -metrics:]
    return np.divide(found, norm, out=np.zeros_like(found), where=norm > 0)


def holm(p: np.ndarray) -> np.ndarray:
    """Apply Holm's correction: multiply the smallest of n p-values by n, the next by n − 1, and keep the order."""
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1.0)
    return adjusted


# -- recipes -----------------------------------------------------------------------------------------------------------


def recipe_differences(files: Sequence[Path]) -> tuple[RecipeDifference, ...]:
    """Return the keys whose values differ between complete recipes, except titles and the like."""
    recipes = [_flat(_document(file)) for file in files]
    defaults = [_unset_keys(file.with_name(ORIGINS), recipe) for file, recipe in zip(files, recipes, strict=True)]
    differences = []
    for key in dict.fromkeys(key for recipe in recipes for key in recipe):
        values = tuple(recipe.get(key) for recipe in recipes)
        set_by = [own for own, recipe in zip(defaults, recipes, strict=True) if key in recipe and key not in own]
        if any(value != values[0] for value in values):
            differences.append(RecipeDifference(key, values, unset=None in values and not set_by))
    return tuple(differences)


def _unset_keys(file: Path, recipe: Mapping[str, Any]) -> set[str]:
    """Return the keys of a flat recipe that nobody wrote; none if the origins are unknown."""
    if not file.is_file():
        return set()
    unset = [one["key"] for one in store.read_json(file, list[ValueOrigin]) if one["origin"] == DEFAULT_ORIGIN]
    return {key if key in recipe else key.replace(".0.", ".") for key in unset}


def _document(file: Path) -> dict[str, Any]:
    with store.explain_damage(file, "not TOML", ValueError, RecursionError):
        document = tomllib.loads(file.read_bytes().decode(), parse_float=_finite)
    return {key: value for key, value in document.items() if key not in _NOT_IN_RESULTS}


def _finite(text: str) -> float:
    """Read a number of a recipe; none of them may be infinite or NaN."""
    if not math.isfinite(number := float(text.replace("_", ""))):
        raise ValueError(f"{text} is not a finite number")
    return number


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten a recipe to dotted keys; a list with one table needs no number."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = value[0] if len(value) == 1 else {str(place): item for place, item in enumerate(value)}
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{path}.{key}" if path else key)
    return flat
