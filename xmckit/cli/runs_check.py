"""`xmckit runs check`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xmckit.cli import invocation, options
from xmckit.errors import StorageError, counted, printable

if TYPE_CHECKING:
    from xmckit.pipeline.check import CheckReport


@click.command("check")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Restore damaged stages from sound copies, and drop those without one.")
@options.runs_option
@options.json_option
def check(runs: tuple[str, ...], repair: bool, root: str, as_json: bool) -> None:
    """Read all files of RUN, or of all runs, and of the cache, and compare them with their checksums.

    Exit code 3 if something is damaged and not repaired.
    """
    from xmckit.pipeline.check import check_runs
    from xmckit.runs import find_run_folders

    with invocation.terminal_progress() as progress:
        report = check_runs(Path(root), find_run_folders(runs, Path(root)), repair=repair, progress=progress)
    if as_json:
        options.print_json(report.to_json())
    else:
        _print(report, repair)
    if not report.is_sound:
        sys.exit(StorageError.exit_code)


def _print(report: CheckReport, repair: bool) -> None:
    from xmckit.report import texts

    for damage in report.damaged:
        where = ": ".join(part for part in (damage.run or "cache", damage.stage, damage.file) if part)
        done = f" → {damage.repair}" if damage.repair else ""
        click.echo(f"{options.styled('damaged', fg='red')}: {printable(f'{where}: {damage.why}{done}')}")
    what = f"{counted(report.runs, 'run')} and {counted(report.cached_stages, 'cached stage')}"
    size = f"{counted(report.files, 'file')}, {texts.size(report.bytes)}"
    click.echo(f"read {what} ({size}): " + (f"{len(report.damaged):,} damaged" if report.damaged else "all sound"))
    if report.without_checksums:
        count = counted(len(report.without_checksums), "folder")
        click.echo(f"{count} of an older version without checksums: only sizes were compared")
    if report.damaged and not repair:
        click.echo("repair with: xmckit runs check --repair")
    for line in report.next:
        click.echo(f"next: {line}")
