"""Define a cell (one data set, one system, one seed): its folder, its recipe and the files with its outcome.

<work>/cells/<data>/<system>/seed-<n>/
  cell.json    the outcome; written last, so a killed cell has none
  rows.npz     the contribution of each test row to the metrics
  cell.toml  job.json  found.json  output.txt
<work>/runs/   the run folders of recipes, and their shared stages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
from typing_extensions import NotRequired, TypedDict

from xmckit import store
from xmckit.bench.suite import BASELINE, Suite, SuiteData, SuiteSystem
from xmckit.components.metrics import RowScores
from xmckit.errors import StorageError
from xmckit.recipe import Recipe, load_recipe
from xmckit.recipe.layers import merged_tree, read_chain
from xmckit.registry import Registry

FORMAT = 1
_NOT_IN_IDENTITY = ("name", "title", "description", "report", "workers", "executor", "data")


def key_parts(key: str) -> tuple[str, str, int]:
    """Split the key of a cell into data set, system and seed."""
    data, system, seed = key.split(" / ")
    return data, system, int(seed.removeprefix("seed "))


class _OutcomeFile(TypedDict):
    """The content of cell.json: what every cell has, done or not."""

    format: Literal[1]
    status: str
    data_set: str
    system: str
    seed: int
    identity: str
    checksum: str
    ended: str
    machine: dict[str, Any]
    versions: NotRequired[dict[str, str]]
    metrics: NotRequired[dict[str, float]]
    data: NotRequired[dict[str, int]]
    reason: NotRequired[str]
    error: NotRequired[str]


def _check_outcome(outcome: _OutcomeFile) -> None:
    needed = {"reason", "error"} if "reason" in outcome else {"metrics", "data"}
    if missing := needed - outcome.keys():
        raise ValueError(f"without {', '.join(sorted(missing))}")


@dataclass(frozen=True)
class SuiteCell:
    """One system on one data set with one seed; `work` is the folder of the whole suite."""

    suite: Suite
    data: SuiteData
    system: SuiteSystem
    seed: int
    work: Path

    @property
    def key(self) -> str:
        return f"{self.data.name} / {self.system.name} / seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.work / "cells" / self.data.name / self.system.name / f"seed-{self.seed}"

    def outcome(self) -> dict[str, Any] | None:
        """Return the content of cell.json; None if the file is missing, damaged or has another format."""
        try:
            outcome = store.read_json(self.folder / "cell.json", _OutcomeFile, _check_outcome)
        except StorageError:
            return None
        return dict(outcome)

    def recipe_text(self, source: Mapping[str, Any]) -> str:
        """Return the recipe of the system with the data, features, threads and seed of this cell.

        `source` is the [data] with resolved paths. A recipe with several feature views keeps its own features.
        """
        extends = {"extends": self.system.use} if self.system.kind == "recipe" else {}
        head = {} if extends else {"head": {"use": BASELINE}}
        features = {} if extends and _has_views(self.system.use) else {"features": dict(self.data.features)}
        return tomli_w.dumps(
            {
                **extends,
                "name": f"{self.data.name}-{self.system.name}-{self.seed}",
                "seed": self.seed,
                "workers": self.suite.threads,
                "data": dict(source),
                **features,
                "score": {"k": list(self.suite.k)},
                **head,
            }
        )

    def recipe(self, source: Mapping[str, Any], registry: Registry, roots: Sequence[Path]) -> Recipe:
        """Write cell.toml and load it; raise RecipeError if the system cannot run on the data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "cell.toml"
        store.write_text(file, self.recipe_text(source))
        return load_recipe(file, sets=self.system.changes, registry=registry, data_roots=roots)

    def identity(self, recipe: Recipe | None) -> str:
        """Return a checksum of what the cell computes; names and the location of the data do not change it."""
        computation: dict[str, Any] = {
            "source": dict(self.data.source),
            "features": dict(self.data.features),
            "threads": self.suite.threads,
            "k": list(self.suite.k),
            "seed": self.seed,
        }
        if recipe is None:
            computation |= {"peer": self.system.use, "options": dict(self.system.options)}
        else:
            resolved = recipe.resolved()
            # Other keys of [data] than the suite's come from the recipe and change the results.
            own = {key: value for key, value in resolved["data"].items() if key not in self.data.source}
            parts = {key: item for key, item in resolved.items() if key not in _NOT_IN_IDENTITY}
            computation |= {"data": own, **parts}
        return store.canonical_sha256(computation)


def suite_cells(suite: Suite, work: Path, seeds: Sequence[int] = ()) -> list[SuiteCell]:
    """Return all cells of a suite, in the order in which they run."""
    return [SuiteCell(suite, data, system, seed, work) for data, system, seed in suite.cells(seeds)]


def _has_views(recipe: str) -> bool:
    return len(merged_tree(read_chain(recipe), ()).plain().get("features", ())) > 1


def write_rows(path: Path, rows: RowScores) -> None:
    """Write scores in single precision; norms that are 1 in all rows are left out."""
    varying = [index for index, column in enumerate(rows.norms.T) if not (column == 1).all()]
    store.write_arrays(
        path,
        {
            "parts": rows.parts.astype(np.float32),
            "norms": rows.norms[:, varying].astype(np.float32),
            "varying": np.asarray(varying, dtype=np.int64),
        },
    )
    store.write_strings(path.with_suffix(".names.npz"), rows.names)


def read_rows(path: Path) -> RowScores:
    """Read what `write_rows` wrote."""
    names = tuple(store.read_strings(path.with_suffix(".names.npz")))
    parts = store.read_array(path, "parts", "f", (None, len(names))).astype(np.float64)
    varying = store.read_array(path, "varying", "i", (None,), low=0, high=len(names) - 1)
    norms = np.ones_like(parts)
    norms[:, varying] = store.read_array(path, "norms", "f", (len(parts), len(varying)))
    return RowScores(names, parts, norms)


def mean_rows(scores: Sequence[RowScores]) -> RowScores:
    """Return the mean of several seeds in each row; all must have the same norms."""
    return RowScores(scores[0].names, np.mean([one.parts for one in scores], axis=0), scores[0].norms)
