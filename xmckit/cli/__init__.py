"""The `xmckit` program. Each command lives in its own module and is imported when it runs, not before."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from xmckit.cli import common

# command -> (module, help shown in the list of commands)
COMMANDS = {
    "run": ("xmckit.cli.run", "Run a recipe: data, features, labels, index, head, score, verify, report."),
    "predict": ("xmckit.cli.predict", "Label texts with the model of a run."),
    "runs": ("xmckit.cli.runs", "List runs, compare them, and free the cache."),
    "recipes": ("xmckit.cli.recipes", "List, show, copy and check recipes."),
    "data": ("xmckit.cli.data", "List, describe and convert data sets."),
    "plugins": ("xmckit.cli.plugins", "List plugins and show what a component takes."),
    "doctor": ("xmckit.cli.doctor", "Check this installation."),
}


class LazyGroup(click.Group):
    """Commands by name from COMMANDS and from plugins; a module is imported when its command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in _plugin_commands() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        elif cmd_name in _plugin_commands():
            command = common.get_registry().resolve("command", cmd_name)
        else:
            return None
        return accept_everywhere(command)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            from xmckit.errors import nearest

            known = self.list_commands(ctx)
            ctx.fail(f"no command '{name}'{nearest(name, known)} (commands: {', '.join(known)})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, summary) in COMMANDS.items()]
        rows += [(name, summary) for name, summary in _plugin_commands().items() if name not in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _plugin_commands() -> dict[str, str]:
    registry = common.get_registry(tolerant=True)
    return {name: registry.component("command", name).component.summary for name in registry.names("command")}


def accept_everywhere(command: click.Command) -> click.Command:
    """Let a command and all below it take `--plugin` and `-q`, wherever on the line they stand."""
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in common.global_options() if not taken & set(option.opts)]
    if isinstance(command, click.Group):
        for child in command.commands.values():
            accept_everywhere(child)
    return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=common.global_options(),
    epilog="Start with: xmckit run quickstart",
)
@click.version_option(package_name="xmckit", prog_name="xmckit")
def xmckit() -> None:
    """Extreme multi-label classification from plugins, with proofs of what a model can never output."""


def main() -> None:
    """Entry point: errors become one paragraph and an exit code, never a traceback for a user's mistake."""
    try:
        # Without standalone mode click hands back the code of `ctx.exit(code)` instead of leaving with it.
        sys.exit(xmckit(standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        common.fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output went away (`xmckit … | head`): not an error, but nothing may be flushed any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        explained = common.explain(error)
        if explained is None:
            raise
        common.fail(*explained)
