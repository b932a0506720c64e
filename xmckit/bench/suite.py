"""What a suite says: data sets, systems (recipes with changes, and peers), seeds, threads and limits.

    title = "Two recipes and PECOS"
    seeds = [0, 1]
    threads = 2

    [[data]]
    name = "stdlib-calls"
    source = { use = "stdlib-calls" }
    features = { use = "tfidf" }

    [[system]]
    name = "overlap"
    recipe = "overlap"
    set = ["index.average=1.5"]

    [[peer]]
    name = "pecos"
    use = "pecos"

Each data set also has a cell of the baseline, the commonest labels, whose run gives the peers their rows and features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from xmckit.bench.peers import PEERS, params_of
from xmckit.errors import PluginError, RecipeError, nearest
from xmckit.params import Params
from xmckit.recipe.check import Checker, Mistakes
from xmckit.recipe.expectations import found
from xmckit.recipe.layers import locate, read_source
from xmckit.recipe.sections import Name
from xmckit.recipe.toml_lines import KeyPath
from xmckit.registry import Registry

BASELINE = "popularity"
Kind = Literal["baseline", "recipe", "peer"]
_TABLES = ("data", "system", "peer")


class SuiteKeys(Params):
    title: str = Field("", description="One line that says what the suite is for.")
    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1, description="Each system is run with each.")
    threads: int = Field(1, ge=1, description="Threads of every child process, ours and those of peers.")
    limit: PositiveFloat = Field(3600.0, description="Seconds that a cell may take.")
    k: list[Annotated[int, Field(ge=1)]] = Field([1, 3, 5], min_length=1, description="Depths of the ranking.")
    results: str | None = Field(None, description="JSON file for all results, relative to the suite.")
    page: str | None = Field(None, description="Markdown file whose part between markers is written anew.")


class Published(Params):
    system: str = Field(description="Whose figures these are.")
    source: str = Field(description="Where they were published.")
    same_split: bool = Field(description="Whether they are of the same rows.")
    metrics: dict[str, PositiveFloat] = Field(description='Percentages by name, such as { "P@1" = 60.1 }.')


class DataKeys(Params):
    name: Name = Field(description="What the data set is called in the suite.")
    source: dict[str, Any] = Field(description="The recipe's [data]: `use` and the data set's own parameters.")
    features: dict[str, Any] = Field({"use": "blocks"}, description="The recipe's [features].")
    published: list[Published] = Field([], description="Figures to show beside ours.")


class WhereKeys(Params):
    name: Name | None = Field(None, description="What the system is called in the suite.")
    title: str | None = Field(None, description="What tables call it; by default its name.")
    only: list[str] | None = Field(None, description="Names of the data sets to run it on; by default all.")
    seeds: list[Annotated[int, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="Those of the suite's seeds to run it with; one, where they change nothing. Of `--seeds` that are "
        "none of the suite's: as many of the first.",
    )
    limit: PositiveFloat | None = Field(None, description="Seconds that a cell may take; by default the suite's.")


class SystemKeys(WhereKeys):
    recipe: str = Field(description="The name of a shipped recipe, or a file relative to the suite.")
    set: list[str] = Field([], description="Changes of the recipe, such as head.beam=20.")


class PeerKeys(WhereKeys):
    use: str = Field(description="The name of a peer, or package.module:Class of one.")
    options: dict[str, Any] = Field({}, description="The peer's own parameters.")


@dataclass(frozen=True)
class DataSet:
    name: str
    source: Mapping[str, Any]
    features: Mapping[str, Any]
    published: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class System:
    """A row of the table. `use` is a recipe or a peer, `changes` a recipe's `--set`, `options` a peer's parameters."""

    name: str
    title: str
    kind: Kind
    use: str
    limit: float
    changes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None

    def runs_on(self, data: str) -> bool:
        return self.only is None or data in self.only

    def seeds_among(self, asked: Sequence[int], suite: Sequence[int]) -> Sequence[int]:
        """Its own of some seeds; if none of them is, of those that are none of the suite's as many as it has."""
        if self.seeds is None:
            return asked
        own = [seed for seed in asked if seed in self.seeds]
        return own or [seed for seed in asked if seed not in suite][: len(self.seeds)]


@dataclass(frozen=True)
class Suite:
    name: str
    path: Path
    title: str
    seeds: tuple[int, ...]
    threads: int
    k: tuple[int, ...]
    data: tuple[DataSet, ...]
    systems: tuple[System, ...]
    results: Path | None = None
    page: Path | None = None

    def cells(self, seeds: Sequence[int] = ()) -> list[tuple[DataSet, System, int]]:
        """Baselines, which need no seed, first; then in the order that says most when a suite is cut short."""
        baseline, *others = self.systems
        asked = seeds or self.seeds
        return [(data, baseline, 0) for data in self.data] + [
            (data, system, seed)
            for seed in asked
            for data in self.data
            for system in others
            if system.runs_on(data.name) and seed in system.seeds_among(asked, self.seeds)
        ]


