"""docs/reproduced.md, from benchmarks/papers/published.toml and benchmarks/results/*.json (see papers.py)."""

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
from benchmarks.common.study import row
from benchmarks.papers import amos, grivas, liu, shen
from benchmarks.papers.exhibits import NO_BREAK, Claim, Published, Results, Shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PUBLISHED = Path(__file__).with_name("published.toml")
PAGE = paths.DOCS / "reproduced.md"


class Study(NamedTuple):
    """A study behind the page."""

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
# the exhibits of a section, in the order of the page → how it is made
SECTIONS: dict[tuple[str, ...], Callable[[Results, Published], Shown]] = {
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
    ("shen-figure-4",): shen.lost,
    ("liu-table-3",): liu.programs,
    ("liu-table-4",): liu.matcher_update,
    ("liu-table-5",): liu.extra_time,
    ("liu-figure-2",): liu.merged_labels,
    ("liu-figure-3",): liu.copies,
}
HOLDS, MOSTLY, PART, NOT, OPEN = "holds", "mostly holds", "holds in part", "does not hold", "open"

ABOUT = """\
# The papers' tables and figures

What the four papers report, what came out in the same experiments here, and whether their claims hold. Written by
`python -m benchmarks.papers.measure --data DIR`, which runs the studies behind it and goes on where it was ended;
everything below, the sentences too, is made from `benchmarks/papers/published.toml` and `benchmarks/results/*.json`.

**Most of the published data cannot be had here.** Where the data are *other* ones, the experiment is the same and the
rows are not: the numbers of the two sides are not to be compared with each other, only what follows from each side by
itself. None of the papers uses bibtex, delicious or any other set of ours but MNIST and Fashion-MNIST; what has the
*same* data are formulas and simulations.

A claim is counted: in how many comparisons of means it is right, here and, where the paper has the numbers, there. It
*holds* if it is right in all of them, *mostly* if each of its counts is above one half, *in part* if some are, and does
not if none is; it is *open* where nothing was run yet. No comparison says how sure it is: the pages of the studies have
the deviations.
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
    """What each study has found so far; nothing for one that was never run."""
    files = {name: paths.RESULTS / f"{name}.json" for name in STUDIES}
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}


def write() -> None:
    PAGE.write_text(page(load_published(), load_results()), "utf-8")
    print(f"wrote {PAGE}")


def page(published: dict[str, Any], results: Results) -> str:
    entries: Published = {entry["key"]: entry for entry in published["exhibit"]}
    there = set(keys_of(results))
    shown = {keys: make(results, entries) for keys, make in SECTIONS.items()}
    return "\n".join(lines(published, entries, results, shown, there)) + "\n"


def lines(
    published: dict[str, Any],
    entries: Published,
    results: Results,
    shown: dict[tuple[str, ...], Shown],
    there: set[str],
) -> Iterator[str]:
    yield ABOUT
    yield from summary(published, entries, shown)
    last = ""
    for keys, found in shown.items():
        paper = entries[keys[0]]["paper"]
        if paper != last:
            yield f"\n## {published['paper'][paper]['authors']}\n\n*{published['paper'][paper]['title']}*"
        last = paper
        yield from section([entries[key] for key in keys], found, there)
    yield "\n## Made from\n"
    yield ", ".join(f"`{name}.json` {digest(found)}" for name, found in results.items())


def keys_of(results: Results) -> Iterator[str]:
    """Of all cells that are there, as `asked` names them."""
    for name in ("bottleneck", "topk_losses", "argmax_tables", "heads", "eagle", "overlap", "overlap_costs"):
        yield from results.get(name, {}).get("cells", {})
    miml = results.get("eagle_miml", {})
    for cell in miml.get("cells", {}).values():
        chosen = miml["chosen"].get(f"{cell['data']} / {cell['size']}")
        if chosen is not None and (cell["loss"], cell["value"]) == (chosen["loss"], chosen["value"][cell["method"]]):
            yield f"{cell['data']} / {cell['size']} / {cell['method']} / {cell['seed']}"
    for cell in results.get("eagle_simulation", {}).get("cells", ()):
        yield f"{cell['task']} {cell['spread']}"


def digest(found: dict[str, Any]) -> str:
    """The beginning of a checksum of what a study found: the page is out of date where it differs."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]


