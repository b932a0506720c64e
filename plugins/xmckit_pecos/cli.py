"""`xmckit index`"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.errors import printable

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_matrix

    from xmckit import Matrix
    from xmckit.exhibits import Branch
    from xmckit.runs import Run
    from xmckit_pecos.labels.tree import LabelTree

BARS = 12  # lines of the histogram of leaf sizes
WIDTH = 40
LONGEST, SHOWN = 160, 6  # of an example: letters of its text, other labels


@click.group()
def index() -> None:
    """Look at the label trees of runs."""


@index.command("show")
@click.argument("run")
@click.option("--label", "label_name", metavar="NAME", help="Show where this label stands, and with which rows.")
@click.option("--index", "index_name", metavar="NAME", help="Which index, where the run has several.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(min=1), help="Labels to name.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(min=0), help="Rows to show of a leaf.")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def show(
    run: str, label_name: str | None, index_name: str | None, most: int, examples: int, root: str, as_json: bool
) -> None:
    """Show the label tree of RUN: its levels, the sizes of its leaves, or where one label stands, and why.

    RUN is a run folder, its name, or the name of a recipe for its newest finished run. A label may stand in
    several leaves (index `overlap`): for each there are the training rows of the label that reach it, and
    the labels that are near them there. Labels are near when the training rows that have them are: by the cosine of
    the sums of these rows.
    """
    from xmckit import find_run
    from xmckit.data.saved import load_label_names
    from xmckit_pecos.labels.tree import LabelTree

    found = find_run(run, Path(root))
    stage, folder = _tree_folder(found, index_name)
    name = stage.partition("-")[2]
    tree, names = LabelTree.load(folder), load_label_names(found.stage_folder("data"))
    told: dict[str, Any] = {"run": str(found.path), "index": name}
    if label_name is None:
        told |= _shape(tree) | _nodes(found, tree, names, most) | _made(folder)
        lines = _shape_lines(told)
    else:
        label = _label(label_name, names)
        told |= _label_facts(found, stage, folder, tree, label, names, most, examples)
        lines = _label_lines(told)
    text = "\n".join(printable(line, keep="") for line in lines)
    click.echo(json.dumps(told, indent=2, ensure_ascii=True) if as_json else text)


def _tree_folder(run: Run, wanted: str | None) -> tuple[str, Path]:
    """(stage, folder) of the run's tree: of an index, or of a head that built its own."""
    from xmckit import UsageError
    from xmckit.errors import nearest
    from xmckit_pecos.labels.tree import FILE

    trees: dict[str, tuple[str, Path]] = {}
    for stage in run.stages:
        kind, _, name = stage.name.partition("-")
        place = run.path / stage.folder / kind
        if kind in ("index", "head") and (place / FILE).is_file():
            trees.setdefault(name, (stage.name, place))
    if not trees:
        raise UsageError(f'{run.path} has no label tree: it comes with [index] use = "tree" or a head such as xrlinear')
    if wanted is not None and wanted not in trees:
        raise UsageError(f"{run.path} has no label tree '{wanted}'{nearest(wanted, trees)} (known: {', '.join(trees)})")
    return trees[wanted if wanted is not None else next(iter(trees))]


def _label(name: str, names: Sequence[str]) -> int:
    from xmckit import UsageError
    from xmckit.errors import nearest
    from xmckit_pecos.labels.tree import label_number

    if name in names:
        return names.index(name)
    if (number := label_number(name, len(names))) is not None:
        return number
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


def _nodes(run: Run, tree: LabelTree, names: Sequence[str], most: int) -> dict[str, Any]:
    """The upper nodes, as many as a report shows, each with the names of its labels that most training rows have."""
    import numpy as np

    from xmckit_pecos.labels.report import outline

    def told(branches: Sequence[Branch]) -> list[dict[str, Any]]:
        return [
            {
                "node": branch.title,
                "labels": branch.size,
                "frequent": [names[label] for label in branch.labels[:most]],
                "below": told(branch.branches),
                "more_below": max(0, (branch.of or 0) - len(branch.branches)),
            }
            for branch in branches
        ]

    _, Y = run.training_rows()
    shown = outline(tree, np.bincount(Y.indices, minlength=tree.labels))
    at_top = tree.level_sizes[1] if tree.depth > 1 else 1
    return {"tree": told(shown.branches), "more_nodes": at_top - len(shown.branches)}


def _made(folder: Path) -> dict[str, Any]:
    """What an index says about how it was made."""
    from xmckit import store
    from xmckit_pecos.tree import FACTS

    facts = store.read_json(folder / FACTS) if (folder / FACTS).is_file() else {}
    return {"facts": facts} if facts else {}


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
    lines += ["", "nodes, largest first: labels below, and those that most training rows have"]
    lines += _node_lines(told["tree"], told["more_nodes"], "  ")
    lines += ["", "labels in a leaf: number of leaves"]
    lines += _histogram([(entry["labels"], entry["leaves"]) for entry in told["leaf_sizes"]])
    facts = {**told.get("facts", {})}
    warnings = facts.pop("warnings", [])
    if facts:
        lines += ["", "how labels moved", *(f"  {name}: {value}" for name, value in _flat(facts))]
    return lines + ([""] if warnings else []) + warnings


def _node_lines(nodes: Sequence[dict[str, Any]], more: int, indent: str) -> list[str]:
    lines = []
    for node in nodes:
        named = f" {', '.join(node['frequent'])}" if node["frequent"] else ""
        dots = ", …" if len(node["frequent"]) < node["labels"] else ""
        lines.append(f"{indent}{node['node']} ({node['labels']:,}){named}{dots if named else ''}")
        lines += _node_lines(node["below"], node["more_below"], indent + "  ")
    return lines + ([f"{indent}and {more:,} more"] if more else [])


