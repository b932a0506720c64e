"""`xmckit argmax hasse` and `xmckit argmax reach`"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xmckit import LinearDecision

ROOT = click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
PLOT = click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="The picture.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


@click.command()
@click.argument("source")
@click.option("--head", metavar="NAME", help="The head of the run; not needed where there is one.")
@click.option("--label", "chosen", multiple=True, metavar="NAME", help="A label to look at, by name or number.")
@ROOT
@PLOT
@JSON
def hasse(source: str, head: str | None, chosen: tuple[str, ...], root: str, plot: Path | None, as_json: bool) -> None:
    """Every set of a few labels: which can be output, and which never.

    SOURCE is a verified run (its folder, its name or the name of its recipe), or a file with a matrix: .npy, or .npz
    with W and where there are any b and rule. Of more than 6 labels some are picked with --label; the sets are then
    about these labels, whatever happens to the others.
    """
    from xmckit import store
    from xmckit_argmax.pictures import hasse_diagram

    decision, names = _decision(source, head, Path(root))
    labels = _picked(chosen, names)
    reached = _reached(decision, labels)
    names = [names[label] for label in labels]
    if plot is not None:
        store.write_text(plot, hasse_diagram(len(labels), reached.__getitem__, names=names))
    never = [[names[place] for place in active] for active, can in reached.items() if not can]
    if as_json:
        click.echo(json.dumps({"labels": names, "sets": len(reached), "never": never}, indent=2))
        return
    click.echo(f"{len(reached) - len(never)} of the {len(reached)} sets of {len(labels)} labels can be output")
    for active in never:
        click.echo(f"never: {{{', '.join(active)}}}")


@click.command()
@click.argument("runs", nargs=-1, required=True)
@ROOT
@PLOT
@JSON
def reach(runs: tuple[str, ...], root: str, plot: Path | None, as_json: bool) -> None:
    """How many of the same label sets heads of several widths can output: RUNS has one verified run for each width.

    The label sets are those of the first run's recipe, or else what `xmckit verify` first asked of it by name.
    `xmckit run mine.toml --sweep head.dim=8,16,32` with [verify] in the recipe makes them.
    """
    from xmckit import store

    found = [
        {
            "head": result["head"],
            "scope": result["scope"],
            "columns": result["dim"],
            "sets": sum(result["counts"].values()),
            "argmaxable": result["counts"]["argmaxable"],
            "at_eps": result["eps"]["argmaxable"] if any(result["eps"].values()) else None,
        }
        for answers in _about_the_same(list(dict.fromkeys(runs)), Path(root))
        for result in answers["results"]
        if result["verifiable"] and sum(result["counts"].values())
    ]
    found.sort(key=lambda one: (one["head"], one["scope"], one["columns"]))
    if plot is not None:
        store.write_text(plot, _reach_picture(found))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        eps = "" if one["at_eps"] is None else f", {one['at_eps']} at eps"
        scope = "" if one["scope"] == "full" else " (candidates)"
        click.echo(
            f"{one['head']}{scope}, {one['columns']} columns: {one['argmaxable']} of {one['sets']} label sets{eps}"
        )


def _about_the_same(runs: Sequence[str], root: Path) -> list[dict[str, Any]]:
    """Of each run the verdicts on the label sets that the first run's first ones are about."""
    from xmckit import UsageError, store
    from xmckit_argmax.cli.certificates import verified_folders

    asked, found = None, []
    for run in runs:
        every = [store.read_json(folder / "verdicts.json") for folder in verified_folders(run, root)]
        asked = asked or every[0]["files"]["assignments.npz"]
        same = [answers for answers in every if answers["files"]["assignments.npz"] == asked]
        if not same:
            raise UsageError(f"{run} was not verified for the label sets of {runs[0]}: they cannot be compared")
        found.append(same[0])
    return found


