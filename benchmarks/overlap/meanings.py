"""Measure whether the further copies of indexer `overlap` go to labels with a second meaning.

    python -m benchmarks.overlap.meanings [--workers 2]

The data are synthetic, with planted labels of two meanings: the set of the study and two sets with less noise, with
leaves that hold labels of one topic. Results are stored in benchmarks/results/overlap_meanings.json, and the next
`python -m benchmarks.overlap.measure --render` shows them in docs/overlap.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np

import xmckit
from benchmarks.common import paths, study
from benchmarks.overlap.measure import SYNTHETIC
from xmckit import Dataset

RESULTS = paths.RESULTS / "overlap_meanings.json"
CLEAR = {"noise": 0.1, "words_per_row": 75.0, "topics": 16}
SETS: dict[str, dict[str, Any]] = {
    "of the study": {},
    "less noise, fewer topics": CLEAR,
    "and labels of about equal frequency": {**CLEAR, "exponent": 0.5},
}
SEEDS = (0, 1, 2)


def measure(changes: dict[str, Any], seed: int, workers: int) -> dict[str, float]:
    context = xmckit.make_context(seed=seed, workers=workers)
    spec = {**SYNTHETIC, **changes}
    data = context.build("dataset", spec).read(context=xmckit.make_context())  # all seeds share the rows of one seed
    features = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    features.fit(data.train, context=context)
    train = replace(data.train, X=features.transform(data.train, context=context))
    tree = context.build("indexer", {"use": "overlap", "leaf_size": 32}).build(train, context=context).tree
    further = tree.label_of[tree.labels :]
    planted = np.asarray(data.info["bimodal_labels"])
    return {
        "pure": purity(tree, data),
        "copies": len(further),
        "by_chance": len(planted) / tree.labels,
        "planted_share": float(np.isin(further, planted).mean()),
        "found": len(np.intersect1d(further, planted)) / len(planted),
    }


def purity(tree: Any, data: Dataset) -> float:
    """Return the mean share, over leaves, of the most frequent topic among labels with one topic."""
    topics = np.asarray([name.split("/")[0] for name in map(data.label, range(data.labels))])
    single = np.asarray([topic.startswith("topic") and "+" not in topic for topic in topics])
    shares = []
    for leaf in range(tree.leaves):
        here = topics[[label for label in np.unique(tree.members(leaf)) if single[label]]]
        if len(here):
            shares.append(np.unique(here, return_counts=True)[1].max() / len(here))
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="threads (default: %(default)s)")
    options = parser.parse_args()
    sets = {name: [measure(changes, seed, options.workers) for seed in SEEDS] for name, changes in SETS.items()}
    study.write_results(RESULTS, {"sets": sets})
    print(json.dumps(sets, indent=1))


if __name__ == "__main__":
    main()