def summary(published: dict[str, Any], entries: Published, shown: dict[tuple[str, ...], Shown]) -> Iterator[str]:
    verdicts = Counter(verdict(found.claims) for found in shown.values())
    parts = [f"{name} {verdicts[name]}" for name in (HOLDS, MOSTLY, PART, NOT, OPEN) if verdicts[name]]
    yield f"Of {len(shown)} claims: {', '.join(parts)}.\n"
    yield row(["paper", "exhibit", "data", "the claim", "right in"])
    yield row(["---"] * 5)
    for keys, found in shown.items():
        exhibits = [entries[key] for key in keys]
        name = title(exhibits)
        counts = ", ".join(f"{one.right}{NO_BREAK}of{NO_BREAK}{one.of}" for one in found.claims if one.of)
        authors = published["paper"][exhibits[0]["paper"]]["authors"].split(",")[0]
        link = f"[{name}](#{slug(name)})"
        yield row([authors, link, exhibits[0]["data"], f"**{verdict(found.claims)}**", counts or "–"])


def title(exhibits: list[dict[str, Any]]) -> str:
    return f"{', '.join(entry['table'] for entry in exhibits)}: {exhibits[0]['title']}"


def slug(heading: str) -> str:
    """Where a heading is on the page."""
    return re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")


def section(exhibits: list[dict[str, Any]], found: Shown, there: set[str]) -> Iterator[str]:
    first = exhibits[0]
    yield f"\n### {title(exhibits)}\n"
    yield from filled(f"**Paper.** {first['claim']} {' '.join(entry['published'] for entry in exhibits)}")
    yield ""
    yield from filled(f"**Here.** {first['here']} {found.note}")
    yield ""
    if found.table:
        yield from [*found.table, ""]
    yield from filled(sentence(found.claims))
    gap = missing(found, there)
    if gap:
        yield from ["", *filled(gap)]
    for file, caption in found.pictures:
        if (paths.DOCS / file).exists():
            yield f"\n![{caption}]({file})"
    yield ""
    yield from filled(repeat(first["studies"]))


def sentence(claims: Iterable[Claim]) -> str:
    """What the counts come to."""
    parts = []
    for one in (one for one in claims if one.of):
        there = "" if one.published is None else f" (in the paper {one.published[0]} of {one.published[1]})"
        parts.append(f"{one.text}: {one.right} of {one.of}{there}")
    told = "; ".join(parts) or "no cell that it could be counted on was run yet"
    return f"**{verdict(claims).capitalize()}.** {told[0].upper()}{told[1:]}."


def verdict(claims: Iterable[Claim]) -> str:
    shares = [one.right / one.of for one in claims if one.of]
    if not shares:
        return OPEN
    if min(shares) == 1:
        return HOLDS
    if min(shares) > 0.5:
        return MOSTLY
    return PART if max(shares) > 0.5 else NOT


def missing(found: Shown, there: set[str]) -> str:
    """Which cells of the study were not run yet, by data set."""
    gone = Counter(cell.data for cell in found.asked if cell.key not in there)
    if not gone:
        return ""
    sets = ", ".join(f"{data} {count}" for data, count in gone.items())
    return f"*Not run yet*: {sum(gone.values())} of {len(found.asked)} cells ({sets})."


def repeat(studies: Iterable[str]) -> str:
    names = list(studies)
    commands = ", ".join(
        f"`python -m {STUDIES[name].module}{' --data DIR' if STUDIES[name].takes_data else ''}`" for name in names
    )
    pages = ", ".join(dict.fromkeys(STUDY_PAGES[name] for name in names if name in STUDY_PAGES))
    return f"Repeat: {commands}." + (f" More: {pages}." if pages else "")


def filled(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
