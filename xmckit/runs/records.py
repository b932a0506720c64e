"""What the JSON files of a run folder hold, as typed records. `Run` reads them; stages write them.

A record also says what its readers rely on besides types: sizes that agree, names that are known, numbers in range.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, with_config
from typing_extensions import NotRequired, Required, TypedDict  # pydantic takes typing's own from Python 3.12 on

from xmckit.records import Combining
from xmckit.runs import layout

RUN_FORMAT = 1

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Depth = Annotated[int, Field(ge=1, le=1 << 31)]  # how many labels are listed for a row
# Files and folders are named after sections, whose names a recipe restricts in the same way.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SectionName = Annotated[str, Field(pattern=_NAME)]
Status = Literal["created", "running", "done", "failed", "interrupted"]


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
    status: Status
    created: str
    stages: Sequence[StageRecord]
    pid: int = 0
    argv: Sequence[str] | None = None
    seed: int | None = None
    heads: Annotated[int, Field(ge=1)] | None = None
    top: Depth | None = None
    ensemble: Combining | None = None
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

    @field_validator("stages")
    @classmethod
    def _check_stages(cls, stages: Sequence[StageRecord]) -> Sequence[StageRecord]:
        for stage in stages:
            above, _, own = stage.folder.partition("/")
            if above != layout.STAGES or own in ("", ".", "..") or not own.isprintable() or {"/", "\\"} & set(own):
                raise ValueError(f"stage {stage.name!r} has the folder {stage.folder!r}, not one in {layout.STAGES}/")
            if not re.fullmatch(_NAME, stage.name):
                raise ValueError(f"{stage.name!r} is not the name of a stage")
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            raise ValueError(f"expected stages of different names, found {names}")
        return stages


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
    rows: Count
    labels: Count
    k: Annotated[list[Depth], Field(min_length=1)]
    propensity: Propensity
    results: Annotated[list[SystemMetrics], Field(min_length=1)]
    ensemble: NotRequired[str]


def _check_facts(facts: dict[str, Any]) -> dict[str, Any]:
    warnings = facts.get("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise ValueError("expected a list of texts as warnings")
    return facts


class LabelCell(TypedDict):
    """A cell of a table that stands for a label."""

    label: Count


class LabelsCell(TypedDict):
    """A cell of a table that stands for some of `of` labels."""

    labels: list[Count]
    of: int


class TableRecord(TypedDict):
    """A table that a component adds to the report; see `xmckit.exhibits`."""

    kind: Literal["table"]
    title: str
    note: str
    columns: list[str]
    rows: list[list[str | float | bool | LabelCell | LabelsCell | None]]
    of: int


class HistogramRecord(TypedDict):
    """A histogram that a component adds to the report."""

    kind: Literal["histogram"]
    title: str
    note: str
    edges: list[float]
    counts: list[Count]
    axis: str
    what: str


class BranchRecord(TypedDict):
    """A node of an outline."""

    title: str
    size: int
    labels: list[Count]
    branches: list[BranchRecord]
    of: int


class OutlineRecord(TypedDict):
    """A tree that a component adds to the report."""

    kind: Literal["outline"]
    title: str
    note: str
    branches: list[BranchRecord]


def _check_exhibit(exhibit: Any) -> Any:
    if exhibit["kind"] == "table" and any(len(row) != len(exhibit["columns"]) for row in exhibit["rows"]):
        raise ValueError("a row of the table does not fit its columns")
    if exhibit["kind"] == "histogram":
        edges = exhibit["edges"]
        if len(edges) != len(exhibit["counts"]) + 1 or len(edges) < 2 or edges != sorted(set(edges)):
            raise ValueError("expected rising edges, one more than counts")
    return exhibit


ExhibitRecord = Annotated[
    TableRecord | HistogramRecord | OutlineRecord, Field(discriminator="kind"), AfterValidator(_check_exhibit)
]


class ComponentFacts(TypedDict):
    """What a component reported about itself, for the report."""

    name: str
    facts: Annotated[dict[str, Any], AfterValidator(_check_facts)]
    exhibits: list[ExhibitRecord]


class LabelFacts(ComponentFacts):
    """What a label stage reported, and how its labels agree with the data's own."""

    agreement: dict[str, float] | None


class EpochRecord(TypedDict):
    """An epoch of a head's training; `score` is that of the validation rows."""

    number: int
    loss: float
    score: float | None
    seconds: float


class HeadFacts(ComponentFacts):
    """An entry of facts.json: what a head reported, and how its training went, epoch by epoch."""

    training: list[EpochRecord]


class FeaturesFacts(TypedDict):
    """The record of a features stage; `as_in_data` says that the features are the data's own matrix."""

    use: str
    as_in_data: bool
    columns: int


class Description(TypedDict):
    """What `xmckit data info` says about the data; there is more than these."""

    train: dict[str, Any]
    test: dict[str, Any]


class FrequencyGroup(TypedDict):
    """Labels of similar frequency: those with at least `least` training rows that are in no group before."""

    name: Literal["head", "torso", "tail"]
    labels: Count
    least: Count
    pairs: Count


SUMS = ("predicted", "right", "gain", "best_gain")  # what the report shows of `Sums` and `GroupSums`


class Sums(TypedDict):
    """Predicted and right labels, and their gain, by depth or by frequency of the label."""

    predicted: list[Amount]
    right: list[Amount]
    gain: list[Amount]
    best_gain: list[Amount]


class GroupSums(TypedDict):
    """The same by depth, for each of the groups of labels."""

    predicted: list[list[Amount]]
    right: list[list[Amount]]
    gain: list[list[Amount]]
    best_gain: list[list[Amount]]


