"""What `xmckit plugins check` runs and prints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import UsageError
from xmckit.testing import Case, CheckResult, cases_named, summarise

if TYPE_CHECKING:
    from xmckit.registry import Registry
    from xmckit.registry.locations import Location

Results = Mapping[str, Sequence[CheckResult]]


def chosen(name: str, sets: Sequence[str], example: Path | None, registry: Registry) -> list[Case]:
    """The cases that are asked for, with the parameters that are given."""
    from xmckit.recipe.layers import read_sets

    cases, params = cases_named(name, registry), read_sets(sets).plain()
    if len(cases) > 1 and (params or example):
        names = ", ".join(case.name for case in cases)
        raise UsageError(f"--set and --example are for one component, and '{name}' means {names}: say KIND:NAME")
    return [replace(case, params=params, example=example) for case in cases]


def left_out(cases: Sequence[Case]) -> dict[str, str]:
    """Where several components are checked, what those need that cannot be checked without; one alone is tried."""
    needs: dict[str, str] = {}
    for case in cases if len(cases) > 1 else ():
        with contextlib.suppress(Exception, SystemExit):  # its results tell why it cannot be asked
            needs[case.name] = case.needs
    return {name: needed for name, needed in needs.items() if needed}


def defined(cases: Sequence[Case], registry: Registry) -> dict[str, Location]:
    """Where each component is written."""
    return {case.name: registry.locate(case.kind, str(case.component)) for case in cases}


def run(cases: Sequence[Case]) -> dict[str, list[CheckResult]]:
    """The results of each component, with a bar that names the check at work."""
    from xmckit.cli.progress import TerminalProgress

    results: dict[str, list[CheckResult]] = {}
    with TerminalProgress(quiet=invocation.quiet()) as progress:
        for case in cases:
            results[case.name] = []
            with progress(f"checking {case.name}", total=len(case.checks)) as bar:
                for result in case.results():
                    results[case.name].append(result)
                    bar.advance(check=result.name)
    return results


def sound(results: Results) -> bool:
    return bool(results) and all(summarise(found).ok for found in results.values())


def facts(results: Results, places: Mapping[str, Location], needs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ok": sound(results),
        "not_checked": [{"component": name, "needs": needed} for name, needed in needs.items()],
        "components": [
            {
                "component": name,
                "file": places[name].file,
                "line": places[name].line,
                **_counts(found),
                "checks": [_told(result) for result in found],
            }
            for name, found in results.items()
        ],
    }


def _counts(found: Sequence[CheckResult]) -> dict[str, Any]:
    summary = summarise(found)
    return {
        "ok": summary.ok,
        "ran": summary.ran,
        "passed": summary.passed,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "xfailed": summary.xfailed,
    }


def _told(result: CheckResult) -> dict[str, Any]:
    return {
        "check": result.name,
        "status": result.status,
        "detail": result.detail,
        "seconds": round(result.seconds, 3),
    }


def show(results: Results, places: Mapping[str, Location], needs: Mapping[str, str]) -> None:
    """A table for each component with the counts, and where a component is defined that failed."""
    from xmckit.cli.tables import print_table

    for name, found in results.items():
        rows = [
            [result.name, result.status, " ".join(result.detail.split()), f"{result.seconds:.2f}"] for result in found
        ]
        print_table(rows, ["check", "result", "what was found", "s"], left=3, title=name)
        summary = summarise(found)
        colour = "green" if summary.ok else "red"
        click.echo(f"{options.styled('kept' if summary.ok else 'broken', fg=colour, bold=True)}: {summary}")
        if not summary.ok:
            click.echo(f"defined in {places[name].file}" + (f", line {places[name].line}" if places[name].line else ""))
        click.echo()
    for name, needed in needs.items():
        click.echo(f"{options.styled('not checked', fg='yellow')}: {name} needs {needed}")
    if len(results) + len(needs) > 1:
        broken = [name for name, found in results.items() if not summarise(found).ok]
        total = summarise(result for found in results.values() for result in found)
        said = f"; broken: {', '.join(broken)}" if broken else ""
        unchecked = f"; not checked: {', '.join(needs)}" if needs else ""
        click.echo(f"{len(results)} components: {total}{said}{unchecked}")
