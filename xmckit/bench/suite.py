"""Read and check suite files: data sets, systems (recipes with changes, and peers), seeds, threads and limits.

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

Each data set also has a cell of the baseline, which predicts the commonest labels. Peers take their rows and
features from its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from xmckit.bench.peers import PEERS, peer_class
from xmckit.errors import PluginError, RecipeError, nearest
from xmckit.params import Params
from xmckit.recipe.check import Checker, Mistakes
from xmckit.recipe.expectations import quote_value
from xmckit.recipe.layers import locate, read_source
from xmckit.recipe.sections import Name
from xmckit.recipe.toml_lines import KeyPath
from xmckit.registry import Registry

BASELINE = "popularity"
SystemKind = Literal["baseline", "recipe", "peer"]
_TABLES = ("data", "system", "peer")


class SuiteKeys(Params):
    title: str = Field("", description="One line that says what the suite is for.")
    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1, description="Every system runs with each seed.")
    threads: int = Field(1, ge=1, description="Threads of each child process, for recipes and peers alike.")
    limit: PositiveFloat = Field(3600.0, description="Time limit of a cell in seconds.")
    k: list[Annotated[int, Field(ge=1)]] = Field([1, 3, 5], min_length=1, description="Depths of the ranking.")
    results: str | None = Field(None, description="JSON file for all results; relative to the suite file.")
    page: str | None = Field(None, description="Markdown file; the text between its markers is replaced.")


class Published(Params):
    system: str = Field(description="Name of the system with these figures.")
    source: str = Field(description="Publication that contains the figures.")
    same_split: bool = Field(description="Whether the figures were measured on the same rows.")
    metrics: dict[str, PositiveFloat] = Field(description='Percentages by name, such as { "P@1" = 60.1 }.')


class DataKeys(Params):
    name: Name = Field(description="Name of the data set in the suite.")
    source: dict[str, Any] = Field(description="The recipe's [data]: `use` and the parameters of the data set.")
    features: dict[str, Any] = Field({"use": "blocks"}, description="The recipe's [features].")
    published: list[Published] = Field([], description="Published figures to show in the same table.")


class ParticipantKeys(Params):
    name: Name | None = Field(None, description="Name of the system in the suite.")
    title: str | None = Field(None, description="Name of the system in tables; by default `name`.")
    only: list[str] | None = Field(None, description="Names of the data sets that the system runs on; by default all.")
    seeds: list[Annotated[int, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="Seeds of the suite that the system runs with; one is enough if the seed changes nothing. If "
        "`--seeds` gives seeds that the suite does not have, it takes as many of those as it lists here.",
    )
    limit: PositiveFloat | None = Field(None, description="Time limit of a cell in seconds; by default the suite's.")


class SystemKeys(ParticipantKeys):
    recipe: str = Field(description="Name of a shipped recipe, or a file relative to the suite file.")
    set: list[str] = Field([], description="Changes to the recipe, such as head.beam=20.")


class PeerKeys(ParticipantKeys):
    use: str = Field(description="Name of a peer, or its class as package.module:Class.")
    options: dict[str, Any] = Field({}, description="Parameters of the peer.")


@dataclass(frozen=True)
class SuiteData:
    """A data set of a suite: the recipe's [data] and [features], and published figures."""

    name: str
    source: Mapping[str, Any]
    features: Mapping[str, Any]
    published: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class SuiteSystem:
    """A row of the table: a recipe with changes (as of `--set`), a peer with options, or the baseline."""

    name: str
    title: str
    kind: SystemKind
    use: str
    limit: float
    changes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None

    def runs_on(self, data: str) -> bool:
        return self.only is None or data in self.only

    def seeds_among(self, requested: Sequence[int], suite: Sequence[int]) -> Sequence[int]:
        """Return the requested seeds that this system runs with.

        If none of its own seeds is requested, it takes as many requested seeds that the suite does not have.
        """
        if self.seeds is None:
            return requested
        own = [seed for seed in requested if seed in self.seeds]
        return own or [seed for seed in requested if seed not in suite][: len(self.seeds)]


