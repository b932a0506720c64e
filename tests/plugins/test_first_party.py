"""First-party components pass the same checks as those of third parties."""

from __future__ import annotations

import json

import pytest
from small_stdlib import SmallStdlib

from xmckit.kinds import KINDS
from xmckit.registry import default_registry
from xmckit.testing import Case, common, fresh_process, parametrize_with_checks

QUICK = {"epochs": 3, "encoder": {"use": "sparse-linear", "width": 24}}
WIDE = {"epochs": 3, "slack": 5}
MIML = {**QUICK, "dim": 16, "concepts": 2, "iterations": 2, "alone": True}
SMALL_TREE = {"leaf_size": 3, "branching": 2}
SYNTHETIC = {"rows": 60, "test_rows": 20, "features": 80, "labels": 12, "topics": 3}


def json_lines(folder):
    rows = [{"text": f"word{n % 5} word{n % 7}", "labels": [f"label {n % 3}"], "id": str(n)} for n in range(30)]
    for name, part in (("train", rows[:20]), ("test", rows[20:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return {"path": str(folder)}


def functions(folder):
    body = '    """Say {n}."""\n    print(len(str(n)))\n    return sorted([n])\n'
    source = "".join(f"def function_{n}(n):\n{body}\n\n" for n in range(12))
    (folder / "one.py").write_text(source)
    (folder / "two.py").write_text(source.replace("print", "repr"))
    return {"path": str(folder)}


CASES = [
    Case("head", "popularity"),
    Case("head", "bsl", {**QUICK, "dim": 16}),
    Case("head", "dft", WIDE),
    Case("head", "dft", {**QUICK, "slack": 30}),
    Case("head", "dft", {**WIDE, "slack": 0, "bias": False, "order": "given"}),
    Case("head", "dft", {**WIDE, "angles": "learned"}),
    Case("head", "dft", {**WIDE, "loss": "lml"}),
    Case("head", "lml", {**QUICK, "dim": 12}),
    Case("head", "lml", {**QUICK, "dim": 30}),
    Case("head", "softmax", {**QUICK, "dim": 12}),
    Case("head", "topk-entropy", {**QUICK, "dim": 12}),
    Case("head", "topk-entropy", {**QUICK, "dim": 12, "candidates": 6}, indexers=[{"use": "tree", **SMALL_TREE}]),
    Case("head", "miml", MIML),
    Case("head", "xrlinear", {"leaf_size": 3}),
    Case("indexer", "faiss"),
    Case("indexer", "faiss", {"embeddings": "head"}),
    Case("indexer", "faiss", {"embeddings": "text", "metric": "cosine"}),
    Case("indexer", "tree", SMALL_TREE),
    Case("indexer", "overlap", {"leaf_size": 4, "branching": 2}),
    Case("label-preprocessor", "eagle"),
    Case("label-preprocessor", "eagle", {"paper": True, "iterations": 3}),
    Case("label-preprocessor", "aggregate"),
    Case("label-preprocessor", "aggregate", {"method": "given"}),
    Case("verifier", "argmax"),
    Case("verifier", "argmax", {"margin": "largest"}),
    Case("verifier", "argmax", {"mode": "chebyshev"}),
    Case("dataset", "synthetic", SYNTHETIC),
    Case("dataset", "synthetic", {**SYNTHETIC, "group_size": 3, "bimodal": 2}),
    Case("dataset", "entangled"),
    Case("dataset", "files", example=json_lines),
    Case("dataset", "python-source", {"groups": "class"}, example=functions),
    Case("dataset", SmallStdlib),
    Case("reader", "jsonl"),
    Case("reader", "npz"),
    Case("reader", "svmlight"),
    Case("reader", "xmc"),
    Case("featurizer", "blocks", {"normalise": "l2"}),
    Case("featurizer", "blocks", {"idf": True, "normalise": "l2"}),
    Case("featurizer", "tfidf"),
    Case("featurizer", "tfidf", {"buckets": 64, "terms": "characters", "ngrams": 3}),
    Case("encoder", "sparse-linear", {"width": 8}),
    Case("encoder", "sparse-mlp", {"width": 6, "hidden": 8}),
    Case("metric", "ranking"),
    Case("metric", "sets"),
    Case("executor", "serial"),
    Case("executor", "threads"),
    Case("executor", "processes"),
]
# Its files are published elsewhere, and it takes no others: what needs no file is checked here.
WITHOUT_FILES = [Case("dataset", "repository", {"name": "bibtex"})]


@pytest.fixture(autouse=True, scope="module")
def _one_process_for_all():
    """With all libraries from the start, instead of another one whenever a component brings a library."""
    fresh_process.prepare(fresh_process.LIBRARIES)


@parametrize_with_checks(CASES)
def test_conformance(check):
    check()


@parametrize_with_checks(WITHOUT_FILES)
def test_conformance_without_files(check):
    if check.function in common.FIRST:
        check()


def test_no_component_was_forgotten():
    checked = {(case.kind, case.component) for case in (*CASES, *WITHOUT_FILES)}
    checked = {(kind, "stdlib-calls" if name is SmallStdlib else name) for kind, name in checked}
    ours = [
        item for item in default_registry().all() if item.plugin.distribution == "xmckit" and KINDS[item.kind].checks
    ]
    assert {(item.kind, item.component.name) for item in ours} == checked
