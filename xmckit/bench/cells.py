"""A cell: one data set, one system, one seed. Its folder, its recipe, and what is kept of its outcome.

<work>/cells/<data>/<system>/seed-<n>/
  cell.json    the outcome; written last, so a cell that was killed has none
  rows.npz     what each test row adds to the metrics
  cell.toml  job.json  found.json  output.txt
<work>/runs/   the run folders of recipes, and the stages that they share
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from xmckit import store
from xmckit.bench.suite import BASELINE, DataSet, Suite, System
from xmckit.components.metrics import RowScores
from xmckit.errors import StorageError
from xmckit.recipe import Recipe, load_recipe
from xmckit.recipe.layers import merged_tree, read_chain
from xmckit.registry import Registry

FORMAT = 1
_NOT_IN_IDENTITY = ("name", "title", "description", "report", "workers", "executor", "data")


def key_parts(key: str) -> tuple[str, str, int]:
    """The data set, the system and the seed of a cell's key."""
    data, system, seed = key.split(" / ")
    return data, system, int(seed.removeprefix("seed "))


@dataclass(frozen=True)
class Cell:
    suite: Suite
    data: DataSet
    system: System
    seed: int
    work: Path

    @property
    def key(self) -> str:
        return f"{self.data.name} / {self.system.name} / seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.work / "cells" / self.data.name / self.system.name / f"seed-{self.seed}"

    def outcome(self) -> dict[str, Any] | None:
        """What was written when the cell ended, or None; a file that cannot be read counts as none."""
        file = self.folder / "cell.json"
        if not file.is_file():
            return None
        try:
            found = store.read_json(file)
        except StorageError:
            return None
        return found if isinstance(found, dict) and found.get("format") == FORMAT else None

    def recipe_text(self, source: Mapping[str, Any]) -> str:
        """The recipe of this cell: the system's, on the suite's data, features, threads and seed.

        `source` is the [data] with its paths found. A recipe whose heads see different features keeps its own.
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
        """RecipeError where the system cannot be run on the data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "cell.toml"
        store.write_text(file, self.recipe_text(source))
        return load_recipe(file, sets=self.system.changes, registry=registry, data_roots=roots)

    def identity(self, recipe: Recipe | None) -> str:
        """Equal for cells that ask for the same; where data lies and what a thing is called does not matter."""
        asked: dict[str, Any] = {
            "source": dict(self.data.source),
            "features": dict(self.data.features),
            "threads": self.suite.threads,
            "k": list(self.suite.k),
            "seed": self.seed,
        }
        if recipe is None:
            asked |= {"peer": self.system.use, "options": dict(self.system.options)}
        else:
            resolved = recipe.resolved()
            # where the data lies is left out, but not what a recipe says of it besides
            own = {key: value for key, value in resolved["data"].items() if key not in self.data.source}
            asked |= {"data": own, **{key: item for key, item in resolved.items() if key not in _NOT_IN_IDENTITY}}
        return store.canonical_sha256(asked)


def _has_views(recipe: str) -> bool:
    return len(merged_tree(read_chain(recipe), ()).plain().get("features", ())) > 1


def write_rows(path: Path, rows: RowScores) -> None:
    """Compact: single precision, and of the norms only those that are not 1 for every row."""
    varying = [place for place, column in enumerate(rows.norms.T) if not (column == 1).all()]
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
    arrays = store.read_arrays(path, "parts", "norms", "varying")
    names = tuple(store.read_strings(path.with_suffix(".names.npz")))
    parts = arrays["parts"].astype(np.float64)
    norms = np.ones_like(parts)
    if parts.ndim != 2 or parts.shape[1] != len(names) or arrays["norms"].shape != (len(parts), len(arrays["varying"])):
        raise store.damaged(path, f"expected the scores of rows in {len(names)} metrics")
    norms[:, arrays["varying"]] = arrays["norms"]
    return RowScores(names, parts, norms)


def mean_rows(scores: Sequence[RowScores]) -> RowScores:
    """Of several seeds: their mean in every row. All have the same norms."""
    return RowScores(scores[0].names, np.mean([one.parts for one in scores], axis=0), scores[0].norms)
