"""The program `xmckit`, one file for each command; it may import everything below.

Commands are components and are imported when they run. Public for plugins: `options` and `tables`.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import PluginError, nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from xmckit.registry import Registry


class LazyGroup(click.Group):
    """The commands of the registry; the module of a command is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys(name.partition(".")[0] for name in _summaries(ctx)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "doctor":  # it imports plugins in child processes only, because one may hang
            from xmckit.cli.doctor import doctor

            return accept_everywhere(doctor)
        if cmd_name not in self.list_commands(ctx):
            return None
        command = accept_everywhere(_with_subcommands(ctx, cmd_name))
        if ctx.resilient_parsing:  # a shell asks for completions
            from xmckit.cli.completion import offer_names

            offer_names(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from their records; click's own method would import them all."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        summaries = _summaries(ctx)
        commands = [CompletionItem(name, help=summaries.get(name)) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            invocation.get_registry(ctx)  # raises if the plugin with this command is broken
            known = self.list_commands(ctx)
            ctx.fail(f"no command '{name}'{nearest(name, known)} (commands: {', '.join(known)})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name.replace(".", " "), summary) for name, summary in _summaries(ctx).items()])


def _with_subcommands(ctx: click.Context, name: str) -> click.Command:
    """Return a command with the subcommands that plugins add: `labels.add` is `add` below `labels`.

    A subcommand that is broken or has no place is left out or reports its error when used; the others work.
    """
    registry = invocation.get_registry(ctx, tolerant=True)
    known = _summaries(ctx)
    command: click.Command = registry.resolve("command", name) if name in known else click.Group(name)
    below = {full.partition(".")[2]: full for full in known if full.startswith(f"{name}.")}
    if not below:
        return command
    import copy

    group = copy.copy(command)  # the next call in this process may have other plugins
    taken = dict(command.commands) if isinstance(command, click.Group) else {}
    for own, full in below.items():
        if not isinstance(command, click.Group) or own in taken:
            why = f"has a '{own}' of its own" if own in taken else "is a command, not a group of them"
            component = registry.component("command", full).description
            invocation.print_once(f"{options.styled('left out', fg='yellow')}: {component}: '{name}' {why}", ctx)
        else:
            taken[own] = _subcommand(full, registry)
    if isinstance(group, click.Group):
        group.commands = taken
    return group


def _subcommand(name: str, registry: Registry) -> click.Command:
    """Return the command; if it is broken, return one that raises the error when it is used."""
    try:
        command: click.Command = registry.resolve("command", name)
        return command
    except PluginError as error:
        broken = error

    def report() -> None:
        raise broken

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=report, help="Broken.", context_settings=settings, add_help_option=False)


def _summaries(ctx: click.Context) -> dict[str, str]:
    return {command.name: command.summary for command in invocation.get_registry(ctx, tolerant=True).offered("command")}


def accept_everywhere(command: click.Command) -> click.Command:
    """Let a command and its subcommands take `--plugin` and `-q` at any position."""
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in invocation.global_options() if not taken & set(option.opts)]
    if isinstance(command, click.Group):
        for child in command.commands.values():
            accept_everywhere(child)
    return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=invocation.global_options(),
    epilog="Start with: xmckit run quickstart",
)
@click.version_option(package_name="xmckit", prog_name="xmckit")
def xmckit() -> None:
    """Extreme multi-label classification with plugins, and proofs of what a model can never output."""


def _prepare_completion() -> None:
    """Prepare for the completions that a shell asks for: nothing else may be written to the terminal."""
    from xmckit.cli import completion  # noqa: F401  it registers our script for bash with click

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the process ends


def main() -> None:
    """Run the program; errors become one paragraph and an exit code, without a traceback for a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its escape.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Python processes that libraries start, such as the workers of joblib, must not import from the working folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    if "_XMCKIT_COMPLETE" in os.environ:
        _prepare_completion()
    call = invocation.Call()
    try:
        # Without standalone mode click returns the code of `ctx.exit(code)`.
        code = xmckit(standalone_mode=False, obj=call)
        if sys.stdout is not None:  # it is None if it was closed before the start
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit:
        # The reader of our output went away (`xmckit … | head`). click exits with 1, but it is no error.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            sys.exit(0)
        raise
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:
        detail = str(stop.__cause__ or stop)  # click replaces Python's exception by its own
        invocation.fail(f"interrupted: {detail}" if detail else "interrupted", 130, call.hints)
    except BrokenPipeError:
        # The reader went away; stdout must not be flushed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        explained = invocation.explain(error) or invocation.explain_fault(error, call)
        if explained is None:
            raise
        invocation.fail(*explained, call.hints)
