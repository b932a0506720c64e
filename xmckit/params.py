"""Parameters of components: pydantic models that reject unknown keys, and the base class of configured components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from xmckit import store

if TYPE_CHECKING:
    from xmckit.context import Context


class Params(BaseModel):
    """Base of every component's parameters. Give each field a `Field(default, description=…)`: users read it."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Spec(BaseModel):
    """A component named inside another one: `use` and that component's own parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


@dataclass(frozen=True)
class KindOf:
    """Mark the kind of component that a `Spec` field names, so that recipe checks cover the nested parameters."""

    kind: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Name the kind in the model's JSON Schema, for those who describe parameters."""
        return {"type": "object", "kind": self.kind}


@dataclass(frozen=True)
class InputPath:
    """Mark a path that a recipe may give relative to its own file, to the working folder or to a data folder.

    `missing(text, data folders)` returns advice for a path that is in none of them.
    """

    missing: Callable[[str, Sequence[Path]], str] | None = None


EncoderSpec = Annotated[Spec, KindOf("encoder")]
HeadSpec = Annotated[Spec, KindOf("head")]
MetricSpec = Annotated[Spec, KindOf("metric")]
ReaderSpec = Annotated[Spec, KindOf("reader")]
ExecutorSpec = Annotated[Spec, KindOf("executor")]
DataPath = Annotated[Path, InputPath()]

Self = TypeVar("Self", bound="Configured")

PARAMS = "params.json"


class Configured:
    """Base of components with parameters: `Thing(width=3)` checks them, `.params` holds them, `save` stores them.

    A subclass with fitted state extends `save` and `load`; both use `xmckit.store`, never pickle.
    """

    Params: ClassVar[type[Params]] = Params

    def __init__(self, **params: Any):
        self.params: Any = self.Params(**params)

    def save(self, folder: Path) -> None:
        """Write everything that `load` needs into the existing, empty `folder`."""
        store.write_json(folder / PARAMS, self.params.model_dump(mode="json"))

    @classmethod
    def load(cls: type[Self], folder: Path, *, context: Context) -> Self:
        """Load what `save` stored. `context` builds the components that the parameters name."""
        params = store.read_json(folder / PARAMS, dict[str, Any])
        try:
            return cls(**params)
        except ValidationError as error:
            raise store.damaged(folder / PARAMS, store.reasons(error)) from None
        except TypeError as error:  # a key that is the name of a parameter of Python's own
            raise store.damaged(folder / PARAMS, str(error)) from None
