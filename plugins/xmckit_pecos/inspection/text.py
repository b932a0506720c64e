"""Write facts about a label tree as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xmckit.errors import counted

BARS = 12  # lines of the histogram of leaf sizes
WIDTH = 40
LONGEST_TEXT, MOST_LABELS = 160, 6  # of an example


def tree_text(facts: dict[str, Any]) -> list[str]:
    copies = facts["pseudo_labels"] - facts["labels"]
    extra = f", {facts['labels_in_several_leaves']:,} of them in several leaves ({copies:,} copies)" if copies else ""
    lines = [
        f"{facts['run']}: index {facts['index']}",
        "",
        f"{facts['labels']:,} labels in {facts['leaves']:,} leaves, {facts['depth']} levels below the root{extra}",
        "",
        f"{'level':>5}  {'nodes':>9}  children (smallest, median, largest)",
    ]
    for level in facts["levels"]:
        children = level["children"]
        labels = "  labels" if level["level"] == facts["depth"] - 1 else ""
        lines.append(
            f"{level['level']:>5}  {level['nodes']:>9,}  "
            f"{children['smallest']:,}, {children['median']:g}, {children['largest']:,}{labels}"
        )
    lines += ["", "nodes, largest first, with the number of their labels and the most frequent ones"]
    lines += _node_lines(facts["tree"], facts["more_nodes"], "  ")
    lines += ["", "labels in a leaf: number of leaves"]
    lines += _histogram([(entry["labels"], entry["leaves"]) for entry in facts["leaf_sizes"]])
    moves = dict(facts.get("facts", {}))
    warnings = moves.pop("warnings", [])
    if moves:
        lines += ["", "how labels moved", *(f"  {name}: {value}" for name, value in _flatten(moves))]
    return lines + ([""] if warnings else []) + warnings


def _node_lines(nodes: Sequence[dict[str, Any]], more: int, indent: str) -> list[str]:
    lines = []
    for node in nodes:
        frequent = f" {', '.join(node['frequent'])}" if node["frequent"] else ""
        dots = ", …" if frequent and len(node["frequent"]) < node["labels"] else ""
        lines.append(f"{indent}{node['node']} ({node['labels']:,}){frequent}{dots}")
        lines += _node_lines(node["below"], node["more_below"], indent + "  ")
    return lines + ([f"{indent}and {more:,} more"] if more else [])


def _flatten(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of nested facts. The numbers of an innermost dict share one line."""
    for name, value in facts.items():
        if not isinstance(value, dict):
            yield prefix + name, _number(value)
        elif any(isinstance(item, dict) for item in value.values()):
            yield from _flatten(value, f"{prefix}{name}, ")
        else:
            yield prefix + name, ", ".join(f"{key} {_number(item)}" for key, item in value.items())


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _histogram(sizes: Sequence[tuple[int, int]]) -> list[str]:
    """Draw bars of leaf sizes, in at most `BARS` ranges."""
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


def label_text(facts: dict[str, Any]) -> list[str]:
    leaves = facts["leaves"]
    several = f", {len(leaves)} leaves" if len(leaves) > 1 else ""
    lines = [
        f"{facts['run']}: index {facts['index']}",
        "",
        f"{facts['label']} (label {facts['number']}): {facts['rows']:,} training rows{several}",
    ]
    for leaf in leaves:
        lines += ["", f"in leaf {leaf['path']}, with {leaf['size'] - 1:,} other labels; the nearest of them are"]
        lines += _nearest_lines(leaf["nearest"])
        first = f", {leaf['rows_first']:,} of them before its other leaves" if several else ""
        such = ", such as" if leaf["examples"] else ""
        lines.append(f"reached by {leaf['rows']:,} of its training rows{first}{such}")
        lines += [f"  {_example(example)}" for example in leaf["examples"]]
    if not leaves:
        lines += ["", "in no leaf: it is on no row that the tree was built from"]
    return [*lines, "", "the nearest of all labels", *_nearest_lines(facts["nearest"])]


def _example(example: dict[str, Any]) -> str:
    parts = [str(example.get("name", f"row {example['row']:,}"))]
    if text := " ".join(example.get("text", "").split()):
        parts.append(text[: LONGEST_TEXT - 1] + "…" if len(text) > LONGEST_TEXT else text)
    others = example["other_labels"]
    more = f" and {len(others) - MOST_LABELS} more" if len(others) > MOST_LABELS else ""
    parts.append(f"also {', '.join(others[:MOST_LABELS])}{more}" if others else "no other label")
    return "; ".join(parts)


def _nearest_lines(labels: Sequence[dict[str, Any]]) -> list[str]:
    return [f"  {item['cosine']:.3f}  {item['label']}  ({counted(item['rows'], 'row')})" for item in labels] or [
        "  none"
    ]
