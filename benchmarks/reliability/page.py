"""Write docs/reliability.md from the stored counts of all attacks.

python -m benchmarks.reliability.page
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from benchmarks.common import paths
from benchmarks.common.markdown import header, row, write_page

COMMAND = "python -m benchmarks.reliability."
OPENING = """\
Written by `python -m benchmarks.reliability.page` from the counts that the commands below store. Each attack tries to
make xmckit say something false, lose something, crash, or use memory that nobody gave it. Small versions of all attacks
run with `make test`, large ones with `make test-slow`. What xmckit promises is in [SECURITY.md](../SECURITY.md), limits
on files in [data sets](data.md#limits), checksums in [run folders](runs.md#checksums)."""


def counts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((paths.RESULTS / f"reliability_{name}.json").read_text("utf-8"))
    return found


def page() -> Iterator[str]:
    yield from ["# Reliability", "", textwrap.fill(OPENING, 120), ""]
    for section in (verdicts, certificates, heads, formats, runs, kills, checksums, children):
        yield from section()
        yield ""


def section(title: str, module: str, text: str) -> Iterator[str]:
    yield from [f"## {title}", "", f"`{COMMAND}{module}`", "", textwrap.fill(text, 120)]


def verdicts() -> Iterator[str]:
    found = counts("verdicts")
    yield from section(
        "Verdicts",
        "verdicts",
        f"{found['instances']:,} label sets of {found['layers']:,} small layers, with and without biases "
        "and candidates, "
        "for both rules, are verified and compared with an exact enumeration of everything that the layer "
        "outputs, ties "
        f"included. Wrong: {found['wrong']:,}. Proofs of a status that the independent checker rejects: "
        f"{found['rejected_by_the_checker']:,}. Unresolved: {found['unresolved']:,}. "
        f"{found['argmaxable_by_ties_only']:,} sets are output by ties only, and {found['witnesses_beyond_float64']:,} "
        "witnesses need more than float64.",
    )
    yield ""
    yield from header(["rows of W", "label sets", "argmaxable", "of these by ties only", "witness beyond float64"])
    for kind, one in found["kinds"].items():
        numbers = [one.get(name, 0) for name in ("instances", "argmaxable", "by ties only", "beyond float64")]
        yield row([kind, *(f"{number:,}" for number in numbers)])


def certificates() -> Iterator[str]:
    found = counts("certificates")
    yield from section(
        "Forged proofs",
        "certificates",
        f"Every field of the verdicts, proofs, layers and label sets of a verified run is edited: {found['edits']:,} "
        f"edits, of which {found['tried']:,} were tried here. The checker rejected {found['rejected']:,} and accepted "
        f"{found['true_and_accepted']:,} that leave all claims true. False claims accepted: "
        f"{found['false_claims_accepted']:,}; tracebacks: {found['tracebacks']:,}.",
    )


def heads() -> Iterator[str]:
    found = counts("heads")
    total = found["all"]
    trained = sum(found["trained heads"].values())
    yield from section(
        "What heads output",
        "heads",
        f"{trained} trained heads ({', '.join(found['trained heads'])}) with weights as trained and with rows that are "
        f"zero, equal or opposite, biases that are equal, and more: {total['outputs']:,} outputs are verified. Outputs "
        f"that exact arithmetic confirms and the verifier calls impossible: {total['contradictions']:,}. "
        "Decisions that "
        f"are not what is output: {total['decisions that are not what is output']:,}. Outputs that only rounding "
        f"explains: {total['outputs by rounding only']:,}.",
    )


def formats() -> Iterator[str]:
    found = counts("formats")
    failures = sum(
        number for outcome in found["outcomes"].values() for name, number in outcome.items()
        if name not in ("read", "refused")
    )  # fmt: skip
    guided = sum(sum(outcome.values()) for outcome in found.get("guided", {}).values())
    yield from section(
        "Files",
        "formats",
        f"{found['inputs']:,} mutated files for {len(found['outcomes'])} readers and stored formats, in "
        "processes with a "
        "limit on memory: fields, claims, offsets, types, headers and bits. A file must be read or "
        "refused with its name; "
        f"anything else is a failure: {failures:,}."
        + (f" A coverage-guided fuzzer adds {guided:,} inputs." if guided else ""),
    )
    yield ""
    yield from header(["format", "read", "refused", "failures"])
    for name, outcome in found["outcomes"].items():
        read, refused = outcome.get("read", 0), outcome.get("refused", 0)
        yield row([name, f"{read:,}", f"{refused:,}", sum(outcome.values()) - read - refused])


def runs() -> Iterator[str]:
    found = counts("runs")
    codes = ", ".join(f"{code}: {number:,}" for code, number in found["codes"].items())
    yield from section(
        "Run folders",
        "runs",
        f"Edits of {found['files']:,} files of finished runs: other values and types of every field, "
        "flipped bits, cut and "
        f"swapped files, folders and links in their place. {found['cases']:,} edits were drawn, and "
        "commands that read the "
        f"file were called {found['calls']:,} times. Exit codes: {codes}. Crashes: {found['crashes']:,}. "
        "Calls that show a "
        f"traceback, do not name the run, hide other runs or touch files elsewhere: {found['failures']:,}.",
    )


def kills() -> Iterator[str]:
    found = counts("kills")["recipes"]
    yield from section(
        "Kills",
        "kills",
        "A run is killed before and after each rename, link, fsync, unlink, mkdir, rmdir and open for "
        "writing. After each "
        "kill the runs can be listed, nothing half-written is visible, `run --resume` gives the same "
        "predictions, metrics "
        "and verdicts bit for bit, no temporary file stays, and another run from the same cache gives the same.",
    )
    yield ""
    yield from header(["recipe", "operations", "points", "killed at", "failures"])
    for name, one in found.items():
        yield row([name, *(f"{one[key]:,}" for key in ("operations", "points", "kills")), len(one["failures"])])


def checksums() -> Iterator[str]:
    found = counts("checksums")
    yield from section(
        "Damage",
        "checksums",
        f"{found['damage']['flips']:,} random bits flipped in stored files; unseen: "
        f"{found['damage']['unseen']:,}. The time "
        "to read with checksums, compared with the time without them in the same run:",
    )
    yield ""
    yield from header(["file", "MB", "without, ms", "with, ms"])
    for name, one in found["reading"].items():
        times = [f"{one[key]:.0f}" for key in ("milliseconds_without", "milliseconds_with")]
        yield row([name, f"{one['bytes'] / 1e6:.0f}", *times])


def children() -> Iterator[str]:
    found = counts("children")
    folder, disk, plugins = found["working_folder"], found["full_disk"], found["plugins"]
    yield from section(
        "Processes, disks and plugins",
        "children",
        f"All {folder['commands']} commands run in a folder with {folder['modules']} modules named like "
        "those of Python and "
        f"the libraries; modules that were executed: {folder['modules_run']}. The disk is full at each of "
        f"{disk['writes']} "
        f"writes of a run: errors that do not name the file {disk['file_not_named']}, half-written files "
        f"{disk['half_written']}, runs that could not resume {disk['not_resumed']}. Plugins that end the "
        "process on import "
        f"({', '.join(plugins['fatal'])}): {plugins['set_aside_at_second_start']} of "
        f"{len(plugins['fatal'])} are set aside "
        f"by the next start. Plugins that raise ({', '.join(plugins['raised'])}): {plugins['survived']} of "
        f"{len(plugins['raised'])} starts survive.",
    )


if __name__ == "__main__":
    write_page("reliability.md", page())
