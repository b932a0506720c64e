"""`xmckit index`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xmckit import Matrix
    from xmckit.runs import Run
    from xmckit_pecos.label_tree import LabelTree

BARS = 12  # lines of the histogram of leaf sizes
WIDTH = 40


@click.group()
def index() -> None:
    """Look at the label trees of runs."""


@index.command("show")
@click.argument("run")
@click.option("--label", "label_name", metavar="NAME", help="Show where this label stands and which labels are near.")
@click.option("--index", "index_name", metavar="NAME", help="Which index, where the run has several.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(min=1), help="Labels to name.")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def show(run: str, label_name: str | None, index_name: str | None, most: int, root: str, as_json: bool) -> None:
    """Show the label tree of RUN: its levels, the sizes of its leaves, or one label's leaf and neighbours.

    RUN is a run folder, its name, or the name of a recipe for its newest finished run. Labels are near when the
    training rows that have them are: by the cosine of the sums of these rows.
    """
    from xmckit import find_run
    from xmckit.data.saved import load_label_names
    from xmckit_pecos.label_tree import LabelTree

    found = find_run(run, Path(root))
    name, folder = _tree_folder(found, index_name)
    tree = LabelTree.load(folder)
    told: dict[str, Any] = {"run": str(found.path), "index": name}
    if label_name is None:
        told |= _shape(tree)
        lines = _shape_lines(told)
    else:
        names = load_label_names(found.stage_folder("data"))
        label = _label(label_name, names)
        told |= _label_facts(found, tree, label, names, most)
        lines = _label_lines(told)
    click.echo(json.dumps(told, indent=2, ensure_ascii=True) if as_json else "\n".join(map(_printable, lines)))


def _tree_folder(run: Run, wanted: str | None) -> tuple[str, Path]:
    """(name, folder) of the run's tree: of an index, or of a head that built its own."""
    from xmckit import UsageError
    from xmckit.errors import nearest
    from xmckit_pecos.label_tree import FILE

    trees: dict[str, Path] = {}
    for stage in run.manifest["stages"]:
        kind, _, name = stage["name"].partition("-")
        place = run.path / stage["folder"] / kind
        if kind in ("index", "head") and (place / FILE).is_file():
            trees.setdefault(name, place)
    if not trees:
        raise UsageError(f'{run.path} has no label tree: it comes with [index] use = "tree" or a head such as xrlinear')
    if wanted is not None and wanted not in trees:
        raise UsageError(f"{run.path} has no label tree '{wanted}'{nearest(wanted, trees)} (known: {', '.join(trees)})")
    name = wanted if wanted is not None else next(iter(trees))
    return name, trees[name]


def _label(name: str, names: Sequence[str]) -> int:
    from xmckit import UsageError
    from xmckit.errors import nearest

    if name in names:
        return names.index(name)
    if name.isascii() and name.isdigit() and int(name) < len(names):
        return int(name)
    raise UsageError(f"there is no label '{name}'{nearest(name, names)}")


def _shape(tree: LabelTree) -> dict[str, Any]:
    import numpy as np

    levels = []
    for level, size in enumerate(tree.level_sizes[:-1]):
        children = np.bincount(tree.parents[level], minlength=size)
        levels.append(
            {
                "level": level,
                "nodes": size,
                "children": {
                    "smallest": int(children.min()),
                    "median": float(np.median(children)),
                    "largest": int(children.max()),
                },
            }
        )
    sizes, counts = np.unique(tree.leaf_sizes, return_counts=True)
    return {
        "labels": tree.labels,
        "pseudo_labels": len(tree.label_of),
        "labels_in_several_leaves": int((np.bincount(tree.label_of, minlength=tree.labels) > 1).sum()),
        "depth": tree.depth,
        "leaves": tree.leaves,
        "levels": levels,
        "leaf_sizes": [
            {"labels": size, "leaves": count} for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)
        ],
    }


