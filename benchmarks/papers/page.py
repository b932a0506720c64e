"""Write docs/reproduced.md from benchmarks/papers/published.toml and benchmarks/results/*.json."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import paths
from benchmarks.common.markdown import header, row
from benchmarks.papers import amos, grivas, liu, shen
from benchmarks.papers.exhibits import NO_BREAK, Claim, Exhibit, Published, Results

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PUBLISHED = Path(__file__).with_name("published.toml")
PAGE = paths.DOCS / "reproduced.md"


class Study(NamedTuple):
    """Name the program of a study."""

    module: str
    takes_data: bool = True


# the name of a study's results → its program
STUDIES = {
    "bottleneck": Study("benchmarks.argmax.bottleneck", takes_data=False),
    "topk_losses": Study("benchmarks.heads.topk_losses", takes_data=False),
    "heads": Study("benchmarks.heads.measure"),
    "argmax_tables": Study("benchmarks.argmax.measure"),
    "eagle": Study("benchmarks.eagle.measure"),
    "eagle_simulation": Study("benchmarks.eagle.simulation", takes_data=False),
    "eagle_miml": Study("benchmarks.eagle.miml"),
    "overlap": Study("benchmarks.overlap.measure"),
    "overlap_costs": Study("benchmarks.overlap.costs"),
    "overlap_speed": Study("benchmarks.overlap.speed"),
}
# the exhibits of a section, in the order of the page → the function that builds it
SECTIONS: dict[tuple[str, ...], Callable[[Results, Published], Exhibit]] = {
    ("grivas-figure-2",): grivas.share_of_sets,
    ("grivas-figure-5",): grivas.regions,
    ("grivas-figure-6a",): grivas.reach_by_width,
    ("grivas-figure-6b",): grivas.f1_by_width,
    ("grivas-table-2", "grivas-table-3", "grivas-table-4"): grivas.argmax_counts,
    ("amos-figure-3",): amos.loss_costs,
    ("amos-figure-4",): amos.class_noise,
    ("shen-table-2",): shen.group_labels,
    ("shen-table-3",): shen.bags,
    ("shen-table-5",): shen.group_grid,
    ("shen-figure-3",): shen.regression,
    ("shen-figure-4",): shen.lost_precision,
    ("liu-table-3",): liu.programs,
    ("liu-table-4",): liu.matcher_update,
    ("liu-table-5",): liu.extra_time,
    ("liu-figure-2",): liu.merged_labels,
    ("liu-figure-3",): liu.copies,
}
HOLDS, MOSTLY, PART, NOT, OPEN = "holds", "mostly holds", "holds in part", "does not hold", "open"

ABOUT = """\
# The papers' tables and figures

This page shows what the four papers report, the results of the same experiments here, and whether the papers' claims
hold. Written by `python -m benchmarks.papers.measure --data DIR`, which runs the studies and can be interrupted and
resumed. Everything below, including the sentences, is generated from `benchmarks/papers/published.toml` and
`benchmarks/results/*.json`.

**Most of the published data are not available here.** Where the data are *other*, the experiment is the same and the
rows are not: do not compare the numbers of the two sides with each other, only the conclusions from each side. The
papers use none of our data sets except MNIST and Fashion-MNIST; only formulas and simulations have the *same* data.

