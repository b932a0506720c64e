"""Write new plugins: a working example of a kind, as a distribution or as one file, under a given name.

Imports the registry and what is below it. Public: `write_distribution`, `write_single_file`, `usage`, `EXAMPLES`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xmckit import __version__, store
from xmckit.errors import StorageError, UsageError, nearest
from xmckit.hookspecs import API_VERSION
from xmckit.kinds import KINDS, Example
from xmckit.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


# The kinds with an example.
EXAMPLES: dict[str, Example] = {name: kind.example for name, kind in KINDS.items() if kind.example}


def write_distribution(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Write the folder `xmckit-NAME` below `parent`, complete or not at all: project file, source, tests, README."""
    facts = _facts(kind, name, registry)
    folder = parent / facts["distribution"]
    _refuse_taken(folder, facts["package"])
    package = f"src/{facts['package']}"
    templates = {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "README.md.j2",
        f"{package}/__init__.py": "package.py.j2",
        f"{package}/{facts['module']}.py": f"{facts['module']}.py.j2",
        f"tests/test_{facts['module']}.py": f"test_{facts['module']}.py.j2",
    }
    with _explain_failure(folder), store.atomic_folder(folder, exclusive=True) as temporary:
        for file, template in templates.items():
            (temporary / file).parent.mkdir(parents=True, exist_ok=True)
            store.write_text(temporary / file, _render(template, facts))
    return folder


def write_single_file(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Write one file for `--plugin` into `parent`."""
    facts = _facts(kind, name, registry)
    stem = name.replace("-", "_")
    file = parent / f"{stem}.py"
    _refuse_taken(file, stem)
    with _explain_failure(file):
        parent.mkdir(parents=True, exist_ok=True)
        store.write_text(file, _render("single.py.j2", facts))
    return file


def usage(kind: str, name: str) -> str:
    """Return the lines of a recipe that use the example."""
    return EXAMPLES[kind].usage.format(name=name)


def _facts(kind: str, name: str, registry: Registry) -> dict[str, Any]:
    """Return the values for the templates; UsageError if kind or name cannot be used."""
    if kind not in EXAMPLES:
        raise UsageError(f"there is no example of a '{kind}'{nearest(kind, EXAMPLES)} (kinds: {', '.join(EXAMPLES)})")
    _check_name(kind, name, registry)
    example = EXAMPLES[kind]
    camel = "".join(part.capitalize() for part in re.split("[-_]", name))
    suffix = kind.rpartition("-")[2].capitalize()
    base = camel.removesuffix(suffix) or camel
    return {
        "single": False,
        "kind": kind,
        "name": name,
        "hook": KINDS[kind].hook,
        "module": kind.replace("-", "_"),
        "package": f"xmckit_{name.replace('-', '_')}",
        "distribution": f"xmckit-{name.replace('_', '-')}",
        "base": base,
        "cls": f"{base}{suffix}",
        "summary": example.summary,
        "usage": usage(kind, name),
        "api_version": API_VERSION,
        "oldest": ".".join(__version__.split(".")[:2]),
    }


def _check_name(kind: str, name: str, registry: Registry) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        better = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")
        usable = better != name and _NAME.fullmatch(better) and not keyword.iskeyword(better)
        hint = f"; for instance '{better}'" if usable else ""
        raise UsageError(
            f"'{name}' cannot be a name: use lower-case letters, digits and '-', a letter first, no word of "
            f"Python's own{hint}"
        )
    if name.startswith(("xmckit-", "xmckit_")):
        raise UsageError(f"leave out the 'xmckit' of '{name}': the distribution gets it anyway")
    known = {other.replace("_", "-"): other for other in registry.names(kind)}
    if name.replace("_", "-") in known:
        taken = registry.component(kind, known[name.replace("_", "-")])
        raise UsageError(f"there is a {taken.description} already: choose another name than '{name}'")


def _refuse_taken(path: Path, module: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already and is left as it is: choose another name, or another --output")
    if importlib.util.find_spec(module) is not None:
        raise UsageError(f"Python has a module '{module}' already, which the plugin would hide: choose another name")


@contextlib.contextmanager
def _explain_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from None


def _render(template: str, facts: dict[str, Any]) -> str:
    import jinja2

    # The output is code and plain text, so nothing is escaped; a missing value is an error.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(template).render(facts).rstrip("\n") + "\n"
