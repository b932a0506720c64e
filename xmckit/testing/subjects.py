"""Components under test, with their parameters, their inputs and their answers."""

from __future__ import annotations

import functools
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xmckit.context import Context
from xmckit.protocols import SupportsSave, offers
from xmckit.registry.contract import protocol_methods
from xmckit.testing.assertions import flat, same_bits, skip_unless
from xmckit.testing.fresh_process import SAVED
from xmckit.testing.monitoring import Activity, monitor, suspend_monitoring

# A check returns a detail for the result, or nothing. It raises AssertionError if the contract is broken and
# `NotApplicable` if there is nothing to check.
CheckFunction: TypeAlias = Callable[[Any], "str | None"]


def kept_folder(owner: Any) -> Path:
    """Return a temporary folder that is removed together with its owner."""
    folder = tempfile.mkdtemp()
    weakref.finalize(owner, _remove, folder)
    return Path(folder)


def _remove(folder: str) -> None:
    with suspend_monitoring():  # this may happen at any time, also while a component is monitored
        shutil.rmtree(folder, ignore_errors=True)


def covers(*protocols: type) -> Callable[[CheckFunction], CheckFunction]:
    """Mark a check of optional protocols. It does not apply to a component that offers none of them."""
    names = ", ".join(dict.fromkeys(name for protocol in protocols for name in offered_names(protocol)))

    def decorate(check: CheckFunction) -> CheckFunction:
        @functools.wraps(check)
        def applicable(subject: Any) -> str | None:
            offered = any(offers(subject.ready, protocol) for protocol in protocols)
            skip_unless(offered, f"it does not offer {names}")
            return check(subject)

        applicable.covered = protocols  # type: ignore[attr-defined]
        return applicable

    return decorate


def offered_names(protocol: type) -> list[str]:
    """Return the methods of a protocol, written as calls, and its attributes."""
    methods = [f"{name}()" for name in protocol_methods(protocol)]
    return [*methods, *getattr(protocol, "__annotations__", {})]


def files_below(path: Path) -> list[Path]:
    """Return a file, or all files below a folder, in order."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


@dataclass(eq=False)
class Subject(ABC):
    """A component under test. Checks that only read share `ready`, which is fitted or built.

    `example` is input that only some kinds have, such as the path of a reader.
    """

    loads: ClassVar[bool] = True  # whether `load` reads what `save` wrote

    kind: str
    cls: Any
    params: Mapping[str, Any]
    context: Context
    indexers: Sequence[Any] = ()
    example: Any = None

    def needs(self) -> list[str]:
        """Return what must be given before it can be checked, as the command line takes it."""
        fields = getattr(getattr(self.cls, "Params", None), "model_fields", {})
        return [f"--set {name}=…" for name, field in fields.items() if field.is_required() and name not in self.params]

    def make(self, context: Context) -> Any:
        """Return a new component, fitted or built if its kind needs that."""
        return self.component()

    @abstractmethod
    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        """Return all its answers to the inputs, as arrays that can be compared bit for bit."""

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """Return its inputs by name."""

    @cached_property
    def ready(self) -> Any:
        return self.make(self.context)

    def facts(self) -> Any:
        """Return what `ready` tells the report."""
        return self.ready.facts()

    @cached_property
    def known(self) -> dict[str, np.ndarray]:
        """The first answers of `ready`."""
        return {name: array.copy() for name, array in self.answers(self.ready, self.context).items()}

    def component(self) -> Any:
        return self.cls(**self.params)

    def results(self, context: Context | None = None) -> dict[str, np.ndarray]:
        context = context or self.context
        return self.answers(self.make(context), context)

    def save(self, ready: Any, folder: Path) -> None:
        if offers(ready, SupportsSave):
            ready.save(folder)

    def restore(self, folder: Path) -> Any:
        """Return the component from what `save` wrote, or a new one if it saved nothing."""
        if self.loads and any(folder.iterdir()):
            return self.cls.load(folder, context=self.context)
        return self.component()

    @contextmanager
    def save_to_temporary_folder(self) -> Iterator[Path]:
        """Save `ready` and yield a temporary folder with the files in `SAVED`, moved there as a run moves a stage."""
        with tempfile.TemporaryDirectory() as name:
            with tempfile.TemporaryDirectory() as first:
                folder = Path(first, SAVED)
                folder.mkdir()
                self.save(self.ready, folder)
                shutil.move(folder, name)
            yield Path(name)

    @cached_property
    def activity(self) -> Activity:
        """What a new component does while it is made, used, saved and loaded."""
        twin = replace(self)
        before = {name: array.copy() for name, array in flat(twin.inputs(), "").items()}
        with tempfile.TemporaryDirectory() as name:
            folder, scratch = Path(name, SAVED), Path(name, "scratch")
            folder.mkdir()
            scratch.mkdir()
            with monitor(scratch, folder) as seen:
                try:
                    context = self.context.using(folder=scratch)
                    ready = twin.make(context)
                    twin.answers(ready, context)
                    twin.save(ready, folder)
                    twin.restore(folder)
                except Exception:
                    if not seen.writes and not seen.hosts:  # otherwise it failed because it was refused something
                        raise
        after = flat(twin.inputs(), "")
        seen.inputs = [name for name, old in before.items() if name not in after or not same_bits(old, after[name])]
        return seen
