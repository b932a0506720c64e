"""The one shape of all stages: what a stage depends on, what it makes, and how that is read back."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from xmckit.context import Context
from xmckit.errors import attribute_errors_to
from xmckit.pipeline.blame import explain_component_errors
from xmckit.pipeline.output_checks import check_saved
from xmckit.pipeline.setup import Setup
from xmckit.recipe import Section

Value = TypeVar("Value")


class Stage(ABC, Generic[Value]):
    """A stage of a run. A subclass takes the stages that it reads in `__init__` and gives the three methods below.

    `key` and `folder` are set when the stage is done; before that only `identity` may be called. A stage that is not
    `cached` writes into the run folder itself, every time.
    """

    key: str
    folder: Path
    cached: ClassVar[bool] = True

    def __init__(self, setup: Setup, name: str):
        self.setup, self.name = setup, name

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return everything that can change the output, as JSON: parameters, the keys of inputs, code, seeds.

        Stages of equal identity are made once and then taken from the cache.
        """

    @abstractmethod
    def produce(self, folder: Path, context: Context) -> Value:
        """Do the work: write everything into the empty `folder`, and return what `restore` would read from it."""

    @abstractmethod
    def restore(self, folder: Path) -> Value:
        """Read the value back from the folder of a finished stage."""

    @functools.cached_property
    def value(self) -> Value:
        """What the stage made; read from its folder at first use, so that a run from the cache reads nothing."""
        return self.fresh_value()

    def fresh_value(self) -> Value:
        """Read the value once more, for a reader that is going to change it."""
        with self._attribute_errors():  # a later stage, which reads this, is not at fault
            return self.restore(self.folder)

    def make(self, folder: Path, scratch: Path) -> None:
        """Produce the value into `folder`; errors name the component. `scratch` is the component's own folder."""
        with explain_component_errors(self.setup.registry), self._attribute_errors():
            self.value = self.produce(folder, self.setup.context.using(folder=scratch))

    def _attribute_errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class ComponentStage(Stage[Value]):
    """A stage whose work the component of one section of the recipe does; errors are attributed to that component."""

    def __init__(self, setup: Setup, name: str, section: Section):
        super().__init__(setup, name)
        self.section, self.use = section, section.use
        self.who = f"{section.kind.replace('-', ' ')} {section.use}"

    def _attribute_errors(self) -> contextlib.AbstractContextManager[None]:
        return attribute_errors_to(self.section.kind, self.use)

    def save(self, fitted: Any, folder: Path) -> None:
        """Let the component save itself into a new folder, and check the files."""
        folder.mkdir()
        fitted.save(folder)
        check_saved(folder, self.who)


def keys_of(*stages: Stage[Any]) -> list[str]:
    """Return the keys of finished stages, for the identity of one that reads them."""
    return [stage.key for stage in stages]