@dataclass(frozen=True)
class Suite:
    """A checked suite file; the first system is the baseline."""

    name: str
    path: Path
    title: str
    seeds: tuple[int, ...]
    threads: int
    k: tuple[int, ...]
    data: tuple[SuiteData, ...]
    systems: tuple[SuiteSystem, ...]
    results: Path | None = None
    page: Path | None = None

    def cells(self, seeds: Sequence[int] = ()) -> list[tuple[SuiteData, SuiteSystem, int]]:
        """Return the cells: baselines first, which need no seed, then all systems seed by seed."""
        # In this order, a suite that is stopped early can still compare systems.
        baseline, *others = self.systems
        requested = seeds or self.seeds
        return [(data, baseline, 0) for data in self.data] + [
            (data, system, seed)
            for seed in requested
            for data in self.data
            for system in others
            if system.runs_on(data.name) and seed in system.seeds_among(requested, self.seeds)
        ]


def load_suite(path: Path, registry: Registry) -> Suite:
    """Read a suite file; raise a RecipeError that lists all its mistakes."""
    source = read_source(Path.cwd() / path)
    mistakes = Mistakes(source.root, source.shown)
    checker = Checker(mistakes, registry, ())
    document = checker.reject_toml_types(source.root.plain())
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
    _check_names(mistakes, {"data": data}, set())
    _check_names(mistakes, {"system": systems, "peer": peers}, {BASELINE})
    mistakes.raise_any()
    assert general is not None
    folder, limit = source.path.parent, general["limit"]
    every = [SuiteSystem(BASELINE, "commonest labels", "baseline", BASELINE, limit)]
    every += [
        _system(table, "recipe", str(locate(table["recipe"], beside=folder)), limit, changes=tuple(table["set"]))
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
        data=tuple(SuiteData(**table) for _, table in data),
        systems=tuple(every),
        results=folder / general["results"] if general.get("results") else None,
        page=folder / general["page"] if general.get("page") else None,
    )


NumberedTables = list[tuple[int, dict[str, Any]]]


def _tables(checker: Checker, document: Mapping[str, Any], key: str, model: type[Params]) -> NumberedTables:
    """Return the valid tables of a list, each with its position in the list."""
    value = document.get(key, [])
    if not isinstance(value, list):
        checker.mistakes.add((key,), f"expected a list of tables, [[{key}]], found {quote_value(value)}")
        return []
    valid = []
    for place, table in enumerate(value):
        if not isinstance(table, dict):
            checker.mistakes.add((key, place), f"expected a table, found {quote_value(table)}")
        elif (params := checker.params(model, table, (key, place))) is not None:
            valid.append((place, {**params, "name": params.get("name") or _default_name(params)}))
    return valid


def _default_name(table: Mapping[str, Any]) -> str:
    return Path(str(table.get("recipe", table.get("use", "")))).stem


def _system(table: Mapping[str, Any], kind: SystemKind, use: str, limit: float, **more: Any) -> SuiteSystem:
    where: Any = {key: tuple(dict.fromkeys(table[key])) for key in ("only", "seeds") if key in table}
    return SuiteSystem(
        table["name"], table.get("title", table["name"]), kind, use, table.get("limit", limit), **where, **more
    )


def _check_recipes(mistakes: Mistakes, systems: NumberedTables, folder: Path) -> None:
    for place, table in systems:
        at: KeyPath = ("system", place, "recipe")
        try:
            if not locate(table["recipe"], beside=folder).is_file():
                mistakes.add(at, f"no file {table['recipe']!r} next to the suite file")
        except RecipeError as error:
            mistakes.add(at, str(error))


def _check_peers(checker: Checker, peers: NumberedTables) -> None:
    for place, table in peers:
        use = table["use"]
        if use not in PEERS and ":" not in use:
            checker.mistakes.add(
                ("peer", place, "use"), f"no peer named '{use}'{nearest(use, PEERS)} (known: {', '.join(PEERS)})"
            )
            continue
        try:
            params = peer_class(use).Params
        except PluginError as error:
            checker.mistakes.add(("peer", place, "use"), str(error))
            continue
        checker.params(params, table["options"], ("peer", place, "options"))


def _check_names(mistakes: Mistakes, tables: Mapping[str, NumberedTables], taken: set[str]) -> None:
    for key, numbered in tables.items():
        for place, table in numbered:
            if table["name"] in taken:
                mistakes.add((key, place, "name"), f"the name '{table['name']}' is used twice; names must differ")
            taken.add(table["name"])
