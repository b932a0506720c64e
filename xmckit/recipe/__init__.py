"""Read, extend, check and explain recipes: TOML files that name components and their parameters.

    [data]                      [features]                  [head]
    use = "stdlib-calls"        use = "tfidf"               use = "bsl"
                                                            encoder = { use = "sparse-linear", width = 256 }

`load_recipe` reads a file with all that it extends and all `--set`, checks every value against the components'
parameters, and either returns a complete Recipe or raises RecipeError with all mistakes at once. `recipe.layers`
describes how files and `--set` are merged. Imports the registry and everything below it; public are the names below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from xmckit.errors import PluginError
from xmckit.recipe.check import Checker, Mistakes, nested_specs_and_paths
from xmckit.recipe.expectations import a_component, quote_value, with_article
from xmckit.recipe.layers import DEFAULT, Origin, merged_tree, node_of, read_chain, shipped_recipes
from xmckit.recipe.pairing import Pairing, Sections
from xmckit.recipe.sections import (
    DEFAULT_METRICS,
    PLAIN_SECTIONS,
    SCORE_SECTIONS,
    SECTIONS,
    EnsembleKeys,
    GeneralKeys,
    ReportKeys,
    ScoreKeys,
    SectionKind,
)
from xmckit.recipe.sweep import parse_sweep
from xmckit.recipe.toml_lines import KeyPath
from xmckit.records import Combining

if TYPE_CHECKING:
    from xmckit.registry import Registry

__all__ = [
    "Origin",
    "Recipe",
    "Score",
    "Section",
    "load_recipe",
    "load_section",
    "nested_specs_and_paths",
    "parse_sweep",
    "shipped_recipes",
]


ENSEMBLE = "ensemble"  # the name of several heads together in results


@dataclass(frozen=True)
class Section:
    """A component that the recipe names: complete parameters as JSON values, and the keys that are the stage's own."""

    kind: str
    use: str
    name: str
    params: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self, *, named: bool = False) -> dict[str, Any]:
        return {"use": self.use, **({"name": self.name} if named else {}), **self.extra, **self.params}


@dataclass(frozen=True)
class Score:
    """How predictions are scored. `propensity` None means the data set's own."""

    k: tuple[int, ...]
    top: int
    propensity: str | tuple[float, float] | None
    metrics: tuple[Section, ...]
    baseline: Section | None

    def resolved(self) -> dict[str, Any]:
        propensity = list(self.propensity) if isinstance(self.propensity, tuple) else self.propensity
        return {
            "k": list(self.k),
            "top": self.top,
            **({} if propensity is None else {"propensity": propensity}),
            "baseline": self.baseline.resolved() if self.baseline else False,
            "metrics": [metric.resolved() for metric in self.metrics],
        }


