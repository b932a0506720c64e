"""Run the conformance suite for `xmckit plugins check`, and print its results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_table
from xmckit.errors import UsageError, counted
from xmckit.testing import Case, CheckResult, cases_named, summarise

if TYPE_CHECKING:
    from xmckit.registry import Registry
    from xmckit.registry.locations import Location

Results = Mapping[str, Sequence[CheckResult]]
COUNTS = ("ok", "ran", "passed", "failed", "skipped", "xfailed")


def select_cases(name: str, sets: Sequence[str], example: Path | None, registry: Registry) -> list[Case]:
    """Return the cases that `name` means, with their parameters."""
    from xmckit.recipe.layers import read_sets

    cases, params = cases_named(name, registry), read_sets(sets).plain()
    if len(cases) > 1 and (params or example):
        names = ", ".join(case.name for case in cases)
        raise UsageError(f"--set and --example are for one component, and '{name}' means {names}: say KIND:NAME")
    return [replace(case, params=params, example=example) for case in cases]


def missing_needs(cases: Sequence[Case]) -> dict[str, str]:
    """Return what components need before they can be checked, if several are checked; one alone is tried."""
    needs: dict[str, str] = {}
    for case in cases if len(cases) > 1 else ():
        with contextlib.suppress(Exception, SystemExit):  # its results will show the error
            needs[case.name] = case.needs
    return {name: needed for name, needed in needs.items() if needed}


def run_checks(cases: Sequence[Case]) -> dict[str, list[CheckResult]]:
    """Return the results of each component; a bar names the check that is running."""
    results: dict[str, list[CheckResult]] = {}
    with invocation.terminal_progress() as progress:
        for case in cases:
            results[case.name] = []
            with progress(f"checking {case.name}", total=len(case.checks)) as bar:
                for result in case.results():
                    results[case.name].append(result)
                    bar.advance(check=result.name)
    return results


def all_passed(results: Results) -> bool:
    return bool(results) and all(summarise(checks).ok for checks in results.values())


def results_json(results: Results, locations: Mapping[str, Location], needs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ok": all_passed(results),
        "not_checked": [{"component": name, "needs": needed} for name, needed in needs.items()],
        "components": [
            {
                "component": name,
                "file": locations[name].file,
                "line": locations[name].line,
                **{key: getattr(summarise(checks), key) for key in COUNTS},
                "checks": [
                    {
                        "check": result.name,
                        "status": result.status,
                        "detail": result.detail,
                        "seconds": round(result.seconds, 3),
                    }
                    for result in checks
                ],
            }
            for name, checks in results.items()
        ],
    }


def print_results(results: Results, locations: Mapping[str, Location], needs: Mapping[str, str]) -> None:
    """Print a table and the counts for each component, and the location of components that failed."""
    for name, checks in results.items():
        rows = [
            [result.name, result.status, " ".join(result.detail.split()), f"{result.seconds:.2f}"] for result in checks
        ]
        print_table(rows, ["check", "result", "what was found", "s"], left=3, title=name)
        summary = summarise(checks)
        colour = "green" if summary.ok else "red"
        click.echo(f"{options.styled('ok' if summary.ok else 'failed', fg=colour, bold=True)}: {summary}")
        if not summary.ok:
            line = locations[name].line
            click.echo(f"defined in {locations[name].file}" + (f", line {line}" if line else ""))
        click.echo()
    for name, needed in needs.items():
        click.echo(f"{options.styled('not checked', fg='yellow')}: {name} needs {needed}")
    if len(results) + len(needs) > 1:
        failed = [name for name, checks in results.items() if not summarise(checks).ok]
        total = summarise(result for checks in results.values() for result in checks)
        failures = f"; failed: {', '.join(failed)}" if failed else ""
        unchecked = f"; not checked: {', '.join(needs)}" if needs else ""
        click.echo(f"{counted(len(results), 'component')}: {total}{failures}{unchecked}")
