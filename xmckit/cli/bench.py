"""`xmckit bench`"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_table
from xmckit.errors import DataError, StorageError, counted

if TYPE_CHECKING:
    from xmckit.bench.results import Results
    from xmckit.bench.suite import Suite

_work_option = click.option(
    "--work", type=click.Path(), metavar="DIR", help="Folder for cells and runs [default: runs/bench/SUITE]."
)


@click.group()
def bench() -> None:
    """Run suites of recipes and peers over data sets and seeds, and compare them."""


def _seeds(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    seeds = value.replace(" ", "").split(",") if value else []
    if not all(seed.isdecimal() for seed in seeds):
        raise click.BadParameter("expected whole numbers from 0 on with commas, such as 0,1,2")
    return list(dict.fromkeys(map(int, seeds)))


@bench.command("run")
@click.argument("suite", type=click.Path())
@options.data_option
@click.option("--seeds", callback=_seeds, metavar="0,1,2", help="Seeds to use instead of the suite's.")
@click.option("--executor", default="serial", show_default=True, help="Executor of the cells; serial for exact times.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Cells to run in parallel.")
@click.option("--retry-failed", is_flag=True, help="Run failed cells again.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Start no cell after this time; call again to continue.")
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Run only cells with this text in their key; if repeated, with all of the texts.",
)
@_work_option
@options.json_option
def run(
    suite: str,
    data_folders: tuple[str, ...],
    seeds: list[int],
    executor: str,
    jobs: int,
    retry_failed: bool,
    minutes: float | None,
    only: tuple[str, ...],
    work: str | None,
    as_json: bool,
) -> None:
    """Run the cells of SUITE, a .toml file, that are not done. Finished cells are always kept.

    Writes the results file and the part of a page that the suite names.
    """
    from xmckit.bench.results import collect
    from xmckit.bench.runner import NO_DATA, run_suite
    from xmckit.bench.suite import load_suite

    if jobs > 1 and executor == "serial":
        raise click.UsageError("several --jobs need an executor that spreads them: --executor threads")
    registry = invocation.get_registry()
    definition = load_suite(Path(suite), registry)
    folder = _work_folder(definition, work)
    _earlier_results(definition)  # fail before hours of work if the results file cannot be read
    try:
        summary = run_suite(
            definition,
            folder,
            registry=registry,
            roots=invocation.data_roots(data_folders),
            seeds=seeds,
            retry_failed=retry_failed,
            minutes=math.inf if minutes is None else minutes,
            executor=executor,
            jobs=jobs,
            only=only,
            announce=functools.partial(_announce, invocation.quiet()),  # threads have no click context to ask
        )
    except KeyboardInterrupt:
        invocation.hint_after_error(f"finished cells are kept; continue with: xmckit bench run {suite}")
        raise
    results, kept = _write_results(definition, collect(definition, folder, seeds))
    if as_json:
        options.print_json({"summary": vars(summary), "kept": kept, **results.to_json()})
    else:
        _print_results(results)
        click.echo(
            f"{counted(len(summary.done), 'cell')} run, {len(summary.skipped)} done before, "
            f"{len(summary.failed)} failed, {len(summary.later)} left for later."
        )
        if kept:
            click.echo(f"From an earlier session, because this folder has no cell of them: {', '.join(kept)}.")
    if summary.failed and not (summary.done or summary.skipped or summary.later):
        without_data = all(why.startswith(f"{NO_DATA}: ") for why in summary.failed.values())
        click.get_current_context().exit(DataError.exit_code if without_data else 1)


def _announce(quiet: bool, key: str, outcome: dict[str, Any] | None) -> None:
    if quiet:
        return
    now = time.strftime("%H:%M:%S")
    if outcome is None:
        click.echo(f"{now} {key} …", err=True)
    elif outcome["status"] == "done":
        click.echo(f"{now} {key}: {outcome['seconds']:.0f} s", err=True)
    else:
        lines = outcome["error"].strip().splitlines()
        click.echo(f"{now} {key}: {outcome['reason']}: {lines[-1] if lines else ''}", err=True)


def _work_folder(suite: Suite, work: str | None) -> Path:
    return (Path(work) if work else Path("runs") / "bench" / suite.name).resolve()


def _earlier_results(suite: Suite) -> Results | None:
    """Return the content of the suite's results file; None if there is none."""
    from xmckit.bench.results import read_results

    if suite.results is None or not suite.results.is_file():
        return None
    try:
        return read_results(suite.results)
    except StorageError:
        invocation.hint_after_error(f"move {suite.results} away to start again")
        raise


def _write_results(suite: Suite, results: Results) -> tuple[Results, list[str]]:
    """Write results and page; return what was written, and the data sets that come from an earlier session."""
    from xmckit.bench.results import with_earlier, write_results
    from xmckit.bench.tables import markdown, write_between_markers

    kept: list[str] = []
    if (earlier := _earlier_results(suite)) is not None:
        results, kept = with_earlier(results, earlier)
    if suite.results is not None:
        write_results(results, suite.results)
    if suite.page is not None:
        write_between_markers(suite.page, suite.name, markdown(results))
    return results, kept


