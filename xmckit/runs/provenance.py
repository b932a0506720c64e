"""Checksums of code, versions of libraries, and the machine: what a result depends on besides its inputs."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

from xmckit.errors import PluginError
from xmckit.registry import Registered
from xmckit.registry.plugins import installed_version

# Their numerics can change with their version, so they are part of every stage's key.
_NUMERIC = ("numpy", "scipy", "scikit-learn", "numba", "llvmlite", "torch", "libpecos", "faiss-cpu", "faiss-gpu")

# (plugin's file, what) -> checksum at first use in this process: the code that it runs, even if it was edited since.
_AS_LOADED: dict[tuple[str, str], str] = {}

_installed_version = functools.cache(installed_version)  # called for every component of a recipe


def code_of(registered: Registered) -> dict[str, str]:
    """Return checksums of the code behind a component: its package, its plugin's package, and the core.

    Code that was edited while this process runs has two checksums, on disk and in memory, so that a result of the old
    code is never stored under the key of the new.
    """
    packages = {"xmckit", registered.component.target.partition(":")[0].partition(".")[0]}
    checksums = {package: package_sha256(package) for package in sorted(packages)}
    if registered.plugin.file:
        checksums[f"plugin {registered.plugin.name}"] = _tree_sha256(Path(registered.plugin.file).resolve())
    if registered.plugin.origin == "file":
        checksums["beside the plugin"] = _neighbours_sha256(Path(registered.plugin.file).resolve())
    for what, checksum in list(checksums.items()):
        loaded = _AS_LOADED.setdefault((registered.plugin.file, what), checksum)
        if loaded != checksum:
            checksums[f"{what}, in memory"] = loaded
    return checksums


def package_sha256(package: str) -> str:
    """Return the checksum of all files of a top-level package or module, as they are on disk now."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise PluginError(f"cannot find the code of package '{package}'")
    if spec.origin is not None:
        return _tree_sha256(Path(spec.origin).resolve())
    # A namespace package has no file of its own, only folders.
    folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    return hashlib.sha256("".join(_folder_sha256(folder) for folder in folders).encode()).hexdigest()


def _tree_sha256(file: Path) -> str:
    """Return the checksum of a module's file, or of the whole folder if the file is a package's `__init__.py`."""
    if not file.is_file():
        archive = next((folder for folder in file.parents if folder.is_file()), None)
        if archive is None:
            raise PluginError(f"cannot find the code at {file}")
        return _files_sha256([archive], archive.parent)
    return _folder_sha256(file.parent) if file.name == "__init__.py" else _files_sha256([file], file.parent)


def _folder_sha256(folder: Path) -> str:
    return _files_sha256(_files_below(folder), folder)


def _files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _neighbours_sha256(file: Path) -> str:
    """Return the checksum of every module and package beside a single-file plugin: all that it may import.

    The modules that it has imported so far would not do: they change during a run.
    """
    files = [path for path in file.parent.glob("*.py") if path.is_file()]
    for package in file.parent.glob("*/__init__.py"):
        files += _files_below(package.parent)
    return _files_sha256(files, file.parent)


def _files_sha256(files: list[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def library_versions(distribution: str = "xmckit") -> dict[str, str]:
    """Return the versions of Python, the numeric libraries, and the requirements of the plugin's distribution."""
    versions = {"python": platform.python_version()}
    own = (distribution, *_requirements(distribution)) if distribution else ()
    for name in (*_NUMERIC, "xmckit", *own):
        if version := _installed_version(name):
            versions[name] = version
    return dict(sorted(versions.items()))


@functools.cache
def _requirements(distribution: str) -> tuple[str, ...]:
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    always = [line for line in required if "extra ==" not in line]
    return tuple(re.split(r"[\s\[(<>=!~;]", line, maxsplit=1)[0].lower() for line in always)


def machine() -> dict[str, Any]:
    """Describe this machine for the report, without anything that names a person or a host."""
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
