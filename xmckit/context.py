"""The context of a component: seed, workers, progress, folder, and a way to build other components."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from xmckit.data.model import Matrix, Split
    from xmckit.params import Spec
    from xmckit.protocols import Executor


class Bar(Protocol):
    """One line of progress."""

    def advance(self, steps: float = 1, **facts: object) -> None:
        """Count `steps` as done; `facts` (loss=…, epoch=…) appear after the bar."""


class Progress(Protocol):
    """Make progress bars: `with context.progress("training", total=10) as bar: bar.advance()`."""

    def __call__(self, what: str, total: float | None = None) -> contextlib.AbstractContextManager[Bar]: ...


class _Silent:
    def advance(self, steps: float = 1, **facts: object) -> None:
        pass


@contextlib.contextmanager
def silent(what: str, total: float | None = None) -> Iterator[Bar]:
    """Show no progress."""
    yield _Silent()


def _no_registry(kind: str, name: str) -> type:
    from xmckit.errors import UsageError

    raise UsageError(f"this context cannot build {kind}:{name}: make it with xmckit.make_context()")


@dataclass(frozen=True)
class Context:
    """Everything that a component needs besides its data. Components read no global state.

    `validation` holds rows taken from train, for early stopping, thresholds and calibration. `label_names` and
    `label_rows` are for indexers and heads. `label_names` are those of the data, for files that people write; None if
    labels have no names. `label_rows` returns a feature row per label: the data's label features if they are as wide as
    rows, or else the labels' names as the featurizer transforms them; None if the data has neither. `folder` is the
    component's scratch folder, which it gets back if a killed stage resumes; `save` stores what must last.
    """

    seed: int = 0
    workers: int = 1
    progress: Progress = silent
    folder: Path | None = None
    validation: Split | None = None
    label_names: Sequence[str] | None = None
    label_rows: Callable[[], Matrix | None] = field(default=lambda: None, repr=False)
    executor: Executor | None = None
    resolve: Callable[[str, str], Any] = field(default=_no_registry, repr=False)
    names: Callable[[str], list[str]] = field(default=lambda kind: [], repr=False)
    log: Callable[[str], None] = field(default=lambda message: None, repr=False)

    def build(self, kind: str, spec: Spec | Mapping[str, Any]) -> Any:
        """Build the component that `spec` names, with its parameters: `context.build("encoder", params.encoder)`."""
        options = dict(spec) if isinstance(spec, Mapping) else {"use": spec.use, **spec.options}
        return self.resolve(kind, options.pop("use"))(**options)

    def load(self, kind: str, name: str, folder: Path) -> Any:
        """Load the component that was saved in `folder`; its files are compared with their checksums."""
        from xmckit import store

        with store.compared(folder):
            return self.resolve(kind, name).load(folder, context=self)

    def seed_for(self, *names: object) -> int:
        """Return a seed for one purpose: it depends on (seed, names) only, not on the order of calls."""
        text = "\0".join(str(name) for name in (self.seed, *names))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def rng(self, *names: object) -> np.random.Generator:
        """Return a generator with the seed of `seed_for`."""
        import numpy as np

        return np.random.default_rng(self.seed_for(*names))

    def map(self, function: Callable[[Any], Any], items: Any) -> list[Any]:
        """Call `function` on each item, on the executor's workers; return the results in the order of the items."""
        items = list(items)
        if self.executor is None:
            return [function(item) for item in items]
        return self.executor.map(function, items, workers=self.workers)

    def using(self, **changes: Any) -> Context:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def map_on_threads(function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]:
    """Call `function` on each item, on up to `workers` threads; return the results in the order of the items."""
    if workers <= 1 or len(items) <= 1:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def cpu_count() -> int:
    """Return the number of processors that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