@bench.command("table")
@click.argument("suite", metavar="SUITE|RESULTS")
@_work_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--write", is_flag=True, help="Write the suite's results file and its part of the page again.")
@options.html_option
@options.json_option
def table(suite: str, work: str | None, as_markdown: bool, write: bool, html: str | None, as_json: bool) -> None:
    """Print the results of SUITE (.toml) or of RESULTS (.json) as tables."""
    from xmckit.bench.tables import markdown

    results, own = _results(suite, work)
    if write:
        if own is None:
            raise click.UsageError("--write needs the suite itself, a .toml file")
        results, _ = _write_results(own, results)
    if html is not None:
        from xmckit.report.suite_page import write_suite

        write_suite(results, Path(html))
    if as_json:
        options.print_json(results.to_json())
    elif as_markdown:
        click.echo(markdown(results), nl=False)
    else:
        _print_results(results)


def _results(source: str, work: str | None) -> tuple[Results, Suite | None]:
    """Return the results in a results file or in a suite's folder, and the suite if there is one."""
    from xmckit.bench.results import collect, read_results
    from xmckit.bench.suite import load_suite

    if source.endswith(".json"):
        return read_results(Path(source)), None
    suite = load_suite(Path(source), invocation.get_registry())
    folder = _work_folder(suite, work)
    if not (folder / "cells").is_dir() and suite.results is not None and suite.results.is_file():
        return read_results(suite.results), suite
    return collect(suite, folder), suite


def _print_results(results: Results) -> None:
    from xmckit.bench import tables
    from xmckit.report.suite_page import published_notes

    for data in results.data:
        if rows := tables.data_rows(results, data):
            print_table(rows, tables.columns(results), title=tables.data_title(data))
        else:
            click.echo(tables.data_title(data))
        for note in [*published_notes(data), *data.notes]:
            click.echo(f"note: {note}")
        click.echo()
    click.echo(tables.LEGEND)
    if rows := tables.duel_rows(results):
        click.echo()
        print_table(rows, tables.DUEL_COLUMNS, left=6, title="the best recipe against the best peer")
    if rows := results.failures():
        click.echo()
        print_table(rows, ["data", "system", "seed", "reason", ""], left=5, title="failures")
    if results.missing:
        click.echo(f"not run yet: {counted(len(results.missing), 'cell')}")


@bench.command("plot")
@click.argument("suite", metavar="SUITE|RESULTS")
@_work_option
@click.option("--metric", default="P@5", show_default=True, help="Metric to draw over time.")
@click.option("--output", type=click.Path(), metavar="FILE.svg", help="File to write [default: SUITE.svg].")
def plot(suite: str, work: str | None, metric: str, output: str | None) -> None:
    """Draw a metric against the times of training and prediction, for SUITE (.toml) or RESULTS (.json)."""
    from xmckit import store
    from xmckit.bench.plots import draw

    results, _ = _results(suite, work)
    file = Path(output or f"{results.suite}.svg")
    store.write_text(file, draw(results, metric))
    click.echo(f"picture: {file}")


@bench.command("compare")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--work-a", type=click.Path(), metavar="DIR", help="Folder with the cells of A, if A is a suite.")
@click.option("--work-b", type=click.Path(), metavar="DIR", help="Folder with the cells of B, if B is a suite.")
@options.json_option
def compare(before: str, after: str, work_a: str | None, work_b: str | None, as_json: bool) -> None:
    """Show what got better, worse or slower from A to B: two suites (.toml) or results (.json).

    If both are suites and their cells exist, differences are tested by a paired bootstrap over test rows.
    """
    from xmckit.bench.results import changes, kept_rows

    (old, old_suite), (new, new_suite) = _results(before, work_a), _results(after, work_b)
    rows = None
    if old_suite is not None and new_suite is not None:
        old_rows = kept_rows(old_suite, _work_folder(old_suite, work_a))
        new_rows = kept_rows(new_suite, _work_folder(new_suite, work_b))
        rows = {key: (old_rows[key], new_rows[key]) for key in old_rows.keys() & new_rows.keys()}
    differences = changes(old, new, rows)
    if as_json:
        options.print_json([vars(change) for change in differences])
        return
    _print_changes(differences, new)


def _print_changes(changes: Sequence[Any], results: Results) -> None:
    from xmckit.bench import tables
    from xmckit.report.suite_page import metric_names
    from xmckit.report.tables import MARKS, SAME

    metrics = metric_names(results)
    print_table(tables.change_rows(changes, metrics), ["", *metrics, *tables.CHANGE_COLUMNS])
    click.echo(
        f"Percentages, with the difference in brackets ({tables.CHANGED} significant, {MARKS[SAME]} may be chance,"
    )
    click.echo("no mark: the rows are not available), and the factors of time and size.")
    if other := [change.data for change in changes if change.other_data]:
        click.echo(f"note: the data has changed between A and B: {', '.join(dict.fromkeys(other))}")
