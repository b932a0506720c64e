"""The keys of a recipe file: general keys, sections, and the keys of a section that are not its component's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from xmckit.kinds import KINDS, RecipeSection, load
from xmckit.params import Params
from xmckit.records import Combining

# Names become folders of a run.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name = Annotated[str, Field(pattern=_NAME)]


class GeneralKeys(Params):
    """The keys at the top of a recipe."""

    name: Name | None = Field(None, description="Name of the run's folder; by default the name of the file.")
    title: str = Field("", description="One line that says what the recipe is for.")
    description: str = Field("", description="What a reader should know about it.")
    seed: int = Field(0, ge=0, description="Seed of all random choices.")
    validation: float = Field(
        0.1, ge=0, lt=1, description="Share of the training rows kept for early stopping, thresholds and calibration."
    )
    refit: bool = Field(False, description="Train again on all rows, with the values chosen on the validation rows.")
    workers: int = Field(0, ge=0, description="Number of workers; 0 is one for each processor.")


class ScoreKeys(Params):
    """The keys of `[score]` besides `metrics` and `baseline`."""

    k: list[Annotated[int, Field(ge=1)]] = Field([1, 3, 5], min_length=1, description="Depths of the ranking.")
    top: int = Field(100, ge=1, description="Predictions kept for each row.")
    propensity: Literal["wikipedia", "amazon", "other"] | tuple[PositiveFloat, PositiveFloat] | None = Field(
        None, description="Family or [A, B] of the propensity model; by default the data set's own, else 'other'."
    )


class EnsembleKeys(Params):
    """The keys of `[ensemble]`."""

    rule: Combining = Field(
        "average",
        description="How several heads are combined: by the mean of their probabilities, of their ranks, or of the "
        "softmax over the labels that each lists.",
    )


class ReportKeys(Params):
    """The keys of `[report]`."""

    title: str = Field("", description="Title of the report; by default that of the recipe.")


class DataKeys(Params):
    """Keys of `[data]` besides the component's own."""

    seed: int = Field(
        0, ge=0, description="Seed of random splits and synthetic data. The recipe's own seed does not change the data."
    )


class NamedKeys(Params):
    """Keys of `[[features]]` and `[[labels]]` besides the component's own."""

    name: Name | None = Field(None, description="Name of this stage; by default its `use`.")


class IndexKeys(NamedKeys):
    """Keys of `[[index]]` besides the component's own."""

    features: str | None = Field(None, description="Name of the features that it sees; by default the first.")


class HeadKeys(IndexKeys):
    """Keys of `[[head]]` besides the component's own."""

    index: list[str] | None = Field(
        None, description="Names of the indexes that this head uses; by default all that see the same features."
    )


class VerifyKeys(Params):
    """Keys of `[verify]` besides the component's own."""

    assignments: Literal["test", "train", "validation"] = Field(
        "test", description="Rows with the label sets to examine."
    )
    most: int = Field(1000, ge=1, description="Largest number of label sets to examine.")


@dataclass(frozen=True)
class SectionKind(RecipeSection):
    """A section as `xmckit.kinds` lists it, with its kind and the model of the keys that are not the component's."""

    kind: str = ""
    reserved: type[Params] = Params


def _sections_below(table: str) -> dict[str, SectionKind]:
    """Return the sections of all kinds that stand directly below a table of the recipe."""
    sections = {}
    for kind in KINDS.values():
        for section in kind.sections:
            above, _, name = section.path.rpartition(".")
            if above == table:
                keys = load(section.keys) if section.keys else Params
                sections[name] = SectionKind(**vars(section), kind=kind.name, reserved=keys)
    return sections


SECTIONS = _sections_below("")
SCORE_SECTIONS = _sections_below("score")
# Tables that name no component.
PLAIN_SECTIONS = ("score", "ensemble", "report")
DEFAULT_METRICS = ("ranking", "sets")
