"""`xmckit runs`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xmckit.cli import options


@click.group()
def runs() -> None:
    """List runs, show one, write its report, empty the cache."""


@runs.command("ls")
@options.runs_option
@options.json_option
def ls(root: str, as_json: bool) -> None:
    """List the runs, oldest first."""
    from xmckit.errors import StorageError
    from xmckit.runs import find_runs

    rows: list[dict[str, Any]] = []
    for run in find_runs(Path(root)):
        status, metrics = run.status, None
        if status == "done":
            try:
                metrics = run.metrics()
            except StorageError:
                status = "damaged"
        rows.append(
            {
                "run": str(run.path),
                "recipe": run.name,
                "status": status,
                "created": run.manifest.created,
                "metrics": metrics["results"][0]["metrics"] if metrics else {},
            }
        )
    if as_json:
        options.print_json(rows)
    elif not rows:
        click.echo(f"no runs below {root}; start with: xmckit run quickstart")
    else:
        from xmckit.cli.tables import metric_text, print_table

        cells = [
            [item["recipe"], Path(item["run"]).name, item["status"]]
            + [metric_text(name, item["metrics"].get(name)) for name in ("P@1", "P@3", "P@5")]
            for item in rows
        ]
        print_table(cells, ["recipe", "run", "status", "P@1", "P@3", "P@5"], left=3)


@runs.command("show")
@click.argument("run")
@options.runs_option
@options.json_option
def show(run: str, root: str, as_json: bool) -> None:
    """Show the results and the stages of RUN."""
    from xmckit.cli.tables import print_metrics, print_table
    from xmckit.runs import find_run

    found = find_run(run, Path(root))
    metrics = found.metrics() if found.has_metrics else None
    if as_json:
        options.print_json(
            {"run": str(found.path), "status": found.status, "manifest": found.manifest.to_json(), "metrics": metrics}
        )
        return
    click.echo(f"{found.path}: {found.status}")
    if found.manifest.error:
        click.echo(found.manifest.error)
    rows = [
        [stage.name, f"{stage.seconds:.1f}", f"{stage.peak_bytes / 2**20:.0f}", "yes" if stage.reused else ""]
        for stage in found.stages
    ]
    print_table(rows, ["stage", "seconds", "peak MiB", "reused"])
    if metrics:
        click.echo()
        print_metrics(metrics)
    if found.status in ("killed", "interrupted", "failed"):
        click.echo(f"continue with: xmckit run --resume {found.path}")


@runs.command("report")
@click.argument("run")
@options.runs_option
@options.json_option
def report(run: str, root: str, as_json: bool) -> None:
    """Write the report of RUN again, with this version of xmckit."""
    from xmckit.analysis.combine import check_done
    from xmckit.errors import UsageError
    from xmckit.report import write_report
    from xmckit.runs import find_run

    found = find_run(run, Path(root))
    check_done([found])
    if not found.can_report:
        raise UsageError(f"{found.path} keeps less than a report needs: run {found.resolved_recipe} again")
    path = write_report(found)
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
    click.echo(f"deleted {empty_cache(Path(root))} cached stages")
