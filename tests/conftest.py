"""What tests of several folders share."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASSETS = Path(__file__).with_name("assets")


@pytest.fixture(autouse=True, scope="module")
def _plugin_files_are_forgotten(tmp_path_factory) -> Iterator[None]:
    """Plugin files that a module's tests loaded: a file of the same name elsewhere would clash with them."""
    before, folders = set(sys.modules), (ASSETS, tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and any(Path(file).is_relative_to(folder) for folder in folders):
            del sys.modules[name]


@pytest.fixture(scope="session")
def build_wheel(tmp_path_factory) -> Callable[[Path], Path]:
    """Builds the wheel of a source folder, without a network."""
    missing = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the package {missing[0]}")

    def build(source: Path) -> Path:
        folder = tmp_path_factory.mktemp("wheel")
        done = subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (wheel,) = folder.glob("*.whl")
        return wheel

    return build


@pytest.fixture(scope="session")
def xmckit_wheel(build_wheel) -> Path:
    """xmckit's own wheel, built once for all tests."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("needs the source tree")
    return build_wheel(ROOT)
