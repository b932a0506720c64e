"""A small suite over made-up data, with peers of every temper."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent

SUITE = """\
title = "A small suite"
seeds = [0, 1]
threads = 1
limit = 900
k = [1, 3]
results = "out/results.json"
page = "page.md"

[[data]]
name = "made-up"
source = { use = "synthetic", rows = 300, test_rows = 100, features = 80, labels = 12, topics = 4 }

[[data]]
name = "gone"
source = { use = "files", path = "nowhere" }

[[system]]
name = "mine"
recipe = "mine.toml"
set = ["score.top=7"]

[[peer]]
name = "worst"
use = "fake_peers:Commonest"
options = { worst = true }

[[peer]]
name = "crashing"
use = "fake_peers:Crashing"
only = ["made-up"]

[[peer]]
name = "hanging"
use = "fake_peers:Hanging"
only = ["made-up"]
limit = 4

[[peer]]
name = "missing"
use = "fake_peers:Missing"
only = ["made-up"]
"""


def write_suite(folder, text=SUITE):
    (folder / "mine.toml").write_text('title = "mine"\n[data]\nuse = "stdlib-calls"\n[head]\nuse = "popularity"\n')
    (folder / "page.md").write_text("Above.\n<!-- begin small -->\nold\n<!-- end small -->\nBelow.\n")
    (folder / "small.toml").write_text(text)
    return folder / "small.toml"
