"""`xmckit certificates`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.runs import layout, read_verdicts
from xmckit_argmax.cli.common import find_verified_folders

if TYPE_CHECKING:
    from xmckit import LinearDecision

MOST_SHOWN = 20
CLAIM_NAMES = {
    "margin": "margins",
    "radius": "bounds on radii",
    "eps": "answers at eps",
    "ideal": "answers of the ideal layer",
    "replayed": "replays by the head (--model does)",
}


@click.group()
def certificates() -> None:
    """Check the proofs behind a run's verdicts."""


@certificates.command("check")
@click.argument("run")
@runs_option
@click.option("--model", "against_model", is_flag=True,
              help="Also load the heads; check that W is theirs and their replays are as claimed.")  # fmt: skip
@json_option
def check(run: str, root: str, against_model: bool, as_json: bool) -> None:
    """Prove every verdict of RUN again, by a program that shares no code with the verifier.

    RUN is a run folder, its name, the name of a recipe for its newest verified run, or a folder with a verdicts.json.
    The program reads W, the label sets and the certificates from disk. It checks certificates in exact arithmetic, and
    witnesses with rigorous error bounds, or in exact arithmetic if these do not decide. It also checks margins, radii,
    the answers at eps and of the ideal layer, and all counts, and reports what it does not check. The exit code is 5
    if a check fails.
    """
    from xmckit import VerificationError

    results = [_check_folder(folder, against_model) for folder in find_verified_folders(run, Path(root))]
    failures = [failure for result in results for failure in result["failures"]]
    if as_json:
        print_json({"ok": not failures, "checks": results})
    else:
        for result in results:
            click.echo(_sentence(result))
    if failures:
        more = len(failures) - MOST_SHOWN
        shown = [*failures[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise VerificationError("\n".join([f"{len(failures)} checks failed:", *shown]))


def _check_folder(folder: Path, against_model: bool) -> dict[str, Any]:
    from xmckit_argmax.checker.check import check

    report = check(folder)
    failures = [f"{folder}: {failure}" for failure in report.failures]
    if folder.parent.name == "stages":
        failures += _changed_copies(folder)
    unchecked = dict(report.unchecked)
    if against_model and not report.failures:  # arrays that the checker rejects are not given to the heads
        failures += _compare_with_model(folder)
        unchecked.pop("replayed", None)
    return {
        "folder": str(folder),
        "proved": report.proved["argmaxable"] + report.proved["unargmaxable"],
        **report.proved,
        "exact": report.exact,
        "claims": report.claims,
        "unchecked": unchecked,
        "seconds": round(report.seconds, 3),
        "failures": failures,
    }


def _changed_copies(folder: Path) -> list[str]:
    """Compare the copies in the run folder, which people read, with the files that were checked."""
    copies = [folder.parents[1] / name for name in layout.COPIES_AT_TOP[layout.VERIFY]]
    return [
        f"{copy} is not the file of the same name in {folder}"
        for copy in copies
        if copy.is_file() and copy.read_bytes() != (folder / copy.name).read_bytes()
    ]


def _compare_with_model(folder: Path) -> list[str]:
    """Compare the verified decisions and the replays with those of the run's heads."""
    import numpy as np

    import xmckit
    from xmckit import store
    from xmckit.runs.extensions import is_extension, read_extension

    run = folder.parents[1]
    trained = read_extension(run).run if is_extension(run) else xmckit.find_run(run, run.parent)
    failures = []
    for name, head in zip(trained.head_names, xmckit.load(run).heads, strict=True):
        path = folder / f"decision-{name}.npz"
        decision = head.decision()
        if decision is None or not path.is_file():
            continue
        stored = store.read_arrays(path)
        expected = {"W": decision.W, "b": decision.b, "rule": np.asarray(decision.rule)}
        expected |= {part: getattr(decision.structure, part, None) for part in ("degree", "slack", "order")}
        if all(np.array_equal(np.asarray(stored.get(part)), np.asarray(array)) for part, array in expected.items()):
            failures += _compare_replays(folder, name, decision)
        else:
            failures.append(f"{path} is not the decision of the head {name} of {run}")
    return failures


def _compare_replays(folder: Path, head: str, decision: LinearDecision) -> list[str]:
    """Replay the witnesses by the head's own scorer, and compare with the verdicts."""
    import numpy as np

    from xmckit import store

    if decision.replay is None:
        return []
    sets, proofs = store.read_csr(folder / layout.ASSIGNMENTS), store.read_arrays(folder / layout.CERTIFICATES)
    failures = []
    for result in read_verdicts(folder)["results"]:
        if result["head"] != head or not result["verifiable"]:
            continue
        scope, rows = result["scope"], proofs[f"{head}/{result['scope']}/witness_of"]
        tried = [t for t, row in enumerate(rows) if result["verdicts"][row]["replayed"] is not None]
        candidates = store.read_csr(folder / f"candidates-{head}.npz") if scope == "shortlist" else None
        counts = [np.diff(sets.indptr)[rows[tried]]] if decision.rule == "topk" else []
        with np.errstate(over="ignore"):
            output = decision.replay(proofs[f"{head}/{scope}/witness"][tried], *counts)
        for position, row in enumerate(rows[tried]):
            labels = set(output[position].indices)
            if candidates is not None:
                labels &= set(candidates[row].indices)
            if result["verdicts"][row]["replayed"] != (labels == set(sets[row].indices)):
                where = f"{folder}: head {head}, {scope}, assignment {row}"
                failures.append(f"{where}: the replay of its witness by the head differs from the verdict")
    return failures


def _sentence(result: dict[str, Any]) -> str:
    outcome = f"{len(result['failures'])} FAILED" if result["failures"] else "all right"
    return (
        f"{result['folder']}: {result['proved']} verdicts proved ({result['argmaxable']} argmaxable, "
        f"{result['unargmaxable']} unargmaxable; {result['exact']} in exact arithmetic), "
        f"{result['unresolved']} unresolved, {result['seconds']:.2f} s: {outcome}\n"
        f"  also checked: {_list(result['claims']) or 'nothing'}, and every count\n"
        f"  not checked: {_list({**result['unchecked'], 'times, ranks of proofs, caveats': 1})}"
    )


def _list(claims: dict[str, int]) -> str:
    held = [(name, count) for name, count in claims.items() if count]
    return ", ".join(f"{count} {CLAIM_NAMES[name]}" if name in CLAIM_NAMES else name for name, count in held)
