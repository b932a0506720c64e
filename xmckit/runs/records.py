"""What the JSON files of a run folder hold, as typed records. `Run` reads them; stages write them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from xmckit import store
from xmckit.runs import layout

RUN_FORMAT = 1
Record = TypeVar("Record")


@dataclass(frozen=True)
class StageRecord:
    """A finished stage. `identity` is everything that could change its output; `key` is the checksum of that.

    Time, memory and size are those of the run that made the stage, also where this run took it from the cache.
    """

    name: str
    key: str
    identity: Mapping[str, Any]
    seconds: float
    peak_bytes: int
    folder: str  # relative to the run folder
    reused: bool
    cpu_seconds: float = 0.0
    bytes: int = 0
    rest: Mapping[str, Any] = field(default_factory=dict)  # keys that this version does not know, kept as they are

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @property
    def kind(self) -> str:
        """The kind of the stage's component; `score` for the score stage, which has several."""
        return str(self.identity["kind"])

    @property
    def use(self) -> str:
        """The name of the stage's component; empty for the score stage."""
        return str(self.identity.get("use", ""))

    @property
    def section(self) -> str:
        """The name of the recipe's section: `bsl` for the stage `head-bsl`, empty for `data`."""
        for prefix in (
            layout.PART_INDEX_PREFIX,
            layout.FEATURES_PREFIX,
            layout.LABELS_PREFIX,
            layout.INDEX_PREFIX,
            layout.HEAD_PREFIX,
        ):
            if self.name.startswith(prefix):
                return self.name.removeprefix(prefix)
        return ""

    @property
    def is_input(self) -> bool:
        """Whether the stage reads data or makes features, which all systems on one data set share."""
        return self.kind in ("dataset", "featurizer")

    @property
    def is_training(self) -> bool:
        """Whether the stage's work belongs to training a model."""
        return self.kind in ("label-preprocessor", "indexer", "head")

    @property
    def is_model(self) -> bool:
        """Whether prediction needs the stage's files; an index on a part of the rows is only for training."""
        return self.name.startswith((layout.INDEX_PREFIX, layout.HEAD_PREFIX))


@dataclass(frozen=True)
class Manifest:
    """manifest.json. Fields that are None are not in the file; they are set when the run starts."""

    format: int
    name: str
    identity: str
    status: str
    created: str
    stages: Sequence[StageRecord]
    pid: int = 0
    argv: Sequence[str] | None = None
    seed: int | None = None
    heads: int | None = None
    top: int | None = None
    ensemble: str | None = None
    workers: int | None = None
    api_version: int | None = None
    versions: Mapping[str, str] | None = None
    machine: Mapping[str, Any] | None = None
    title: str | None = None
    data: Mapping[str, str] | None = None  # input -> checksum
    features: Mapping[str, str] | None = None  # stage -> the features stage that it sees, where there are several
    error: str | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any, path: Path) -> Manifest:
        """Check and convert the content of the manifest at `path`."""
        manifest = record_from(cls, value, path)
        stages = [record_from(StageRecord, stage, path) for stage in value["stages"]]
        return dataclasses.replace(manifest, stages=stages)

    def to_json(self) -> dict[str, Any]:
        return {**_to_json(self), "stages": [stage.to_json() for stage in self.stages]}


# Constants of the propensity model; `from` says who chose them: the recipe, the data set, or nobody ("default").
Propensity = TypedDict("Propensity", {"A": float, "B": float, "from": str})


class SystemMetrics(TypedDict):
    """The metrics of one system: `role` is head, ensemble, baseline, or run in a folder that combines runs."""

    name: str
    role: str
    metrics: dict[str, float]


class _Metrics(TypedDict):
    dataset: str
    rows: int
    labels: int
    k: list[int]
    propensity: Propensity
    results: list[SystemMetrics]


class Metrics(_Metrics, total=False):
    """metrics.json. `results` begins with the model: the only head, or the ensemble of several."""

    ensemble: str


class ComponentFacts(TypedDict):
    """What a component reported about itself, for the report."""

    name: str
    facts: dict[str, Any]
    exhibits: list[dict[str, Any]]


class LabelFacts(ComponentFacts):
    """What a label stage reported, and how its labels agree with the data's own."""

    agreement: dict[str, float] | None


class HeadFacts(ComponentFacts):
    """An entry of facts.json: what a head reported, and how its training went, epoch by epoch."""

    training: list[dict[str, Any]]


class _HeadVerdicts(TypedDict):
    head: str
    scope: str
    verifiable: bool


class HeadVerdicts(_HeadVerdicts, total=False):
    """The verdicts on one head in one scope; `why` says why it is not verifiable, all other keys are of one that is."""

    why: str
    rule: str
    labels: int
    dim: int
    bias: bool
    structured: bool
    caveat: str | None
    counts: dict[str, int]
    share: float | None
    smallest_margin: float | None
    replayed: dict[str, int]
    ideal: dict[str, int]
    eps: dict[str, int]
    missed: int
    seconds: float
    never: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]


class VerdictSummary(TypedDict):
    """verdicts.json: `assignments` of the `of` label sets were verified; `files` has checksums of the proofs' files."""

    format: int
    verifier: dict[str, Any]
    assignments: int
    of: int
    files: dict[str, str]
    results: list[HeadVerdicts]


def record_from(record: type[Record], value: Any, path: Path) -> Record:
    """Build a record from JSON, or raise the error for a damaged file; `rest` gets the unknown keys."""
    if not isinstance(value, dict):
        raise store.damaged(path, f"expected an object, found {type(value).__name__}")
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    required = [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in value]:
        raise store.damaged(path, f"without {', '.join(missing)}")
    hints = get_type_hints(record)
    names = {one.name for one in fields} - {"rest"}
    values = {name: content for name, content in value.items() if name in names}
    for name, content in values.items():
        if not isinstance(content, _json_types(hints[name])):
            raise store.damaged(path, f"{name} is {content!r:.60}")
    values["rest"] = {name: content for name, content in value.items() if name not in names}
    return record(**values)


def _to_json(record: Any) -> dict[str, Any]:
    values = {name: value for name, value in vars(record).items() if value is not None and name != "rest"}
    return {**record.rest, **values}


def _json_types(hint: Any) -> tuple[type, ...]:
    """Return the types that `json` gives for a field of this type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _json_types(part))
    if hint is float:
        return (int, float)
    if origin is not None:
        return (dict,) if issubclass(origin, Mapping) else (list, tuple)
    return (hint,)
