"""One call of the program: its plugins and registry, and errors as people should see them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from xmckit.cli.options import styled
from xmckit.errors import PluginError, XmckitError, is_machine_error, printable

if TYPE_CHECKING:
    from pathlib import Path

    from xmckit.registry import Registry


@dataclass
class Call:
    """The state of one call. click's outermost context keeps it, so that the next call in this process starts fresh."""

    files: list[Path] = field(default_factory=list)  # what `--plugin` named so far
    quiet: bool = False
    hints: list[str] = field(default_factory=list)
    registry: Registry | None = None
    registered: list[Path] = field(default_factory=list)  # the files that `registry` knows
    notices: set[str] = field(default_factory=set)  # what `print_once` has printed


def this_call(context: click.Context | None = None) -> Call:
    return (context or click.get_current_context()).find_root().ensure_object(Call)


def remember_plugin(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Callback of `--plugin`: eager, so that a plugin's commands exist when they are looked up."""
    if not values:  # `--help` has no need of paths
        return
    from pathlib import Path

    call = this_call(context)
    call.files += [path for path in map(Path, values) if path not in call.files]
    if call.registry is not None:  # made to look a plugin's command up, which asks the default registry
        get_registry(context, tolerant=True)


def remember_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    this_call(context).quiet |= value


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
    """Return what `--plugin` named so far."""
    return list(this_call().files)


def quiet() -> bool:
    return this_call().quiet


def get_registry(context: click.Context | None = None, *, tolerant: bool = False) -> Registry:
    """Return the registry of this call.

    A broken `--plugin` file is an error unless `tolerant`: the user named it.
    """
    from xmckit.registry import as_default, registry_from_environment

    call = this_call(context)
    if call.registry is None or call.registered != call.files:
        call.registry, call.registered = registry_from_environment(call.files), list(call.files)
        (context or click.get_current_context()).find_root().with_resource(as_default(call.registry))
    if not tolerant:
        for plugin in call.registry.problems:
            if plugin.origin == "file":
                raise PluginError(f"--plugin {plugin.where}: {plugin.problem}")
    return call.registry


def data_roots(given: tuple[str, ...] = ()) -> list[Path]:
    """Return the folders to look for data in: `--data`, then those of XMCKIT_DATA."""
    from pathlib import Path

    folders = [*given, *filter(None, os.environ.get("XMCKIT_DATA", "").split(os.pathsep))]
    return [Path(folder).resolve() for folder in folders]


def explain(error: BaseException) -> tuple[str, int] | None:
    """Return the message and exit code of an error that is no bug; None for a bug."""
    if isinstance(error, XmckitError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and is_machine_error(error):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}. Nothing half-written was left; free some space or change the folder.", 3
    if isinstance(error, MemoryError):
        return "not enough memory. Use a smaller batch, fewer workers or fewer rows.", 3
    return None


def explain_fault(error: BaseException, call: Call) -> tuple[str, int] | None:
    """Do the same for an error from the code of a plugin, and print the traceback for the plugin's author."""
    found = call.registry.at_fault(error) if call.registry is not None else None
    if found is None:
        return None
    import traceback

    traceback.print_exception(error)
    plugin, at = found
    return f"{plugin.described} raised {type(error).__name__}: {error} ({at})", PluginError.exit_code


def print_once(text: str, context: click.Context) -> None:
    """Print to stderr what this call has not printed yet."""
    notices = this_call(context).notices
    if text not in notices:
        notices.add(text)
        click.echo(text, err=True)


def hint_after_error(text: str) -> None:
    """Print a hint below the error that is about to be reported."""
    this_call().hints.append(text)


def fail(message: str, code: int, hints: Sequence[str] = ()) -> None:
    click.echo(f"{styled('error', fg='red', bold=True)}: {printable(message)}", err=True)
    for hint in hints:
        click.echo(hint, err=True)
    sys.exit(code)
