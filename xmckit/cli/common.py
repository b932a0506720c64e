"""What every command shares: the registry of this call, output, progress, and errors as people should see them."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.errors import PluginError, XmckitError, printable

if TYPE_CHECKING:
    from xmckit.registry import Registry

# Errors of the machine, not of xmckit: no space, no permission, read-only, quota, too large, too many open files.
_STORAGE = {errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.EIO}

_state: dict[str, Any] = {"files": [], "hints": [], "quiet": False}


def remember_plugin(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Callback of `--plugin`: eager, so that a plugin's commands exist when they are looked up."""
    for value in values:
        path = Path(value)
        if path not in _state["files"]:
            _state["files"].append(path)


def remember_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    _state["quiet"] = _state["quiet"] or value


def global_options() -> list[click.Parameter]:
    """`--plugin` and `-q`, accepted before and after the command's name."""
    return [
        click.Option(
            ["--plugin"],
            multiple=True,
            metavar="FILE.py",
            is_eager=True,
            expose_value=False,
            callback=remember_plugin,
            help="Load a plugin from this file too; may be given several times.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=remember_quiet,
            help="No progress, only results and errors.",
        ),
    ]


def plugin_files() -> list[Path]:
    """What `--plugin` named so far."""
    return list(_state["files"])


def quiet() -> bool:
    return bool(_state["quiet"])


def get_registry(*, tolerant: bool = False) -> Registry:
    """The registry of this call. A broken `--plugin` file is an error unless `tolerant`: it was asked for by name."""
    from xmckit.registry import registry_from_environment, set_default_registry

    key = tuple(_state["files"])
    if _state.get("key") != key:
        _state["registry"], _state["key"] = registry_from_environment(_state["files"]), key
        set_default_registry(_state["registry"])
    registry: Registry = _state["registry"]
    if not tolerant:
        for plugin in registry.problems:
            if plugin.origin == "file":
                raise PluginError(f"--plugin {plugin.where}: {plugin.problem}")
    return registry


def data_roots(given: tuple[str, ...] = ()) -> list[Path]:
    """Folders to look for data in: `--data`, then those of XMCKIT_DATA."""
    folders = [*given, *filter(None, os.environ.get("XMCKIT_DATA", "").split(os.pathsep))]
    return [Path(folder).resolve() for folder in folders]


def styled(text: str, **style: Any) -> str:
    """`text` in colour, unless NO_COLOR asks for none (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def print_json(value: Any) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    click.echo(json.dumps(value, indent=2, ensure_ascii=not unicode, default=str))


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--data",
        "data_folders",
        multiple=True,
        type=click.Path(),
        metavar="DIR",
        help="Look for data here; may be given several times. XMCKIT_DATA adds more.",
    )(function)


def set_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a value of the recipe, for instance --set head.dim=64.",
    )(function)


def explain(error: BaseException) -> tuple[str, int] | None:
    """Message and exit code of an error that is no bug; None for a bug."""
    if isinstance(error, XmckitError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno in _STORAGE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}. Nothing half-written was left; free some space or change the folder.", 3
    if isinstance(error, MemoryError):
        return "not enough memory. Use a smaller batch, fewer workers or fewer rows.", 3
    return None


def hint_after_error(text: str) -> None:
    """What to do next; shown below the error that is on its way."""
    _state["hints"].append(text)


def fail(message: str, code: int) -> None:
    click.echo(f"{styled('error', fg='red', bold=True)}: {printable(message)}", err=True)
    for hint in _state["hints"]:
        click.echo(hint, err=True)
    sys.exit(code)
