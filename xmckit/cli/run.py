"""`xmckit run`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import headline, metric_text, print_metrics, print_table
from xmckit.errors import counted, printable

if TYPE_CHECKING:
    from xmckit.pipeline import Result
    from xmckit.recipe import Recipe
    from xmckit.runs import Run


@click.command()
@click.argument("recipe", required=False)
@options.set_option
@click.option("--sweep", "sweeps", multiple=True, metavar="KEY=V1,V2,…", help="Run all combinations; repeatable.")
@click.option("--resume", metavar="RUN", help="Continue an interrupted run, with its own recipe.")
@click.option("--dry-run", is_flag=True, help="Print the stages that would run, and those that the cache has.")
@click.option("--workers", type=click.IntRange(min=0), help="Number of processors, as --set workers=N; 0 means all.")
@options.runs_option
@options.data_option
@options.json_option
def run(
    recipe: str | None,
    sets: tuple[str, ...],
    sweeps: tuple[str, ...],
    resume: str | None,
    dry_run: bool,
    workers: int | None,
    root: str,
    data_folders: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run RECIPE: a name from `xmckit recipes ls` or a .toml file."""
    from xmckit import store
    from xmckit.recipe import load_recipe
    from xmckit.runs import find_run

    if workers is not None:
        sets = (*sets, f"workers={workers}")
    if resume is None and recipe is None:
        raise click.UsageError("name a recipe (`xmckit recipes ls` lists them) or a run to --resume")
    if resume is not None and (sweeps or sets or dry_run):
        raise click.UsageError("--resume continues a run as it is: leave out --set, --sweep, --workers and --dry-run")
    registry = invocation.get_registry()
    roots = invocation.data_roots(data_folders)

    def load(source: str | Path, *changes: str) -> Recipe:
        # The first import of torch and numba takes seconds.
        with invocation.terminal_progress() as progress, progress("loading components"):
            return load_recipe(source, sets=[*sets, *changes], registry=registry, data_roots=roots)

    if resume is not None:
        stopped = find_run(resume, Path(root))
        if recipe is None:
            store.compare_file(stopped.resolved_recipe)
        source = load(recipe or stopped.resolved_recipe)
        _finish(_execute(source, stopped.root, resume=stopped), as_json)
        return
    assert recipe is not None
    if sweeps:
        _sweep(recipe, sweeps, load, Path(root), dry_run, as_json)
    elif dry_run:
        _print_plan(load(recipe), Path(root), as_json)
    else:
        _finish(_execute(load(recipe), Path(root)), as_json)


def _execute(recipe: Recipe, root: Path, resume: Run | None = None) -> Result:
    from xmckit import pipeline

    started: list[Run] = []
    try:
        with invocation.terminal_progress() as progress:
            return pipeline.run(
                recipe,
                root=root,
                resume=resume.path if resume else None,
                registry=invocation.get_registry(),
                progress=progress,
                started=started.append,
                announce=progress.stage_done,
                argv=sys.argv,
            )
    except BaseException:
        for run in started:
            invocation.hint_after_error(f"finished stages are kept; continue with: xmckit run --resume {run.path}")
        raise


def _finish(result: Result, as_json: bool) -> None:
    if as_json:
        options.print_json(
            {"run": str(result.path), "report": str(result.report), "warnings": result.warnings, **result.metrics}
        )
        return
    print_metrics(result.metrics)
    for verdict in _verdict_lines(result.run):
        click.echo(printable(verdict))
    for warning in result.warnings:
        click.echo(printable(f"note: {warning}"), err=True)
    click.echo(f"report: {result.report}")


def _verdict_lines(run: Run) -> list[str]:
    """Describe what was proved about each head, if the run has verdicts."""
    from xmckit.report.verdict_section import rounding_notes, split_results

    proved, not_verifiable = split_results(run.verdicts()["results"]) if run.has_verdicts else ([], [])
    lines = []
    for result in proved:
        scope = "" if result["scope"] == "full" else ", with each row's candidates"
        counts = result["counts"]
        rest = f", {counts['unresolved']} unresolved" if counts["unresolved"] else ""
        lines.append(
            f"{result['head']}{scope}: of {counted(sum(counts.values()), 'label set')} it can output "
            f"{counts['argmaxable']} and never {counts['unargmaxable']}{rest}, with proof"
        )
    return lines + rounding_notes(proved) + not_verifiable


def _print_plan(recipe: Recipe, root: Path, as_json: bool) -> None:
    from xmckit import pipeline

    with invocation.terminal_progress() as progress:
        steps = pipeline.plan(recipe, root=root, registry=invocation.get_registry(), progress=progress)
    if as_json:
        options.print_json([vars(step) for step in steps])
        return
    rows = [[step.stage, step.use, "cached" if step.cached else "to run", _params_text(step.params)] for step in steps]
    print_table([*rows, ["report", "", "to run", ""]], ["stage", "component", "", "parameters"], left=4)


def _params_text(params: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}={value['use'] if isinstance(value, dict) and 'use' in value else value}"
        for key, value in params.items()
    )


def _sweep(source: str, sweeps: tuple[str, ...], load: Any, root: Path, dry_run: bool, as_json: bool) -> None:
    """Run each cell of the grid, unless a run of it is done with the current code and data."""
    from xmckit import pipeline, store
    from xmckit.recipe import parse_sweep
    from xmckit.runs import find_runs

    cells = [(changes, load(source, *changes)) for changes in parse_sweep(list(sweeps))]
    done = [run for run in find_runs(root) if run.is_done]
    rows: list[dict[str, Any]] = []
    for number, (changes, recipe) in enumerate(cells, start=1):
        identity = store.canonical_sha256(recipe.resolved())
        steps = pipeline.plan(recipe, root=root, registry=invocation.get_registry())
        same = [run for run in done if run.manifest.identity == identity and pipeline.is_current(run, steps)]
        finished = same[-1] if same else None
        cell: dict[str, Any] = {"set": list(changes)}
        if dry_run:
            cell["done"] = finished is not None
        elif finished is not None:
            cell |= {"run": str(finished.path), "skipped": True, **finished.metrics()}
        else:
            if not invocation.quiet():
                click.echo(f"[{number}/{len(cells)}] {' '.join(changes)}", err=True)
            result = _execute(recipe, root)
            cell |= {"run": str(result.path), "skipped": False, **result.metrics}
        rows.append(cell)
    if as_json:
        options.print_json(rows)
    else:
        _print_sweep(rows, dry_run)


def _print_sweep(cells: list[dict[str, Any]], dry_run: bool) -> None:
    keys = [change.partition("=")[0] for change in cells[0]["set"]]
    values = [[change.partition("=")[2] for change in cell["set"]] for cell in cells]
    if dry_run:
        rows = [[*row, "done" if cell["done"] else "to run"] for row, cell in zip(values, cells, strict=True)]
        print_table(rows, [*keys, ""], left=len(keys) + 1)
        return
    metrics = [cell["results"][0]["metrics"] for cell in cells]
    columns = headline(list(metrics[0]), cells[0]["k"])
    rows = [
        [*row, *(metric_text(name, own.get(name)) for name in columns), Path(cell["run"]).name]
        for row, own, cell in zip(values, metrics, cells, strict=True)
    ]
    title = f"{cells[0]['dataset']}: {counted(len(cells), 'run')}"
    print_table(rows, [*keys, *columns, "run"], left=len(keys), title=title)
