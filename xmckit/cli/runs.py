"""`xmckit runs`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xmckit.cli import options
from xmckit.cli.runs_check import check
from xmckit.cli.tables import metric_text, print_metrics, print_report_table, print_table
from xmckit.errors import StorageError, UsageError, XmckitError, counted, printable


@click.group()
def runs() -> None:
    """List runs, show one, write its report, look for damage, empty the cache."""


runs.add_command(check)


@runs.command("ls")
@options.runs_option
@options.json_option
def ls(root: str, as_json: bool) -> None:
    """List the runs, oldest first. The exit code is 3 if a run is damaged; the others are listed all the same."""
    from xmckit.runs import find_runs

    damaged: dict[Path, XmckitError] = {}
    rows: list[dict[str, Any]] = []
    for run in find_runs(Path(root), damaged.__setitem__):
        metrics = None
        if run.is_done:
            try:
                metrics = run.metrics()
            except StorageError as error:
                damaged[run.path] = error
                continue
        rows.append(
            {
                "run": str(run.path),
                "recipe": run.name,
                "status": run.status,
                "created": run.manifest.created,
                "metrics": metrics["results"][0]["metrics"] if metrics else {},
            }
        )
    for path, why in damaged.items():
        facts = {"run": str(path), "recipe": path.parent.name, "status": "damaged", "created": None}
        rows.append({**facts, "metrics": {}, "error": str(why)})
    if as_json:
        options.print_json(rows)
    elif not rows:
        click.echo(f"no runs below {root}; start with: xmckit run quickstart")
    else:
        cells = [
            [item["recipe"], Path(item["run"]).name, item["status"]]
            + [metric_text(name, item["metrics"].get(name)) for name in ("P@1", "P@3", "P@5")]
            for item in rows
        ]
        print_table(cells, ["recipe", "run", "status", "P@1", "P@3", "P@5"], left=3)
    if damaged:
        raise StorageError("\n".join(map(str, damaged.values())))


@runs.command("show")
@click.argument("run")
@options.runs_option
@options.json_option
def show(run: str, root: str, as_json: bool) -> None:
    """Show the results and the stages of RUN."""
    from xmckit.runs import find_run

    record = find_run(run, Path(root))
    metrics = record.metrics() if record.has_metrics else None
    if as_json:
        manifest = record.manifest.to_json()
        options.print_json({"run": str(record.path), "status": record.status, "manifest": manifest, "metrics": metrics})
        return
    from xmckit.report.run_charts import stage_table

    click.echo(f"{record.path}: {record.status}")
    if record.manifest.error:
        click.echo(printable(record.manifest.error))
    print_report_table(stage_table(record.stages))
    if metrics:
        click.echo()
        print_metrics(metrics)
    if record.status in ("killed", "interrupted", "failed"):
        click.echo(f"continue with: xmckit run --resume {record.path}")


@runs.command("report")
@click.argument("run")
@options.runs_option
@options.json_option
def report(run: str, root: str, as_json: bool) -> None:
    """Write the report of RUN again, with this version of xmckit."""
    from xmckit.analysis.combine import check_done
    from xmckit.report.run_report import write_report
    from xmckit.runs import find_run

    record = find_run(run, Path(root))
    check_done([record])
    if not record.can_report:
        raise UsageError(f"{record.path} keeps less than a report needs: run {record.resolved_recipe} again")
    path = write_report(record)
    if as_json:
        options.print_json({"report": str(path)})
    else:
        click.echo(path)


@runs.command("clean")
@options.runs_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
def clean(root: str, yes: bool) -> None:
    """Delete the cache of finished stages. Runs keep their files; later runs compute all stages again."""
    from xmckit.pipeline.cache import empty_cache
    from xmckit.runs.layout import CACHE

    cache = Path(root) / CACHE
    if not cache.is_dir():
        click.echo("there is no cache")
        return
    if not yes:
        click.confirm(f"delete all cached stages in {cache}?", abort=True)
    busy: list[Path] = []
    click.echo(f"deleted {counted(empty_cache(Path(root), busy.append), 'cached stage')}")
    if busy:
        click.echo(f"{counted(len(busy), 'cached stage')} left: another process is making or taking it")
