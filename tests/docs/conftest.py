"""Import docs/site/reference.py, which is not part of a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"

collect_ignore_glob = [] if SITE.is_dir() else ["test_*.py"]


@pytest.fixture(scope="session")
def reference():
    sys.path.insert(0, str(SITE))
    try:
        import reference
    finally:
        sys.path.remove(str(SITE))
    return reference


@pytest.fixture(scope="session")
def registry():
    from xmckit.registry import Registry

    return Registry()
