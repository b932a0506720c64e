"""What a result depends on besides its inputs: the code of plugins, the versions of libraries, the machine."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from xmckit.errors import PluginError
from xmckit.registry import Registered

# Their numerics can change with their version, so they are part of every stage's key.
_NUMERIC = ("numpy", "scipy", "scikit-learn", "numba", "llvmlite", "torch", "libpecos", "faiss-cpu", "faiss-gpu")


def code_of(registered: Registered) -> dict[str, str]:
    """Checksums of the code behind a component: its package, its plugin's package, and the core."""
    packages = {"xmckit", registered.component.target.partition(":")[0].partition(".")[0]}
    checksums = {package: package_sha256(package) for package in sorted(packages)}
    if registered.plugin.file:
        checksums[f"plugin {registered.plugin.name}"] = _tree_sha256(Path(registered.plugin.file).resolve())
    if registered.plugin.origin == "file":
        checksums["beside the plugin"] = _neighbours_sha256(Path(registered.plugin.file).resolve())
    return checksums


def package_sha256(package: str) -> str:
    """Checksum of every file of a top-level package or module, as it is on disk now."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise PluginError(f"cannot find the code of package '{package}'")
    return _tree_sha256(Path(spec.origin).resolve())


def _tree_sha256(file: Path) -> str:
    """Of one module file, or of the whole folder when the file is a package's `__init__.py`."""
    if file.name != "__init__.py":
        return _files_sha256([file], file.parent)
    found = [path for path in file.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return _files_sha256(found, file.parent)


def _neighbours_sha256(file: Path) -> str:
    """Of the modules that a single-file plugin has imported from its own folder."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = {Path(path).resolve() for path in files if path}
    return _files_sha256([path for path in loaded if path.is_relative_to(file.parent)], file.parent)


def _files_sha256(files: list[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def library_versions(distribution: str = "xmckit") -> dict[str, str]:
    """Python, the numeric libraries, and what the plugin's distribution (if it has one) asks for."""
    versions = {"python": platform.python_version()}
    own = (distribution, *_requirements(distribution)) if distribution else ()
    for name in (*_NUMERIC, "xmckit", *own):
        version = _installed(name)
        if version is not None:
            versions[name] = version
    return dict(sorted(versions.items()))


@functools.cache
def _requirements(distribution: str) -> tuple[str, ...]:
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(re.split(r"[\s\[(<>=!~;]", line, maxsplit=1)[0].lower() for line in required)


@functools.cache
def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """What the report says about where a run took place; nothing that names a person or a host."""
    from xmckit.context import cpu_count

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": cpu_count(),
        "memory_bytes": memory,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor()