def _reach_picture(found: Sequence[dict[str, Any]]) -> str:
    from xmckit_argmax.pictures import ReachByDimension, reach_by_dimension

    layers = []
    for (head, scope), group in itertools.groupby(found, key=lambda one: (one["head"], one["scope"])):
        by_columns = {one["columns"]: one for one in group}
        sizes = list(by_columns.values())
        layers.append(
            ReachByDimension(
                head if scope == "full" else f"{head}, candidates",
                list(by_columns),
                exact=[one["argmaxable"] / one["sets"] for one in sizes],
                at_eps=None
                if any(one["at_eps"] is None for one in sizes)
                else [one["at_eps"] / one["sets"] for one in sizes],
            )
        )
    return reach_by_dimension(layers, sets="label sets")


def _decision(source: str, head: str | None, root: Path) -> tuple[LinearDecision, list[str]]:
    """What is to be looked at, and the names of its labels."""
    from xmckit import UsageError, store
    from xmckit.data.saved import load_label_names
    from xmckit_argmax.cli.certificates import verified_folders

    path = Path(source)
    if path.suffix in (".npy", ".npz") and path.is_file():
        decision = _stored(path)
        return decision, [str(label) for label in range(len(decision.W))]
    folder = verified_folders(source, root)[0]
    results = store.read_json(folder / "verdicts.json")["results"]
    heads = list(dict.fromkeys(result["head"] for result in results if result["verifiable"]))
    if head not in heads and (head is not None or len(heads) != 1):
        raise UsageError(f"--head names one of the verified heads of {folder}: {', '.join(heads) or 'there is none'}")
    decision = _stored(folder / f"decision-{head or heads[0]}.npz")
    (data,) = folder.parents[1].glob("stages/*-data")
    return decision, list(load_label_names(data))


def _stored(path: Path) -> LinearDecision:
    import numpy as np

    from xmckit import DataError, LinearDecision, store

    if path.suffix == ".npz":
        arrays = store.read_arrays(path)
    else:
        try:
            arrays = {"W": np.load(path, allow_pickle=False)}
        except (ValueError, EOFError) as error:
            raise DataError(f"this is no matrix in numpy's format: {error}", path=path) from None
    if "W" not in arrays:
        raise DataError(f"there is no array W in this file, only {', '.join(arrays) or 'nothing'}", path=path)
    rule: Any = str(arrays.get("rule", "sign"))
    return LinearDecision(arrays["W"], arrays.get("b"), rule)


def _picked(chosen: Sequence[str], names: Sequence[str]) -> list[int]:
    from xmckit import UsageError
    from xmckit_argmax.pictures import MOST_LABELS_OF_A_DIAGRAM

    if not chosen:
        if len(names) > MOST_LABELS_OF_A_DIAGRAM:
            raise UsageError(f"there are {len(names):,} labels: pick up to {MOST_LABELS_OF_A_DIAGRAM} with --label")
        return list(range(len(names)))
    picked = []
    for text in dict.fromkeys(chosen):
        if text in names:
            picked.append(names.index(text))
        elif text.isdecimal() and int(text) < len(names):
            picked.append(int(text))
        else:
            raise UsageError(f"no label is called '{text}', and it is no number from 0 to {len(names) - 1}")
    return sorted(set(picked))


def _reached(decision: LinearDecision, labels: Sequence[int]) -> dict[tuple[int, ...], bool]:
    """For every set of the labels, as places among them, whether it can be output; UsageError where that is open."""
    from dataclasses import replace

    import numpy as np
    from scipy.sparse import csr_matrix

    from xmckit import UsageError, make_context
    from xmckit_argmax.verifier import ArgmaxVerifier

    places = range(len(labels))
    sets = [active for size in range(len(labels) + 1) for active in itertools.combinations(places, size)]
    # only the rows of these labels count, as with a shortlist
    few = replace(decision, W=decision.W[list(labels)], b=None if decision.b is None else decision.b[list(labels)])
    asked = csr_matrix(np.asarray([[place in active for place in places] for active in sets], dtype=np.float32))
    verdicts = ArgmaxVerifier(replay=False).verify(few, asked, context=make_context(workers=1))
    if verdicts.counts()["unresolved"]:
        raise UsageError(f"{verdicts.counts()['unresolved']} of the {len(sets)} sets are unresolved: nothing is drawn")
    return {active: verdicts[row].status == "argmaxable" for row, active in enumerate(sets)}
