"""A run whose labels, texts and names try everything to get out of the page, and a browser to look at it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import PROGRAMS, Browser, program
from pages import HOSTILE

from xmckit import pipeline
from xmckit.registry import Registry

PLAIN = ["alpha", "beta", "gamma", "delta"]
RECIPE = """
title = '''</title><script>window.hit = 1</script> "quoted" \u05e9'''
seed = 1
[data]
use = "files"
path = "data"
[features]
use = "tfidf"
[[labels]]
use = "eagle"
[[index]]
use = "tree"
leaf_size = 4
[[head]]
use = "bsl"
index = []
dim = 3
epochs = 4
[[head]]
use = "xrlinear"
[verify]
use = "argmax"
most = 40
"""


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Hostile texts are no names of tests."""
    return argname if isinstance(val, str) and not val.isalnum() else None


def write_hostile_data(folder: Path, rows: int = 160) -> None:
    draw = random.Random(0)
    labels = HOSTILE + PLAIN
    lines = []
    for row in range(rows):
        own = draw.sample(range(len(labels)), draw.randint(1, 3))
        # some rows are about something else than their labels say
        told = own if draw.random() < 0.7 else draw.sample(range(len(labels)), 2)
        words = [f"word{label}" for label in told for _ in range(2)] + [f"noise{draw.randint(0, 30)}"]
        text = " ".join(words) + " " + HOSTILE[row % len(HOSTILE)][:3000]
        lines.append(
            json.dumps(
                {
                    "text": text,
                    "labels": [labels[label] for label in own],
                    "id": f"row {row} {HOSTILE[row % 5]}",
                    "group": f"group {row // 5} {HOSTILE[row // 5 % 4]}",
                    "split": "test" if row % 4 == 0 else "train",
                }
            )
        )
    folder.mkdir()
    (folder / "rows.jsonl").write_text("\n".join(lines), "utf-8")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> pipeline.Result:
    registry = Registry()
    wanted = {("head", "bsl"), ("head", "xrlinear"), ("verifier", "argmax"), ("label-preprocessor", "eagle")}
    if missing := [name for kind, name in wanted if name not in registry.names(kind)]:
        pytest.skip(f"without the components {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_data(folder / "data")
    (folder / "hostile.toml").write_text(RECIPE, "utf-8")
    return pipeline.run(folder / "hostile.toml", root=folder / "runs", registry=registry)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()
