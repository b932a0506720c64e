"""Progress on stderr: bars during the work, and one line for each finished stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from xmckit.context import Bar
from xmckit.runs import StageRecord


class _Count(MofNCompleteColumn):
    """Show done of total; nothing if the total is not known."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


class _RichBar:
    def __init__(self, progress: Progress, task: Any):
        self._progress, self._task = progress, task

    def advance(self, steps: float = 1, **facts: object) -> None:
        text = "  ".join(escape(f"{name} {value}") for name, value in facts.items())
        changes = {"facts": text} if facts else {}
        self._progress.update(self._task, advance=steps, **changes)  # type: ignore[arg-type]


class TerminalProgress:
    """Bars that disappear when they are done; none if quiet or if stderr is not a terminal."""

    def __init__(self, *, quiet: bool):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            _Count(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[facts]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )

    @contextlib.contextmanager
    def __call__(self, what: str, total: float | None = None) -> Iterator[Bar]:
        task = self._live.add_task(escape(what), total=total, facts="")
        try:
            yield _RichBar(self._live, task)
        finally:
            self._live.remove_task(task)

    def __enter__(self) -> TerminalProgress:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def stage_done(self, record: StageRecord) -> None:
        """Print a permanent line with the stage and its cost."""
        cost = "reused" if record.reused else f"{record.seconds:.1f} s, {record.peak_bytes / 2**20:.0f} MiB"
        self.console.print(f"[green]✓[/] {record.name:<24} [dim]{cost}[/]")
