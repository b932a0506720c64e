"""`xmckit argmax hasse`"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.errors import printable
from xmckit.runs import read_verdicts
from xmckit_argmax.cli.common import PLOT, find_verified_folders

if TYPE_CHECKING:
    from xmckit import LinearDecision


@click.command()
@click.argument("source")
@click.option("--head", metavar="NAME", help="Head of the run; not needed if the run has one.")
@click.option("--label", "chosen", multiple=True, metavar="NAME", help="Label to include, by name or number.")
@runs_option
@PLOT
@json_option
def hasse(source: str, head: str | None, chosen: tuple[str, ...], root: str, plot: Path | None, as_json: bool) -> None:
    """Show which sets of a few labels can be output, and which never.

    SOURCE is a verified run (its folder, its name or the name of its recipe), or a file with a matrix: .npy, or .npz
    with W and optionally b and rule. If the layer has more than 6 labels, pick some with --label: the sets are then
    about these labels, and the others may be on or off.
    """
    from xmckit import store
    from xmckit_argmax.figures import hasse_diagram

    decision, names = _decision(source, head, Path(root))
    labels = _pick_labels(chosen, names)
    reached = _verify_all_sets(decision, labels)
    names = [names[label] for label in labels]
    if plot is not None:
        store.write_text(plot, hasse_diagram(len(labels), reached.__getitem__, names=names))
    never = [[names[position] for position in active] for active, can in reached.items() if not can]
    if as_json:
        print_json({"labels": names, "sets": len(reached), "never": never})
        return
    click.echo(f"{len(reached) - len(never)} of the {len(reached)} sets of {len(labels)} labels can be output")
    for active in never:
        click.echo(printable(f"never: {{{', '.join(active)}}}", keep=""))


def _decision(source: str, head: str | None, root: Path) -> tuple[LinearDecision, list[str]]:
    """Read the decision of a file or of a run's head, and the names of its labels."""
    from xmckit import UsageError
    from xmckit.data.saved import load_label_names

    path = Path(source)
    if path.suffix in (".npy", ".npz") and path.is_file():
        decision = _read_decision(path)
        return decision, [str(label) for label in range(len(decision.W))]
    folder = find_verified_folders(source, root)[0]
    results = read_verdicts(folder)["results"]
    heads = list(dict.fromkeys(result["head"] for result in results if result["verifiable"]))
    if head not in heads and (head is not None or len(heads) != 1):
        raise UsageError(f"--head must name one of the verified heads of {folder}: {', '.join(heads) or 'it has none'}")
    decision = _read_decision(folder / f"decision-{head or heads[0]}.npz")
    (data,) = folder.parents[1].glob("stages/*-data")
    return decision, list(load_label_names(data))


def _read_decision(path: Path) -> LinearDecision:
    import numpy as np

    from xmckit import DataError, LinearDecision, store

    arrays = store.read_arrays(path) if path.suffix == ".npz" else {"W": store.read_npy(path)}
    if "W" not in arrays:
        raise DataError(f"this file has no array W, only {', '.join(arrays) or 'nothing'}", path=path)
    W, b = arrays["W"], arrays.get("b")
    for name, array, shape in (("W", W, W.shape if W.ndim == 2 else None), ("b", b, W.shape[:1])):
        if array is not None and (
            array.shape != shape or array.dtype.kind not in "iuf" or not np.isfinite(array).all()
        ):
            expected = "finite numbers, one row for each label" if name == "W" else "a finite number for each label"
            raise DataError(f"{name} is {array.dtype} of shape {array.shape}, expected {expected}", path=path)
    rule: Any = str(arrays.get("rule", "sign"))
    if rule not in ("sign", "topk"):
        raise DataError(f"the rule is {rule!r}, expected sign or topk", path=path)
    return LinearDecision(W, b, rule)


def _pick_labels(chosen: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the numbers of the chosen labels, or of all labels if none is chosen."""
    from xmckit import UsageError
    from xmckit_argmax.figures import MOST_LABELS_OF_A_DIAGRAM

    if not chosen:
        if len(names) > MOST_LABELS_OF_A_DIAGRAM:
            raise UsageError(f"the layer has {len(names):,} labels: pick up to {MOST_LABELS_OF_A_DIAGRAM} with --label")
        return list(range(len(names)))
    picked = []
    for text in dict.fromkeys(chosen):
        if text in names:
            picked.append(names.index(text))
        elif text.isdecimal() and int(text) < len(names):
            picked.append(int(text))
        else:
            raise UsageError(f"no label is called '{text}', and it is not a number from 0 to {len(names) - 1}")
    return sorted(set(picked))


def _verify_all_sets(decision: LinearDecision, labels: Sequence[int]) -> dict[tuple[int, ...], bool]:
    """Return for every set of these labels, as positions, whether it can be output; UsageError if one is unresolved."""
    from dataclasses import replace

    import numpy as np
    from scipy.sparse import csr_matrix

    from xmckit import UsageError, make_context
    from xmckit_argmax.verifier import ArgmaxVerifier

    positions = range(len(labels))
    sets = [active for size in range(len(labels) + 1) for active in itertools.combinations(positions, size)]
    # only the rows of these labels count, as with a shortlist
    few = replace(decision, W=decision.W[list(labels)], b=None if decision.b is None else decision.b[list(labels)])
    rows = csr_matrix(np.asarray([[label in active for label in positions] for active in sets], dtype=np.float32))
    verdicts = ArgmaxVerifier(replay=False).verify(few, rows, context=make_context(workers=1))
    if unresolved := verdicts.counts()["unresolved"]:
        raise UsageError(f"{unresolved} of the {len(sets)} sets are unresolved: nothing is drawn")
    return {active: verdicts[row].status == "argmaxable" for row, active in enumerate(sets)}