A claim is counted: in how many comparisons of means it is right, here and, if the paper has the numbers, there. It
*holds* if it is right in all of them, *mostly holds* if each of its counts is above one half, *holds in part* if some
are, and *does not hold* if none is; it is *open* if nothing was run yet. The counts say nothing about certainty: the
pages of the studies have the deviations.
"""
STUDY_PAGES = {
    "heads": "[heads](heads.md)",
    "argmax_tables": "[output layers](argmaxability.md)",
    "eagle": "[groups](eagle.md)",
    "eagle_simulation": "[bags](miml.md)",
    "eagle_miml": "[bags](miml.md)",
    "overlap": "[several leaves](overlap.md)",
    "overlap_costs": "[several leaves](overlap.md)",
}


def load_published() -> dict[str, Any]:
    return tomllib.loads(PUBLISHED.read_text("utf-8"))


def load_results() -> Results:
    """Return the results of each study that ran."""
    files = {name: paths.RESULTS / f"{name}.json" for name in STUDIES}
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}


def write() -> None:
    PAGE.write_text(page(load_published(), load_results()), "utf-8")
    print(f"wrote {PAGE}")


def page(published: dict[str, Any], results: Results) -> str:
    entries: Published = {entry["key"]: entry for entry in published["exhibit"]}
    finished = set(finished_keys(results))
    exhibits = {keys: build(results, entries) for keys, build in SECTIONS.items()}
    return "\n".join(lines(published, entries, results, exhibits, finished)) + "\n"


def lines(
    published: dict[str, Any],
    entries: Published,
    results: Results,
    exhibits: dict[tuple[str, ...], Exhibit],
    finished: set[str],
) -> Iterator[str]:
    yield ABOUT
    yield from summary(published, entries, exhibits)
    last = ""
    for keys, exhibit in exhibits.items():
        paper = entries[keys[0]]["paper"]
        if paper != last:
            yield f"\n## {published['paper'][paper]['authors']}\n\n*{published['paper'][paper]['title']}*"
        last = paper
        yield from section([entries[key] for key in keys], exhibit, finished)
    yield "\n## Sources\n"
    yield ", ".join(f"`{name}.json` {digest(values)}" for name, values in results.items())


def finished_keys(results: Results) -> Iterator[str]:
    """Yield the keys of all finished cells, as `Exhibit.cells` names them."""
    for name in ("bottleneck", "topk_losses", "argmax_tables", "heads", "eagle", "overlap", "overlap_costs"):
        yield from results.get(name, {}).get("cells", {})
    miml = results.get("eagle_miml", {})
    for cell in miml.get("cells", {}).values():
        chosen = miml["chosen"].get(f"{cell['data']} / {cell['size']}")
        if chosen is not None and (cell["loss"], cell["value"]) == (chosen["loss"], chosen["value"][cell["method"]]):
            yield f"{cell['data']} / {cell['size']} / {cell['method']} / {cell['seed']}"
    for cell in results.get("eagle_simulation", {}).get("cells", ()):
        yield f"{cell['task']} {cell['spread']}"


def digest(values: dict[str, Any]) -> str:
    """Return the start of a checksum of results; the page is out of date if it differs."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def summary(published: dict[str, Any], entries: Published, exhibits: dict[tuple[str, ...], Exhibit]) -> Iterator[str]:
    verdicts = Counter(verdict(exhibit.claims) for exhibit in exhibits.values())
    parts = [f"{name} {verdicts[name]}" for name in (HOLDS, MOSTLY, PART, NOT, OPEN) if verdicts[name]]
    yield f"Of {len(exhibits)} claims: {', '.join(parts)}.\n"
    yield from header(["paper", "exhibit", "data", "the claim", "right in"])
    for keys, exhibit in exhibits.items():
        originals = [entries[key] for key in keys]
        name = title(originals)
        counts = ", ".join(f"{one.right}{NO_BREAK}of{NO_BREAK}{one.total}" for one in exhibit.claims if one.total)
        authors = published["paper"][originals[0]["paper"]]["authors"].split(",")[0]
        link = f"[{name}](#{slug(name)})"
        yield row([authors, link, originals[0]["data"], f"**{verdict(exhibit.claims)}**", counts or "–"])


def title(originals: list[dict[str, Any]]) -> str:
    return f"{', '.join(entry['table'] for entry in originals)}: {originals[0]['title']}"


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")


def section(originals: list[dict[str, Any]], exhibit: Exhibit, finished: set[str]) -> Iterator[str]:
    first = originals[0]
    yield f"\n### {title(originals)}\n"
    yield from wrap(f"**Paper.** {first['claim']} {' '.join(entry['published'] for entry in originals)}")
    yield ""
    yield from wrap(f"**Here.** {first['here']} {exhibit.note}")
    yield ""
    if exhibit.table:
        yield from [*exhibit.table, ""]
    yield from wrap(sentence(exhibit.claims))
    gap = missing(exhibit, finished)
    if gap:
        yield from ["", *wrap(gap)]
    for file, caption in exhibit.pictures:
        if (paths.DOCS / file).exists():
            yield f"\n![{caption}]({file})"
    yield ""
    yield from wrap(repeat(first["studies"]))


def sentence(claims: Iterable[Claim]) -> str:
    """Return the verdict and the counts."""
    parts = []
    for one in (one for one in claims if one.total):
        there = "" if one.published is None else f" (in the paper {one.published[0]} of {one.published[1]})"
        parts.append(f"{one.text}: {one.right} of {one.total}{there}")
    counts = "; ".join(parts) or "no cell of this claim was run yet"
    return f"**{verdict(claims).capitalize()}.** {counts[0].upper()}{counts[1:]}."


def verdict(claims: Iterable[Claim]) -> str:
    shares = [one.right / one.total for one in claims if one.total]
    if not shares:
        return OPEN
    if min(shares) == 1:
        return HOLDS
    if min(shares) > 0.5:
        return MOSTLY
    return PART if max(shares) > 0.5 else NOT


def missing(exhibit: Exhibit, finished: set[str]) -> str:
    """Return the number of cells that did not run yet, by data set."""
    counts = Counter(cell.data for cell in exhibit.cells if cell.key not in finished)
    if not counts:
        return ""
    sets = ", ".join(f"{data} {count}" for data, count in counts.items())
    return f"*Not run yet*: {sum(counts.values())} of {len(exhibit.cells)} cells ({sets})."


def repeat(studies: Iterable[str]) -> str:
    names = list(studies)
    commands = ", ".join(
        f"`python -m {STUDIES[name].module}{' --data DIR' if STUDIES[name].takes_data else ''}`" for name in names
    )
    pages = ", ".join(dict.fromkeys(STUDY_PAGES[name] for name in names if name in STUDY_PAGES))
    return f"Repeat: {commands}." + (f" More: {pages}." if pages else "")


def wrap(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
