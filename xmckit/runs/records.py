"""What the JSON files of a run folder hold, as typed records. `Run` reads them; stages write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, with_config
from typing_extensions import NotRequired, Required, TypedDict  # pydantic takes typing's own from Python 3.12 on

from xmckit.runs import layout

RUN_FORMAT = 1


class _Record(BaseModel):
    """A file that is read, changed and written again: keys that this version does not know stay in it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file; fields that are None are not in it."""
        content, fields = self.model_dump(exclude_unset=True), type(self).model_fields
        return {name: value for name, value in content.items() if value is not None or name not in fields}


@with_config(ConfigDict(extra="allow"))
class StageIdentity(TypedDict, total=False):
    """Everything that could change a stage's output. These keys are read back; a stage may have others."""

    kind: Required[str]
    use: str
    params: dict[str, Any]
    inputs: list[str]  # keys of other stages
    sources: dict[str, str]  # kind:name of each component -> the plugin that has it
    components: list[StageIdentity]  # of the score stage


class StageRecord(_Record):
    """A finished stage; `key` is the checksum of its identity.

    Time, memory and size are those of the run that made the stage, also where this run took it from the cache.
    """

    name: str
    key: str
    identity: StageIdentity
    seconds: float
    peak_bytes: int
    folder: str  # relative to the run folder
    reused: bool
    cpu_seconds: float = 0.0
    bytes: int = 0

    @property
    def kind(self) -> str:
        """The kind of the stage's component; `score` for the score stage, which has several."""
        return self.identity["kind"]

    @property
    def use(self) -> str:
        """The name of the stage's component; empty for the score stage."""
        return self.identity.get("use", "")

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


class Manifest(_Record):
    """manifest.json. Fields that may be None are set when the run starts."""

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
    features: Mapping[str, str] | None = None  # stage -> the features stage that it sees, if there are several
    error: str | None = None
    sequence: int | None = None  # rises from run to run, also when the clock goes back; None in older runs
    files: Mapping[str, Any] | None = None  # checksums of files at the top of the run folder


# Constants of the propensity model; `from` says who chose them: the recipe, the data set, or nobody ("default").
Propensity = TypedDict("Propensity", {"A": float, "B": float, "from": str})


class SystemMetrics(TypedDict):
    """The metrics of one system: `role` is head, ensemble, baseline, or run in a folder that combines runs."""

    name: str
    role: str
    metrics: dict[str, float]


class Metrics(TypedDict):
    """metrics.json. `results` begins with the model: the only head, or the ensemble of several."""

    dataset: str
    rows: int
    labels: int
    k: list[int]
    propensity: Propensity
    results: list[SystemMetrics]
    ensemble: NotRequired[str]


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


class FeaturesFacts(TypedDict):
    """The record of a features stage; `as_in_data` says that the features are the data's own matrix."""

    use: str
    as_in_data: bool
    columns: int


class FrequencyGroup(TypedDict):
    """Labels of similar frequency: those with at least `least` training rows that are in no group before."""

    name: str
    labels: int
    least: int
    pairs: int


class SystemDiagnostics(TypedDict):
    """Hits and gains of one system, by depth (`all`, `thirds`) and by frequency of the label (`bins`)."""

    name: str
    role: str
    all: dict[str, list[float]]
    thirds: dict[str, list[list[float]]]
    bins: dict[str, list[float]]
    calibration: dict[str, Any] | None


class Diagnostics(TypedDict):
    """The numbers behind the report's charts. The name of the file is older: insights.json."""

    frequency: dict[str, list[int]]
    k: int
    rows: int
    groups: list[FrequencyGroup]
    edges: list[int]
    bin_labels: list[int]
    bin_pairs: list[int]
    systems: list[SystemDiagnostics]


class Example(TypedDict):
    """A test row with its predicted and its true labels, for the report."""

    kind: str
    row: int
    name: str | None
    text: str | None
    predicted: list[dict[str, Any]]
    truth: list[dict[str, Any]]
    true_labels: int


class ValueOrigin(TypedDict):
    """An entry of origins.json: a value of the recipe, and the file or option that it came from."""

    key: str
    value: str
    origin: str


class Mismatch(TypedDict):
    """Where the decision of a head is not what the head outputs: `check` names what was compared with W·x + b."""

    check: str
    row: int | None
    label: int | None
    detail: str


class HeadVerdicts(TypedDict, total=False):
    """The verdicts on one head in one scope.

    `why` says why it is not verifiable, `mismatch` where its decision is not what it outputs; all other keys are of one
    that is verifiable. `checked` counts the real rows on which outputs were compared with the decision, `outputs` the
    verified label sets that the head itself output on their rows, and `by_rounding` those of them that are
    unargmaxable: the head outputs them only because its arithmetic rounds.
    """

    head: Required[str]
    scope: Required[str]
    verifiable: Required[bool]
    why: str
    mismatch: Mismatch
    checked: int
    outputs: int
    by_rounding: int
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