@dataclass(frozen=True)
class Recipe:
    """A complete, checked recipe. Equal recipes describe the same run, even if they come from different files.

    `origins` says where each given value was written, `sources` holds the text of each file that was read, the recipe
    itself last.
    """

    name: str
    title: str
    description: str
    seed: int
    validation: float
    refit: bool
    workers: int
    executor: Section
    data: Section
    features: tuple[Section, ...]
    labels: tuple[Section, ...]
    index: tuple[Section, ...]
    heads: tuple[Section, ...]
    ensemble: Combining
    score: Score
    verify: Section | None
    report_title: str
    origins: Mapping[KeyPath, Origin] = field(default_factory=dict, compare=False, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The recipe's own file as it was written."""
        return list(self.sources.values())[-1] if self.sources else self.to_toml()

    def origin(self, path: KeyPath) -> Origin:
        """Return where the value at `path` of `resolved()` was written; `default` if nowhere."""
        return self.origins.get(path, DEFAULT)

    def resolved(self) -> dict[str, Any]:
        """Return everything, with defaults and without `extends`, in the shape of a recipe file."""
        repeated = {"labels": self.labels, "index": self.index, "head": self.heads}
        return {
            **{key: getattr(self, key) for key in GeneralKeys.model_fields},
            "executor": self.executor.resolved(),
            "data": self.data.resolved(),
            "features": self._resolved_features(),
            **{key: [item.resolved(named=True) for item in items] for key, items in repeated.items() if items},
            "ensemble": {"rule": self.ensemble},
            "score": self.score.resolved(),
            **({"verify": self.verify.resolved()} if self.verify else {}),
            "report": {"title": self.report_title},
        }

    def seen_by(self, section: Section) -> str:
        """Return the name of the features that an index or a head sees."""
        return str(section.extra.get("features", self.features[0].name))

    def _resolved_features(self) -> Any:
        """Return a table for one featurizer, which needs no name, and a list for several."""
        if len(self.features) > 1:
            return [section.resolved(named=True) for section in self.features]
        (only,) = self.features
        return only.resolved(named=only.name != only.use)

    def written(self) -> list[dict[str, str]]:
        """Return each value of `resolved()` as TOML, and where it was written."""
        from xmckit.recipe.text import leaves, literal

        return [
            {"key": ".".join(map(str, path)), "value": literal(value), "origin": str(self.origin(path))}
            for path, value in leaves(self.resolved())
        ]

    def to_toml(self, *, with_origins: bool = False) -> str:
        """Return `resolved()` as a recipe file that loads to an equal recipe, optionally with each value's origin."""
        from xmckit.recipe.text import toml_text

        return toml_text(self.resolved(), self.origin if with_origins else None)


def load_recipe(
    source: str | Path,
    *,
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    data_roots: Sequence[Path] = (),
) -> Recipe:
    """Read the recipe in the file `source`, or the shipped one of that name.

    A source that ends with `.toml` or contains a separator is a path. `sets` are texts such as `head.slack=128`. Input
    paths are searched beside the file that contains them, in the working folder, then in `data_roots`.
    """
    if registry is None:
        from xmckit.registry import default_registry

        registry = default_registry()
    chain = read_chain(source)
    tree = merged_tree(chain, sets)
    mistakes = Mistakes(tree, chain[-1].shown)
    reader = _Reader(Checker(mistakes, registry, data_roots), registry)
    recipe = reader.recipe(tree.plain(), default_name=_name_of(chain[-1].path))
    mistakes.raise_any()
    assert recipe is not None
    origins = {path: origin for path, origin in tree.origins() if path}
    origins |= {path: origins[of] for path, of in reader.inherited.items() if of in origins}
    if len(recipe.features) == 1:  # which is a table in `resolved()`, not a list
        own = [path for path in origins if path[:2] == ("features", 0)]
        origins |= {("features", *path[2:]): origins[path] for path in own}
    return replace(recipe, origins=origins, sources={link.shown: link.text for link in chain})


def load_section(
    key: str,
    values: Mapping[str, Any],
    *,
    registry: Registry,
    data_roots: Sequence[Path] = (),
    source: str = "the command line",
) -> Section:
    """Read one section alone, checked as in a recipe: `load_section("data", {"use": "synthetic", "rows": 5}, …)`."""
    tree = node_of({key: dict(values)}, Origin(source, None, Path.cwd()))
    mistakes = Mistakes(tree, source)
    section = _Reader(Checker(mistakes, registry, data_roots), registry).single(key, tree.plain())
    mistakes.raise_any()
    assert section is not None
    return section


def _name_of(path: Path) -> str:
    """Return the name of a recipe's file as a name of the recipe."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:100] or "recipe"


def _present(sections: Sections) -> tuple[Section, ...]:
    return tuple(section for section in sections if section is not None)


class _Reader:
    """Reads the sections of one document. A part with a mistake is None; without mistakes the recipe is complete."""

    def __init__(self, checker: Checker, registry: Registry):
        self._checker, self._registry = checker, registry
        self._mistakes = checker.mistakes
        self.inherited: dict[KeyPath, KeyPath] = {}  # value → the value that it was taken from

    def recipe(self, document: dict[str, Any], default_name: str) -> Recipe | None:
        document = self._checker.reject_toml_types(document)
        general = self._table(GeneralKeys, document, (), others=("extends", *SECTIONS, *PLAIN_SECTIONS))
        executor, data, verify = (self.single(key, document) for key in ("executor", "data", "verify"))
        features, labels, index, heads = (
            self._several(key, document) for key in ("features", "labels", "index", "head")
        )
        score = self._score(document.get("score", {}))
        ensemble = self._table(EnsembleKeys, document.get("ensemble", {}), ("ensemble",))
        report = self._table(ReportKeys, document.get("report", {}), ("report",))
        index, heads = Pairing(self._mistakes, self._registry).pair(features, index, heads, bool(labels))
        if general and general["validation"] == 0 and verify and verify.extra["assignments"] == "validation":
            self._mistakes.add(
                ("verify", "assignments"),
                "there are no validation rows, since validation = 0; expected 'test' or 'train'",
            )
        if general and general["refit"]:
            self._check_refit(general["validation"], heads)
        if self._mistakes.any or not (general and executor and data and score and ensemble and report):
            return None
        return Recipe(
            name=general.pop("name", default_name),
            **general,
            executor=executor,
            data=data,
            features=_present(features),
            labels=_present(labels),
            index=_present(index),
            heads=_present(heads),
            ensemble=ensemble["rule"],
            score=score,
            verify=verify,
            report_title=report["title"],
        )

    def _table(
        self, model: type[BaseModel], value: Any, path: KeyPath, others: Collection[str] = ()
    ) -> dict[str, Any] | None:
        """Check the keys of a table against a model, except `others`, which belong to sections."""
        if not isinstance(value, dict):
            self._mistakes.add(path, f"expected a table, found {quote_value(value)}")
            return None
        own = {key: item for key, item in value.items() if key not in others}
        return self._checker.params(model, own, path, more_keys=others)

    def single(self, key: str, document: dict[str, Any]) -> Section | None:
        """Read a section that does not repeat."""
        return self._optional(SECTIONS[key], document.get(key), (key,))

    def _optional(self, what: SectionKind, value: Any, path: KeyPath) -> Section | None:
        if value is None and what.default is not None:
            value = {"use": what.default}
        if what.optional and (value is None or value is False):
            return None
        if value is None:
            self._mistakes.add(path, f"required: {a_component(what.kind)} {self._checker.known_names(what.kind)}")
            return None
        return self._section(what, value, path)

    def _section(self, what: SectionKind, value: Any, path: KeyPath) -> Section | None:
        if isinstance(value, dict) and what.default is not None and "use" not in value:
            value = {"use": what.default, **value}
        checked = self._checker.component(what.kind, value, path, reserved=what.reserved)
        given = value if isinstance(value, dict) else {}
        own = {key: given[key] for key in what.reserved.model_fields if key in given}
        extra = self._checker.params(what.reserved, own, path)
        if checked is None or extra is None:
            return None
        use, params = checked
        return Section(what.kind, use, extra.pop("name", use), params, extra)

    def _several(self, key: str, document: dict[str, Any]) -> Sections:
        sections = self._items(SECTIONS[key], document.get(key), (key,))
        taken: set[str] = set()
        for position, section in enumerate(sections):
            if section is None:
                continue
            path = (key, position, "name")
            if section.name == ENSEMBLE and len(sections) > 1:
                self._mistakes.add(path, f"'{ENSEMBLE}' is the name of all heads together; choose another")
            if section.name in taken:
                self._mistakes.add(path, f"'{section.name}' is the name of another [[{key}]]; give each its own")
            taken.add(section.name)
        return sections

    def _items(self, what: SectionKind, value: Any, path: KeyPath) -> Sections:
        if value is None and what.default is not None:
            value = [{"use": what.default}]
        if not value and isinstance(value, (list, type(None))):
            if not what.optional:
                name = f"the name of {with_article(what.kind)}"
                known = self._checker.known_names(what.kind)
                self._mistakes.add(path, f"required: at least one table with `use`, {name} {known}")
            return ()
        if not isinstance(value, list):
            self._mistakes.add(path, f"expected a table or a list of tables, found {quote_value(value)}")
            return ()
        return tuple(self._section(what, item, (*path, position)) for position, item in enumerate(value))

    def _score(self, value: Any) -> Score | None:
        keys = self._table(ScoreKeys, value, ("score",), others=SCORE_SECTIONS)
        table = value if isinstance(value, dict) else {}
        given = self._with_depths(table.get("metrics", [{"use": name} for name in DEFAULT_METRICS]), keys)
        metrics = self._items(SCORE_SECTIONS["metrics"], given, ("score", "metrics"))
        baseline = self._optional(SCORE_SECTIONS["baseline"], table.get("baseline"), ("score", "baseline"))
        if keys is None:
            return None
        if len(set(keys["k"])) < len(keys["k"]):
            self._mistakes.add(("score", "k"), f"expected each number once, found {quote_value(keys['k'])}")
        if keys["top"] < max(keys["k"]):
            place = "top" if "top" in value else "k"
            self._mistakes.add(
                ("score", place), f"top is {keys['top']}, expected at least the largest k, {max(keys['k'])}"
            )
        propensity = keys.get("propensity")
        return Score(
            tuple(keys["k"]),
            keys["top"],
            tuple(propensity) if isinstance(propensity, list) else propensity,
            _present(metrics),
            baseline,
        )

    def _with_depths(self, metrics: Any, score: dict[str, Any] | None) -> Any:
        """Give metrics that take a `k` and do not set it the `k` of `[score]`."""
        if score is None or not isinstance(metrics, list):
            return metrics
        given = []
        for position, metric in enumerate(metrics):
            if isinstance(metric, dict) and "k" not in metric and self._takes_k(metric.get("use")):
                metric = {**metric, "k": score["k"]}
                self.inherited["score", "metrics", position, "k"] = ("score", "k")
            given.append(metric)
        return given

    def _takes_k(self, metric: Any) -> bool:
        if metric not in self._registry.names("metric"):
            return False
        try:
            return "k" in self._registry.resolve("metric", metric).Params.model_fields
        except PluginError:
            return False  # the check of the section itself says what is wrong

    def _check_refit(self, validation: float, heads: Sections) -> None:
        from xmckit.protocols import RefittableHead, offers

        if validation == 0:
            self._mistakes.add(("refit",), "refit is not needed: with validation = 0 all rows are used for training")
        for position, head in enumerate(heads):
            if head is not None and not offers(self._registry.resolve("head", head.use), RefittableHead):
                self._mistakes.add(
                    ("head", position, "use"),
                    f"head '{head.use}' cannot be trained again (it has no refit()); leave out refit = true",
                )
