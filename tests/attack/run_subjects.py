"""Small finished runs for the attack on run folders, and the commands that read them.

<folder>/data.jsonl  new.jsonl  rows.jsonl      data, labels to add, labelled rows to evaluate
<folder>/runs/<recipe>/<run>                    runs of five recipes; `wide` has other rows and labels
<folder>/runs/both  <folder>/runs/added         an ensemble of two of them, and one with an added label
<folder>/outside/stage                          a stage folder that no command may open
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

import xmckit
from xmckit.cli import xmckit as program

RUNS, OUTSIDE, ENSEMBLE, EXTENSION = "runs", "outside", "both", "added"
TOPICS = {
    "fruit": "apple pear plum cherry",
    "metal": "iron copper zinc silver",
    "river": "rhine danube elbe weser",
    "planet": "mars venus saturn jupiter",
}
BASE = (
    'validation = 0.2\nworkers = 1\n[data]\nuse = "files"\npath = "{data}"\n[features]\nuse = "tfidf"\nmin_count = 1\n'
)
BSL = '[[head]]\nuse = "bsl"\nepochs = 1\nbatch = 16\ndim = 3\n[head.encoder]\nuse = "sparse-linear"\nwidth = 4\n'
TREE = '[[index]]\nuse = "tree"\nleaf_size = 2\n[[head]]\nuse = "xrlinear"\n'
DFT = '[[head]]\nuse = "dft"\nactive = 1\nslack = 1\nepochs = 1\nbatch = 16\ncandidates = 3\n'
VERIFY = '[verify]\nuse = "argmax"\nmost = 4\n'
RECIPES = {
    "plain": BSL + VERIFY,
    "tree": TREE,
    "nearest": '[[index]]\nuse = "faiss"\n' + DFT + VERIFY,
    "grouped": '[[labels]]\nuse = "eagle"\n[[head]]\nuse = "popularity"\n' + BSL,
    "wide": BSL,
}


def make_runs(folder: Path) -> None:
    """Fill an empty folder with the runs; this takes some seconds."""
    for name, topics in (("data", TOPICS), ("wide", {**TOPICS, "tool": "saw axe file drill", "bird": "owl jay kite"})):
        (folder / f"{name}.jsonl").write_text("".join(map(_line, _rows(topics, 12 if name == "data" else 16))))
    (folder / "rows.jsonl").write_text("".join(map(_line, _rows(TOPICS, 2))))
    (folder / "new.jsonl").write_text('{"label": "sky", "examples": ["mars cloud", "venus cloud"]}\n')
    for name, text in RECIPES.items():
        recipe = folder / f"{name}.toml"
        recipe.write_text(BASE.format(data=folder / ("wide.jsonl" if name == "wide" else "data.jsonl")) + text)
        xmckit.run(recipe, root=folder / RUNS)
    paths = {name: run_of(folder, name) for name in RECIPES}
    _call("ensemble", paths["plain"], paths["tree"], "--output", folder / RUNS / ENSEMBLE)
    _call("labels", "add", paths["nearest"], folder / "new.jsonl", "--output", folder / RUNS / EXTENSION)
    _call("verify", paths["plain"], "--most", "2")
    shutil.copytree(xmckit.find_run(paths["plain"], folder).stage_folder("data"), folder / OUTSIDE / "stage")


def _rows(topics: dict[str, str], count: int) -> list[dict[str, object]]:
    rows = []
    for number in range(count):
        for place, (topic, words) in enumerate(topics.items()):
            word, other = words.split()[number % 3], list(topics)[(place + number) % len(topics)]
            row = {
                "text": f"{word} {words.split()[-1]} {other}",
                "labels": sorted({topic, other}),
                "id": f"{topic} {number}",
            }
            rows.append({**row, "group": f"g{number // 2}", "split": "test" if number % 4 == 3 else "train"})
    return rows


def _line(row: dict[str, object]) -> str:
    return json.dumps(row) + "\n"


def _call(*arguments: object) -> None:
    CliRunner().invoke(program, ["-q", *map(str, arguments)], catch_exceptions=False, standalone_mode=False)


def run_of(folder: Path, recipe: str) -> Path:
    """Return the folder of the only run of a recipe."""
    (path,) = (folder / RUNS / recipe).iterdir()
    return path


class Command(NamedTuple):
    """A command line; `writes` says that it changes or adds files below the runs."""

    words: tuple[str, ...]
    writes: bool = False

    @property
    def slow(self) -> bool:
        return "--resume" in self.words

    @property
    def name(self) -> str:
        return " ".join(word for word in self.words if "/" not in word)


def commands(folder: Path) -> list[Command]:
    """Return the commands that read runs, on the runs below `folder`."""
    root, rows, new, made = folder / RUNS, folder / "rows.jsonl", folder / "new.jsonl", folder / RUNS / "made"
    plain, tree, nearest, grouped, _ = (str(run_of(folder, name)) for name in RECIPES)
    both, added, of = str(root / ENSEMBLE), str(root / EXTENSION), ("--runs", str(root))
    reading = [
        ("runs", "ls", *of),
        ("runs", "ls", "--json", *of),
        ("runs", "show", "plain", *of),
        *(("runs", "check", run, *of) for run in (plain, nearest)),
        *(
            (*words, run)
            for run in (plain, tree, nearest, grouped)
            for words in [("runs", "show"), ("runs", "show", "--json")]
        ),
        *(("predict", run, "apple mars") for run in (plain, tree, nearest, grouped, both, added)),
        *(("predict", run, "apple mars", "--labels", "--json") for run in (plain, tree, nearest, both)),
        *(("evaluate", run, str(rows)) for run in (plain, tree, grouped, both, added)),
        ("ensemble", plain, tree, grouped),
        ("compare", plain, tree, nearest, "--draws", "100"),
        ("compare", plain, grouped, "--draws", "100", "--json"),
        *(("certificates", "check", run) for run in (plain, nearest)),
        ("certificates", "check", plain, "--model"),
        ("argmax", "reach", plain, nearest),
        ("argmax", "hasse", plain),
        ("labels", "inspect", grouped),
        ("labels", "inspect", grouped, "--group", "g1"),
        *(("search", run, "apple") for run in (plain, nearest, added)),
        ("search", nearest, "fruit", "--json"),
        ("index", "show", tree),
        ("index", "show", tree, "--label", "fruit"),
    ]
    writing = [
        *(("runs", "report", run) for run in (plain, tree, nearest, grouped)),
        *(("verify", run, "--most", "2") for run in (plain, nearest, added)),
        *(("run", "--resume", run) for run in (plain, tree, nearest, grouped)),
        ("labels", "add", nearest, str(new), "--output", str(made)),
        ("ensemble", plain, tree, "--output", str(made)),
        ("compare", plain, tree, "--draws", "100", "--html", str(made)),
        *(("runs", "check", "--repair", run, *of) for run in (tree, grouped)),
        ("runs", "clean", "--yes", *of),
    ]
    return [Command(words) for words in reading] + [Command(words, writes=True) for words in writing]