def load_suite(path: Path, registry: Registry) -> Suite:
    """The suite in a file; RecipeError with all its mistakes."""
    source = read_source(Path.cwd() / path)
    mistakes = Mistakes(source.root, source.shown)
    checker = Checker(mistakes, registry, ())
    document = checker.sane(source.root.plain())
    general = checker.params(
        SuiteKeys, {key: value for key, value in document.items() if key not in _TABLES}, (), more_keys=_TABLES
    )
    data = _tables(checker, document, "data", DataKeys)
    systems = _tables(checker, document, "system", SystemKeys)
    peers = _tables(checker, document, "peer", PeerKeys)
    if not document.get("data"):
        mistakes.add(("data",), "required: at least one [[data]] with a name and a source")
    if not document.get("system") and not document.get("peer"):
        mistakes.add(("system",), "required: at least one [[system]] with a recipe, or one [[peer]]")
    names = [table["name"] for _, table in data]
    _check_recipes(mistakes, systems, source.path.parent)
    _check_peers(checker, peers)
    for key, tables in (("system", systems), ("peer", peers)):
        for place, table in tables:
            for position, seed in enumerate(table.get("seeds", ())):
                if general is not None and seed not in general["seeds"]:
                    known = ", ".join(map(str, general["seeds"]))
                    mistakes.add((key, place, "seeds", position), f"{seed} is not among the suite's seeds ({known})")
            for position, name in enumerate(table.get("only", ())):
                if name not in names:
                    known = f"(data sets of the suite: {', '.join(names)})"
                    mistakes.add((key, place, "only", position), f"no data set '{name}'{nearest(name, names)} {known}")
    _check_names(mistakes, data, "data")
    _check_names(mistakes, [*systems, *peers], "system", len(systems))
    mistakes.raise_any()
    assert general is not None
    folder, limit = source.path.parent, general["limit"]
    every = [System(BASELINE, "commonest labels", "baseline", BASELINE, limit)]
    every += [
        _system(table, "recipe", str(_recipe_file(table["recipe"], folder)), limit, changes=tuple(table["set"]))
        for _, table in systems
    ]
    every += [_system(table, "peer", table["use"], limit, options=table["options"]) for _, table in peers]
    return Suite(
        name=source.path.stem,
        path=source.path,
        title=general["title"],
        seeds=tuple(dict.fromkeys(general["seeds"])),
        threads=general["threads"],
        k=tuple(sorted(set(general["k"]))),
        data=tuple(DataSet(table["name"], table["source"], table["features"], table["published"]) for _, table in data),
        systems=tuple(every),
        results=folder / general["results"] if general.get("results") else None,
        page=folder / general["page"] if general.get("page") else None,
    )


Tables = list[tuple[int, dict[str, Any]]]


def _tables(checker: Checker, document: Mapping[str, Any], key: str, model: type[Params]) -> Tables:
    """The tables that can be read, with their places; a single table is a list of one."""
    value = document.get(key, [])
    if not isinstance(value, list):
        checker.mistakes.add((key,), f"expected a list of tables, [[{key}]], found {found(value)}")
        return []
    read = []
    for place, table in enumerate(value):
        if not isinstance(table, dict):
            checker.mistakes.add((key, place), f"expected a table, found {found(table)}")
        elif (params := checker.params(model, table, (key, place))) is not None:
            read.append((place, {**params, "name": params.get("name") or _default_name(params)}))
    return read


def _default_name(table: Mapping[str, Any]) -> str:
    return Path(str(table.get("recipe", table.get("use", "")))).stem


def _system(table: Mapping[str, Any], kind: Kind, use: str, limit: float, **more: Any) -> System:
    where: Any = {key: tuple(dict.fromkeys(table[key])) for key in ("only", "seeds") if key in table}
    return System(
        table["name"], table.get("title", table["name"]), kind, use, table.get("limit", limit), **where, **more
    )


def _recipe_file(recipe: str, folder: Path) -> Path:
    return locate(recipe, beside=folder)


def _check_recipes(mistakes: Mistakes, systems: Tables, folder: Path) -> None:
    for place, table in systems:
        at: KeyPath = ("system", place, "recipe")
        try:
            if not _recipe_file(table["recipe"], folder).is_file():
                mistakes.add(at, f"there is no file {table['recipe']!r} beside the suite")
        except RecipeError as error:
            mistakes.add(at, str(error))


def _check_peers(checker: Checker, peers: Tables) -> None:
    for place, table in peers:
        use = table["use"]
        if use not in PEERS and ":" not in use:
            checker.mistakes.add(
                ("peer", place, "use"), f"no peer named '{use}'{nearest(use, PEERS)} (known: {', '.join(PEERS)})"
            )
            continue
        try:
            params = params_of(use)
        except PluginError as error:
            checker.mistakes.add(("peer", place, "use"), str(error))
            continue
        checker.params(params, table["options"], ("peer", place, "options"))


def _check_names(mistakes: Mistakes, tables: Tables, key: str, of_first_key: int | None = None) -> None:
    taken = {BASELINE} if key == "system" else set()
    for count, (place, table) in enumerate(tables):
        own = "peer" if of_first_key is not None and count >= of_first_key else key
        if table["name"] in taken:
            mistakes.add((own, place, "name"), f"'{table['name']}' is the name of another; give each its own")
        taken.add(table["name"])