class Calibration(TypedDict):
    """The mean probability and the share that is right, of places with similar probabilities."""

    said: list[float]
    true: list[float]
    sizes: list[Count]
    places: Count
    ece: float
    mean_said: float
    mean_true: float


class SystemDiagnostics(TypedDict):
    """Hits and gains of one system, by depth (`all`, `thirds`) and by frequency of the label (`bins`)."""

    name: str
    role: str
    all: Sums
    thirds: GroupSums
    bins: Sums
    calibration: Calibration | None


class Frequencies(TypedDict):
    """Training rows of labels, by rank."""

    rank: list[Count]
    count: list[Count]


class Diagnostics(TypedDict):
    """The numbers behind the report's charts. The name of the file is older: insights.json."""

    frequency: Frequencies
    k: Depth
    rows: Count
    groups: list[FrequencyGroup]
    edges: list[Count]
    bin_labels: list[Count]
    bin_pairs: list[Count]
    systems: Annotated[list[SystemDiagnostics], Field(min_length=1)]


def check_diagnostics(content: Diagnostics) -> None:
    """Raise ValueError if lists that belong together have different lengths."""
    bins = len(content["edges"])
    _expect_lengths("", content, ("bin_labels", "bin_pairs"), bins)
    _expect_lengths("frequency.", content["frequency"], ("count",), len(content["frequency"]["rank"]))
    for place, system in enumerate(content["systems"]):
        where, depth = f"systems.{place}.", len(system["all"]["right"])
        if not depth:
            raise ValueError(f"{where}all.right is empty")
        _expect_lengths(f"{where}all.", system["all"], SUMS, depth)
        _expect_lengths(f"{where}bins.", system["bins"], SUMS, bins)
        _expect_lengths(f"{where}thirds.", system["thirds"], SUMS, len(content["groups"]))
        thirds: Mapping[str, Any] = system["thirds"]
        for name in SUMS:
            _expect_lengths(f"{where}thirds.{name}.", thirds[name], range(len(thirds[name])), depth)
        if (calibration := system["calibration"]) is not None:
            _expect_lengths(f"{where}calibration.", calibration, ("true", "sizes"), len(calibration["said"]))


def _expect_lengths(where: str, lists: Any, names: Iterable[Any], length: int) -> None:
    for name in names:
        if len(lists[name]) != length:
            raise ValueError(f"{where}{name} has {len(lists[name])} entries, expected {length}")


class PredictedLabel(TypedDict):
    """A label that the model lists for an example, best first."""

    label: str
    score: float | None
    hit: bool


class TrueLabel(TypedDict):
    """A true label of an example, and whether it is listed."""

    label: str
    found: bool


class Example(TypedDict):
    """A test row with its predicted and its true labels, for the report."""

    kind: str
    row: Count
    name: str | None
    text: str | None
    predicted: list[PredictedLabel]
    truth: list[TrueLabel]
    true_labels: Count


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


def _check_counts(counts: dict[str, int]) -> dict[str, int]:
    if missing := [status for status in get_args(VerdictStatus) if status not in counts]:
        raise ValueError(f"expected the number of label sets that are {', '.join(missing)}")
    return counts


VerdictStatus = Literal["argmaxable", "unargmaxable", "unresolved"]
VerdictCounts = Annotated[dict[str, Count], AfterValidator(_check_counts)]


class LabelSetVerdict(TypedDict):
    """What was proved about one label set. There is more, which only the checker of proofs reads."""

    status: VerdictStatus
    proof: str
    replayed: bool | None
    margin: Amount | None
    missed: list[Count]


class NeverOutput(TypedDict):
    """A label set that can never be output, and how many rows have it."""

    labels: list[Count]
    times: Count
    missed: list[Count]


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
    checked: Count
    outputs: Count
    by_rounding: Count
    rule: str
    labels: Count
    dim: Count
    bias: bool
    structured: bool
    caveat: str | None
    counts: VerdictCounts
    share: float | None
    smallest_margin: float | None
    replayed: dict[str, int]
    ideal: VerdictCounts
    eps: VerdictCounts
    missed: int
    seconds: float
    never: list[NeverOutput]
    verdicts: list[LabelSetVerdict]


# Keys of heads that are not verifiable, and counts that version 0.1 did not write.
_NOT_ALWAYS = {"why", "mismatch", "checked", "outputs", "by_rounding"}


class VerdictSummary(TypedDict):
    """verdicts.json: `assignments` of the `of` label sets were verified; `files` has checksums of the proofs' files."""

    format: int
    verifier: dict[str, Any]
    assignments: Count
    of: Count
    files: dict[str, str]
    results: list[HeadVerdicts]


def check_verdicts(content: VerdictSummary) -> None:
    """Raise ValueError if something is missing for a head, or its numbers of label sets disagree."""
    for result in content["results"]:
        where = f"{result['head']}, {result['scope']}"
        if result["scope"] not in ("full", "shortlist"):
            raise ValueError(f"{where}: expected the scope full or shortlist")
        needed = HeadVerdicts.__optional_keys__ - _NOT_ALWAYS if result["verifiable"] else {"why"}
        if missing := sorted(needed - result.keys()):
            raise ValueError(f"{where}: {', '.join(missing)} missing")
        if result["verifiable"]:
            counted, given = sum(result["counts"].values()), len(result["verdicts"])
            if not counted == given == content["assignments"]:
                raise ValueError(
                    f"{where}: {given} verdicts and counts of {counted}, expected {content['assignments']} of each"
                )
            if not {"yes", "no"} <= result["replayed"].keys():
                raise ValueError(f"{where}: expected the numbers yes and no in replayed")
