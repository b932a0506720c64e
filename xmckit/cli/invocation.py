"""One call of the program: its plugins, its registry, its progress bars, and its error messages."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from xmckit.cli.options import styled
from xmckit.errors import PluginError, StorageError, XmckitError, is_machine_error, printable

if TYPE_CHECKING:
    from pathlib import Path

    from xmckit.cli.progress import TerminalProgress
    from xmckit.registry import Registry


_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space there, or choose another folder. "),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose another folder, or change its permissions. "),
    errno.EMFILE: "Use fewer workers, or allow more open files (ulimit -n). ",
}


@dataclass
class Call:
    """The state of one call. click's outermost context keeps it, so that the next call in this process starts fresh."""

    files: list[Path] = field(default_factory=list)  # values of `--plugin` so far
    quiet: bool = False
    hints: list[str] = field(default_factory=list)
    registry: Registry | None = None
    registered: list[Path] = field(default_factory=list)  # files that `registry` has loaded
    notices: set[str] = field(default_factory=set)  # texts that `print_once` has printed


def this_call(context: click.Context | None = None) -> Call:
    return (context or click.get_current_context()).find_root().ensure_object(Call)


def remember_plugin(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Store the value of `--plugin`; the option is eager, so that commands of plugins exist when they are looked up."""
    if not values:  # do not import pathlib for `--help`
        return
    from pathlib import Path

    call = this_call(context)
    call.files += [path for path in map(Path, values) if path not in call.files]
    if call.registry is not None:  # it was made to look up a command; the new file must be loaded too
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
            help="Also load the plugin in this file; repeatable.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=remember_quiet,
            help="Print results and errors only, no progress.",
        ),
    ]


def quiet() -> bool:
    return this_call().quiet


def terminal_progress() -> TerminalProgress:
    """Return progress bars for stderr; they print nothing if the call is quiet."""
    from xmckit.cli.progress import TerminalProgress

    return TerminalProgress(quiet=quiet())


def get_registry(context: click.Context | None = None, *, tolerant: bool = False) -> Registry:
    """Return the registry of this call. A broken `--plugin` file is an error unless `tolerant`."""
    from xmckit.registry import as_default, registry_from_environment

    call = this_call(context)
    if call.registry is None or call.registered != call.files:
        call.registry, call.registered = registry_from_environment(call.files), list(call.files)
        (context or click.get_current_context()).find_root().with_resource(as_default(call.registry))
        for plugin in call.registry.journal.news:
            click.echo(f"{styled('set aside', fg='red')}: {plugin.description}: {plugin.problem}", err=True)
    if not tolerant:
        for plugin in call.registry.problems:
            if plugin.origin == "file":
                raise PluginError(f"--plugin {plugin.where}: {plugin.problem}")
    return call.registry


def data_roots(data_folders: tuple[str, ...] = ()) -> list[Path]:
    """Return the folders with data: those of `--data`, then those of XMCKIT_DATA."""
    from pathlib import Path

    folders = [*data_folders, *filter(None, os.environ.get("XMCKIT_DATA", "").split(os.pathsep))]
    return [Path(folder).resolve() for folder in folders]


def explain(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that is not a bug; None for a bug."""
    if isinstance(error, XmckitError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and is_machine_error(error):
        advice = _ADVICE.get(error.errno or 0, "")
        if error.filename:
            text = f"{error.filename}: {error.strerror}. {advice}Nothing half-written was left."
        else:  # every writer of files names its file
            _discard_output()
            text = f"the output could not be written: {error.strerror}. {advice}".rstrip()
        return text, StorageError.exit_code
    if isinstance(error, MemoryError):
        return "not enough memory. Use a smaller batch, fewer workers or fewer rows.", 3
    return None


def _discard_output() -> None:
    """Keep Python from writing the rest of the output when it ends: that would fail again, with another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # it was closed before the start
        pass


def explain_fault(error: BaseException, call: Call) -> tuple[str, int] | None:
    """Do the same for an error in the code of a plugin, and print the traceback for the plugin's author."""
    fault = call.registry.at_fault(error) if call.registry is not None else None
    if fault is None:
        return None
    import traceback

    traceback.print_exception(error)
    plugin, at = fault
    return f"{plugin.description} raised {type(error).__name__}: {error} ({at})", PluginError.exit_code


def print_once(text: str, context: click.Context) -> None:
    """Print a text to stderr unless this call has printed it already."""
    notices = this_call(context).notices
    if text not in notices:
        notices.add(text)
        click.echo(text, err=True)


def hint_after_error(text: str) -> None:
    """Print a hint below the error that will be reported."""
    this_call().hints.append(text)


def fail(message: str, code: int, hints: Sequence[str] = ()) -> None:
    click.echo(f"{styled('error', fg='red', bold=True)}: {printable(message)}", err=True)
    for hint in hints:
        click.echo(hint, err=True)
    sys.exit(code)
