"""A comparison and the results of a suite, with names that are not harmless."""

from __future__ import annotations

import itertools
from typing import Any

from xmckit.analysis.compare import Comparison, Cost, Difference, RecipeDifference, System
from xmckit.bench.results import DataResults, Duel, GapToBest, Results

HOSTILE = [
    "</script><script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 1">',
    "' onmouseover='window.hit = 1",
    "</title></style><svg onload=window.hit=1>",
    "<!-- ]]> {{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe",
    "שלום עולם",
    "bell \u0007 escape \u001b[31m null \u0000",
    "javascript:window.hit=1",
    "&lt;b&gt; &amp;amp;",
    "a very long label " + "x" * 10_000,
    "two\nlines\tand a tab",
]
METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5")
NAMES = ("plain", "</script><script>window.hit=1</script>", '"><b onmouseover="window.hit=1">' + "w" * 300)


def _system(place: int, name: str) -> System:
    metrics = {metric: 0.4 + 0.01 * place + 0.02 * at for at, metric in enumerate(METRICS)} | {"micro-F1": 0.3}
    intervals = {metric: (value - 0.01, value + 0.01) for metric, value in metrics.items() if metric in METRICS}
    cost = Cost(12.5 * (place + 1), 20.0, 300 << 20, 5 << 20, {"data": 1.0})
    return System(name, metrics, cost, title=f"title of {name}", seed=place, intervals=intervals)


SYSTEMS = tuple(_system(place, name) for place, name in enumerate(NAMES))
COMPARISON = Comparison(
    dataset="<i>data</i>",
    rows=1234,
    labels=567,
    propensity={"A": 0.55, "B": 1.5, "from": "default"},
    checksums={"<rows>": "0" * 64},
    systems=SYSTEMS,
    metrics=METRICS,
    differences=tuple(
        Difference(metric, one.name, other.name, -0.01, -0.02, 0.005, 0.03, 0.09, one.name == "plain")
        for metric in METRICS
        for one, other in itertools.combinations(SYSTEMS, 2)
    ),
    recipes=(RecipeDifference("head.use", ("bsl", "</td><script>window.hit=1</script>", None)),),
    draws=4000,
    level=0.95,
    seed=0,
)


def _cell(data: str, system: str, seed: int, value: float) -> dict[str, Any]:
    costs = {
        "train_seconds": 3.0 + value,
        "predict_seconds": 0.2,
        "cpu_seconds": 5.0,
        "peak_bytes": 1 << 28,
        "bytes": 9,
    }
    metrics = {f"{family}@{k}": value + 0.01 * seed for family in ("P", "PSP") for k in (1, 5)}
    return {"data_set": data, "system": system, "seed": seed, "status": "done", "metrics": metrics, **costs}


SUITE = Results(
    suite="smoke",
    title="A <b>suite</b>",
    seeds=[0, 1],
    threads=2,
    k=[1, 5],
    systems=[
        {"name": "bsl", "title": NAMES[1], "kind": "recipe"},
        {"name": "pecos", "title": NAMES[2], "kind": "peer"},
        {"name": "popularity", "title": "", "kind": "baseline"},
    ],
    data=[
        DataResults(
            "bibtex",
            {"rows": 4880, "test_rows": 2515, "features": 1836, "labels": 159},
            "ab" * 32,
            [{"system": "PD-Sparse", "source": "<em>a paper</em>", "same_split": False, "metrics": {"P@1": 61.3}}],
            {
                f"{family}@{k}": {
                    "bsl": GapToBest("bsl", 0.0, 0.0, 0.0, 1.0, True),
                    "pecos": GapToBest("bsl", 0.02, 0.01, 0.03, 0.001, False),
                }
                for family in ("P", "PSP")
                for k in (1, 5)
            },
            [
                Duel(f"{family}@{k}", "bsl", "pecos", 0.02, 0.01, 0.03, 0.001, True)
                for family in ("P", "PSP")
                for k in (1, 5)
            ],
            ["made with other data, run again to compare: <x>"],
        ),
        DataResults("delicious", {}, "", [], {}, []),
    ],
    cells=[
        *(_cell("bibtex", system, seed, value) for system, value in (("bsl", 0.6), ("pecos", 0.58)) for seed in (0, 1)),
        {"data_set": "delicious", "system": "pecos", "seed": 0, "status": "failed", "reason": "error",
         "error": "Traceback\nValueError: <script>window.hit=1</script>"},
    ],
    machine={"system": "Linux", "processor": "<cpu>"},
    versions={"numpy": "1.26.4"},
    missing=["delicious / bsl / seed 0"],
)  # fmt: skip
