"""What every command shares: the registry of this call, output, progress, and errors as people should see them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from xmckit.errors import PluginError, XmckitError, is_of_the_machine, printable

if TYPE_CHECKING:
    from pathlib import Path

    from xmckit.registry import Registry


@dataclass
class Call:
    """One call of the program. It is kept by click's outermost context, so that the next call knows nothing of it."""

    files: list[Path] = field(default_factory=list)  # what `--plugin` named so far
    quiet: bool = False
    hints: list[str] = field(default_factory=list)
    registry: Registry | None = None
    registered: list[Path] = field(default_factory=list)  # the files that `registry` knows
    told: set[str] = field(default_factory=set)  # what `tell_once` has said


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
    """What `--plugin` named so far."""
    return list(this_call().files)


def quiet() -> bool:
    return this_call().quiet


def get_registry(context: click.Context | None = None, *, tolerant: bool = False) -> Registry:
    """The registry of this call, which is that of `context`.

    A broken `--plugin` file is an error unless `tolerant`: it was asked for by name.
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
    """Folders to look for data in: `--data`, then those of XMCKIT_DATA."""
    from pathlib import Path

    folders = [*given, *filter(None, os.environ.get("XMCKIT_DATA", "").split(os.pathsep))]
    return [Path(folder).resolve() for folder in folders]


def styled(text: str, **style: Any) -> str:
    """`text` in colour, unless NO_COLOR asks for none (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def print_json(value: Any) -> None:
    import json

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
    if isinstance(error, OSError) and is_of_the_machine(error):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}. Nothing half-written was left; free some space or change the folder.", 3
    if isinstance(error, MemoryError):
        return "not enough memory. Use a smaller batch, fewer workers or fewer rows.", 3
    return None


def explain_fault(error: BaseException, call: Call) -> tuple[str, int] | None:
    """The same for an error that comes from the code of a plugin. Its author needs the traceback, which is printed."""
    found = call.registry.at_fault(error) if call.registry is not None else None
    if found is None:
        return None
    import traceback

    traceback.print_exception(error)
    plugin, at = found
    return f"{plugin.described} raised {type(error).__name__}: {error} ({at})", PluginError.exit_code


def tell_once(text: str, context: click.Context) -> None:
    """To stderr, however often the same comes up in this call."""
    told = this_call(context).told
    if text not in told:
        told.add(text)
        click.echo(text, err=True)


def hint_after_error(text: str) -> None:
    """What to do next; shown below the error that is on its way."""
    this_call().hints.append(text)


def fail(message: str, code: int, hints: Sequence[str] = ()) -> None:
    click.echo(f"{styled('error', fg='red', bold=True)}: {printable(message)}", err=True)
    for hint in hints:
        click.echo(hint, err=True)
    sys.exit(code)