def _shape_lines(told: dict[str, Any]) -> list[str]:
    lines = [f"{told['run']}: index {told['index']}", ""]
    copies = told["pseudo_labels"] - told["labels"]
    extra = f", {told['labels_in_several_leaves']:,} of them in several leaves ({copies:,} copies)" if copies else ""
    lines.append(
        f"{told['labels']:,} labels in {told['leaves']:,} leaves, {told['depth']} levels below the root{extra}"
    )
    lines += ["", f"{'level':>5}  {'nodes':>9}  children (smallest, median, largest)"]
    for level in told["levels"]:
        children = level["children"]
        what = "  labels" if level["level"] == told["depth"] - 1 else ""
        lines.append(
            f"{level['level']:>5}  {level['nodes']:>9,}  "
            f"{children['smallest']:,}, {children['median']:g}, {children['largest']:,}{what}"
        )
    lines += ["", "labels in a leaf: number of leaves"]
    return lines + _histogram([(entry["labels"], entry["leaves"]) for entry in told["leaf_sizes"]])


def _histogram(sizes: Sequence[tuple[int, int]]) -> list[str]:
    """Bars of leaf sizes, in at most `BARS` ranges."""
    lowest, highest = sizes[0][0], sizes[-1][0]
    step = max(1, -(-(highest - lowest + 1) // BARS))
    counts: dict[int, int] = {}
    for size, count in sizes:
        start = lowest + (size - lowest) // step * step
        counts[start] = counts.get(start, 0) + count
    most = max(counts.values())
    lines = []
    for start in range(lowest, highest + 1, step):
        count = counts.get(start, 0)
        last = min(start + step - 1, highest)
        span = f"{start:,}" if last == start else f"{start:,}–{last:,}"
        lines.append(f"{span:>15}  {'█' * -(-WIDTH * count // most)} {count:,}".rstrip())
    return lines


def _label_facts(run: Run, tree: LabelTree, label: int, names: Sequence[str], most: int) -> dict[str, Any]:
    """The leaves of a label with the nearest of their labels, and the nearest of all labels."""
    import numpy as np

    from xmckit_pecos.neighbours import similarities

    X, Y = training_rows(run)
    near = similarities(X, Y, label)
    counts = np.bincount(Y.indices, minlength=Y.shape[1])

    def told(labels: np.ndarray) -> list[dict[str, Any]]:
        others = np.unique(labels[labels != label])
        best = others[np.lexsort((others, -near[others]))][:most]
        return [
            {"label": names[other], "cosine": round(float(near[other]), 4), "rows": int(counts[other])}
            for other in best.tolist()
        ]

    leaves = [
        {
            "leaf": int(leaf),
            "path": tree.leaf_name(leaf),
            "size": int(tree.leaf_sizes[leaf]),
            "nearest": told(tree.members(leaf)),
        }
        for leaf in tree.leaves_of(label).tolist()
    ]
    return {
        "label": names[label],
        "number": label,
        "rows": int(counts[label]),
        "leaves": leaves,
        "nearest": told(np.flatnonzero(near > 0)),
    }


def training_rows(run: Run) -> tuple[Matrix, Any]:
    """(X, Y) of a run's training rows as its indexes saw them, the validation share included."""
    from xmckit import store
    from xmckit.data.saved import load_split

    features = run.stage_folder("features")
    train = run.stage_folder("data") / "train"
    if store.read_json(features / "features.json").get("as_in_data"):
        X = load_split(train).matrix
    else:
        X = store.read_matrix(features / "X.trn.npz")
    relabelled = [stage["name"] for stage in run.manifest["stages"] if stage["name"].startswith("labels-")]
    source = run.stage_folder(relabelled[-1]) if relabelled else train
    return X, store.read_csr(source / "Y.npz")


def _label_lines(told: dict[str, Any]) -> list[str]:
    lines = [
        f"{told['run']}: index {told['index']}",
        "",
        f"{told['label']} (label {told['number']}): {told['rows']:,} training rows",
    ]
    for leaf in told["leaves"]:
        lines += ["", f"in leaf {leaf['path']}, with {leaf['size'] - 1:,} other labels, the nearest of which are"]
        lines += _near_lines(leaf["nearest"])
    if not told["leaves"]:
        lines += ["", "in no leaf: it is on no row that the tree was built from"]
    lines += ["", "the nearest of all labels"]
    return lines + _near_lines(told["nearest"])


def _near_lines(near: Sequence[dict[str, Any]]) -> list[str]:
    if not near:
        return ["  none"]
    return [f"  {item['cosine']:.3f}  {item['label']}  ({item['rows']:,} rows)" for item in near]


def _printable(text: str) -> str:
    """Names come from data: nothing in them may steer a terminal."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)
