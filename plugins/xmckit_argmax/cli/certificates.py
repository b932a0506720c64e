"""`xmckit certificates`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xmckit import LinearDecision

MOST_SHOWN = 20
NAMES = {
    "margin": "margins",
    "radius": "bounds on radii",
    "eps": "answers at eps",
    "ideal": "answers of the ideal layer",
    "replayed": "replays by the head (--model does)",
}
COPIES = ("verdicts.json", "certificates.npz")  # of the stage's files, at the top of the run


@click.group()
def certificates() -> None:
    """Check the proofs behind a run's verdicts."""


@certificates.command("check")
@click.argument("run")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--model", "against_model", is_flag=True,
              help="Also load the heads: is W theirs, and do they replay the witnesses as claimed?")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def check(run: str, root: str, against_model: bool, as_json: bool) -> None:
    """Prove every verdict of RUN anew, by a program that shares no code with the verifier.

    RUN is a run folder, its name, the name of a recipe for its newest verified run, or a folder with a verdicts.json.
    It reads W, the label sets and the certificates from disk; certificates are checked in exact arithmetic, witnesses
    with rigorous error bounds and in exact arithmetic where these do not decide. Margins, radii, the answers at eps
    and of the ideal layer are checked too, and all counts; what is not checked is said. Exit code 5 if anything fails.
    """
    from xmckit import VerificationError

    results = [_checked(folder, against_model) for folder in verified_folders(run, Path(root))]
    failures = [failure for result in results for failure in result["failures"]]
    if as_json:
        click.echo(json.dumps({"ok": not failures, "checks": results}, indent=2))
    else:
        for result in results:
            click.echo(_sentence(result))
    if failures:
        more = len(failures) - MOST_SHOWN
        shown = [*failures[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise VerificationError("\n".join([f"{len(failures)} checks failed:", *shown]))


def verified_folders(run: str, root: Path) -> list[Path]:
    """The folders with a verdicts.json and its proofs: of the run's verify stage and of `xmckit verify`."""
    from xmckit import StorageError
    from xmckit.runs.extensions import is_extension

    below = sorted(root.glob("*/*"), reverse=True)
    runs = [path for path in below if path.parent.name == run and not is_extension(path)]
    named = [path for path in below if path.name == run] or runs
    for place in [Path(run), *named]:
        if (place / "assignments.npz").is_file():
            return [place]
        found = [path.parent for part in ("stages", "verify") for path in sorted(place.glob(f"{part}/*/verdicts.json"))]
        if whole := [folder for folder in found if not folder.name.startswith(".")]:
            return whole
    raise StorageError(
        f"{run}: there are no verdicts here or below {root}. "
        "`xmckit verify RUN` makes some, and so does [verify] in a recipe."
    )


def _checked(folder: Path, against_model: bool) -> dict[str, Any]:
    from xmckit_argmax.checker.check import check

    report = check(folder)
    failures = [f"{folder}: {failure}" for failure in report.failures]
    if folder.parent.name == "stages":
        failures += _changed_copies(folder)
    unchecked = dict(report.unchecked)
    if against_model:
        failures += _other_weights(folder)
        unchecked.pop("replayed", None)
    return {
        "folder": str(folder),
        "proved": report.proved["argmaxable"] + report.proved["unargmaxable"],
        "argmaxable": report.proved["argmaxable"],
        "unargmaxable": report.proved["unargmaxable"],
        "unresolved": report.proved["unresolved"],
        "exact": report.exact,
        "claims": report.claims,
        "unchecked": unchecked,
        "seconds": round(report.seconds, 3),
        "failures": failures,
    }


def _changed_copies(folder: Path) -> list[str]:
    """What people read at the top of the run has to be what was checked."""
    copies = [folder.parents[1] / name for name in COPIES]
    return [
        f"{copy} is not the file of the same name in {folder}"
        for copy in copies
        if copy.is_file() and copy.read_bytes() != (folder / copy.name).read_bytes()
    ]


def _other_weights(folder: Path) -> list[str]:
    """Heads of the run whose decision is not the one that was verified."""
    import numpy as np

    import xmckit
    from xmckit import store
    from xmckit.runs.extensions import is_extension, read_extension

    run = folder.parents[1]
    trained = read_extension(run).run if is_extension(run) else xmckit.find_run(run, run.parent)
    wrong = []
    for name, head in zip(trained.head_names, xmckit.load(run).heads, strict=True):
        path = folder / f"decision-{name}.npz"
        decision = head.decision()
        if decision is None or not path.is_file():
            continue
        stored = store.read_arrays(path)
        same_bias = np.array_equal(stored["b"], decision.b) if decision.b is not None else "b" not in stored
        same = np.array_equal(stored["W"], decision.W) and same_bias and str(stored["rule"]) == decision.rule
        if not (same and _same_structure(stored, decision)):
            wrong.append(f"{path} is not the decision of the head {name} of {run}")
        else:
            wrong += _other_replays(folder, name, decision)
    return wrong


def _same_structure(stored: dict[str, Any], decision: LinearDecision) -> bool:
    import numpy as np

    names, structure = ("degree", "slack", "order"), decision.structure
    if structure is None:
        return not set(names) & stored.keys()
    return all(name in stored and np.array_equal(stored[name], getattr(structure, name)) for name in names)


def _other_replays(folder: Path, head: str, decision: LinearDecision) -> list[str]:
    """Witnesses of which the head's own scorer does not make what the verdicts say."""
    import numpy as np

    from xmckit import store

    if decision.replay is None:
        return []
    asked, proofs = store.read_csr(folder / "assignments.npz"), store.read_arrays(folder / "certificates.npz")
    wrong = []
    for result in store.read_json(folder / "verdicts.json")["results"]:
        if result["head"] != head or not result["verifiable"]:
            continue
        scope, rows = result["scope"], proofs[f"{head}/{result['scope']}/witness_of"]
        tried = [t for t, row in enumerate(rows) if result["verdicts"][row]["replayed"] is not None]
        listed = store.read_csr(folder / f"candidates-{head}.npz") if scope == "shortlist" else None
        counts = [np.diff(asked.indptr)[rows[tried]]] if decision.rule == "topk" else []
        with np.errstate(over="ignore"):
            output = decision.replay(proofs[f"{head}/{scope}/witness"][tried], *counts)
        for place, row in enumerate(rows[tried]):
            found, active = set(output[place].indices), set(asked[row].indices)
            if listed is not None:
                found &= set(listed[row].indices)
            if result["verdicts"][row]["replayed"] != (found == active):
                wrong.append(
                    f"{folder}: head {head}, {scope}, assignment {row}: the head replays its witness otherwise"
                )
    return wrong


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
    return ", ".join(f"{count} {NAMES[name]}" if name in NAMES else name for name, count in claims.items() if count)
