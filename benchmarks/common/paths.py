"""Name the folders and files that several benchmarks share."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
DOCS = _ROOT / "docs"
RESULTS = _ROOT / "benchmarks" / "results"
RECIPES = _ROOT / "benchmarks" / "heads" / "recipes"
HEADS_RECIPE = RECIPES / "heads.toml"