def _flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, value) of nested facts; numbers that stand together are in one line."""
    for name, value in facts.items():
        if not isinstance(value, dict):
            yield prefix + name, _number(value)
        elif any(isinstance(item, dict) for item in value.values()):
            yield from _flat(value, f"{prefix}{name}, ")
        else:
            yield prefix + name, ", ".join(f"{key} {_number(item)}" for key, item in value.items())


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


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


def _label_facts(
    run: Run, stage: str, folder: Path, tree: LabelTree, label: int, names: Sequence[str], most: int, examples: int
) -> dict[str, Any]:
    """The leaves of a label with the nearest of their labels and the rows that get there; the nearest of all labels."""
    import numpy as np

    from xmckit_pecos.labels.neighbours import similarities, visitors

    X, Y = run.training_rows(stage)
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    own = np.flatnonzero(Y[:, [label]].toarray().ravel())
    leaves = tree.leaves_of(label)
    found = visitors(_routed(folder, X[own]), leaves)
    rows_of = [own[each.rows] for each in found]
    shown = _examples(
        run, label, Y, names, [rows[: min(examples, each.own)] for rows, each in zip(rows_of, found, strict=True)]
    )

    def told(labels: np.ndarray, near: np.ndarray) -> list[dict[str, Any]]:
        best = np.lexsort((labels, -near))[: most + 1]
        return [
            {"label": names[other], "cosine": round(float(cosine), 4), "rows": int(counts[other])}
            for other, cosine in zip(labels[best].tolist(), near[best], strict=True)
            if other != label
        ][:most]

    copies = []
    for leaf, each, rows, some in zip(leaves.tolist(), found, rows_of, shown, strict=True):
        members = np.unique(tree.members(leaf))
        nearest = similarities(X, Y, label, members, rows[: each.own] if each.own else None)
        copies.append(
            {
                "leaf": int(leaf),
                "path": tree.leaf_name(leaf),
                "size": int(tree.leaf_sizes[leaf]),
                "rows": len(rows),
                "rows_first": each.own,
                "nearest": told(members, nearest),
                "examples": some,
            }
        )
    near = similarities(X, Y, label)
    return {
        "label": names[label],
        "number": label,
        "rows": len(own),
        "leaves": sorted(copies, key=lambda copy: (-copy["rows_first"], copy["leaf"])),
        "nearest": told(np.flatnonzero(near > 0), near[near > 0]),
    }


def _routed(folder: Path, X: Matrix) -> csr_matrix:
    """The leaves that rows reach, as many as are searched for a shortlist."""
    from xmckit import store
    from xmckit_pecos.labels.tree import LabelTree
    from xmckit_pecos.linear.model import Model
    from xmckit_pecos.tree import MATCHER, reached_leaves
    from xmckit_pecos.xrlinear import MODEL

    depth, params = LabelTree.load(folder).depth, store.read_json(folder / "params.json")
    matcher = None
    if depth > 1:
        # a head's model has the level of the labels below its matcher
        stored = folder / (MATCHER if (folder / MATCHER).is_dir() else MODEL)
        matcher = Model(Model.load(stored).levels[: depth - 1])
    return reached_leaves(matcher, X, params["beam"], 1)


def _examples(
    run: Run, label: int, Y: csr_matrix, names: Sequence[str], chosen: Sequence[np.ndarray]
) -> list[list[dict[str, Any]]]:
    """Rows as people know them: by name and text where there are any, and by their other labels."""
    from xmckit.data.saved import load_split

    train = load_split(run.stage_folder("data") / "train")

    def told(row: int) -> dict[str, Any]:
        others = [names[other] for other in Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist() if other != label]
        return {
            "row": row,
            **({"name": train.names[row]} if train.names is not None else {}),
            **({"text": train.texts[row]} if train.texts is not None else {}),
            "other_labels": others,
        }

    return [[told(row) for row in rows.tolist()] for rows in chosen]


def _label_lines(told: dict[str, Any]) -> list[str]:
    lines = [
        f"{told['run']}: index {told['index']}",
        "",
        f"{told['label']} (label {told['number']}): {told['rows']:,} training rows",
    ]
    if len(told["leaves"]) > 1:
        lines[-1] += f", {len(told['leaves'])} leaves"
    for leaf in told["leaves"]:
        lines += ["", f"in leaf {leaf['path']}, with {leaf['size'] - 1:,} other labels, the nearest of which are"]
        lines += _near_lines(leaf["nearest"])
        lines += _row_lines(leaf, len(told["leaves"]) > 1)
    if not told["leaves"]:
        lines += ["", "in no leaf: it is on no row that the tree was built from"]
    lines += ["", "the nearest of all labels"]
    return lines + _near_lines(told["nearest"])


def _row_lines(leaf: dict[str, Any], several: bool) -> list[str]:
    first = f", {leaf['rows_first']:,} of them before its other leaves" if several else ""
    lines = [f"reached by {leaf['rows']:,} of its training rows{first}{', such as' if leaf['examples'] else ''}"]
    for example in leaf["examples"]:
        text = " ".join(example.get("text", "").split())
        others = example["other_labels"]
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        what = [str(example.get("name", f"row {example['row']:,}"))]
        what += [text[: LONGEST - 1] + "…" if len(text) > LONGEST else text] if text else []
        what += [f"also {', '.join(others[:SHOWN])}{more}" if others else "no other label"]
        lines.append("  " + "; ".join(what))
    return lines


def _near_lines(near: Sequence[dict[str, Any]]) -> list[str]:
    if not near:
        return ["  none"]
    return [f"  {item['cosine']:.3f}  {item['label']}  ({_rows(item['rows'])})" for item in near]


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"
