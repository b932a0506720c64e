"""`xmckit completion`, and what the tab key offers: commands, recipes, components and runs by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from xmckit.cli import common

PROGRAM = "xmckit"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes xmckit's commands and names.

    For bash, put this into ~/.bashrc: eval "$(xmckit completion bash)"
    """
    completer = get_completion_class(shell)
    assert completer is not None
    script = completer(click.Command(PROGRAM), {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    # Not `source()`: it would ask the bash of this machine for its version, and the script may be for another one.
    click.echo(script.source_template % script.source_vars())


class Known(click.types.StringParamType):
    """Text for which there are names to offer."""

    def __init__(self, names: Callable[[click.Context, str], Iterator[CompletionItem]]):
        self.names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [item for item in self.names(ctx, incomplete) if item.value.startswith(incomplete)]
        # When no name fits, it may be a path that is being typed.
        return found or [CompletionItem(incomplete, type="file")]


def recipes(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Recipes that come with xmckit, and files in the folder that is being typed."""
    from xmckit.recipe.layers import shipped_recipes

    yield from map(CompletionItem, shipped_recipes())
    yield from map(CompletionItem, _paths(incomplete, "*.toml"))


def runs(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Recipes that have runs, which stand for the newest one, and run folders."""
    root = Path(ctx.params.get("root") or "runs")
    folders = sorted(manifest.parent for manifest in root.glob("[!.]*/[!.]*/manifest.json"))
    for name in dict.fromkeys(folder.parent.name for folder in folders):
        yield CompletionItem(name, help="its newest run")
    for folder in folders:
        yield CompletionItem(str(folder))


def sources(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Data sets by name, a path to one is completed as a file; or runs, in a command with `--runs`."""
    if "root" in ctx.params:
        yield from runs(ctx, incomplete)
        return
    for component in common.get_registry(tolerant=True).offered("dataset"):
        yield CompletionItem(component.name, help=component.summary)


def components(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """NAME where one kind has it, KIND:NAME where several do, or where a kind was typed."""
    found = common.get_registry(tolerant=True).all()
    kinds = Counter(item.component.name for item in found)
    for item in found:
        full = ":" in incomplete or kinds[item.component.name] > 1
        name = f"{item.kind}:{item.component.name}" if full else item.component.name
        yield CompletionItem(name, help=f"{item.kind}: {item.component.summary}")


def kinds(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Kinds of components; for `plugins new` those of which there is an example."""
    from xmckit.hookspecs import KINDS
    from xmckit.scaffold import EXAMPLES

    yield from map(CompletionItem, EXAMPLES if ctx.info_name == "new" else KINDS)


def files(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """No names: it is a path."""
    yield from ()


# What an argument or option of this name means in every command, a plugin's too.
_MEANING = {
    "recipe": recipes,
    "run": runs,
    "runs": runs,
    "resume": runs,
    "source": sources,
    "component": components,
    "kind": kinds,
    "plugin": files,
}
_BY_METAVAR = {"RECIPE...": recipes}


def offer_names(command: click.Command) -> None:
    """Let plain text arguments of the command, and of all below it, be completed with the names they stand for."""
    for parameter in command.params:
        names = _MEANING.get(parameter.name or "") or _BY_METAVAR.get(parameter.metavar or "")
        if names is not None and type(parameter.type) is click.types.StringParamType:
            parameter.type = Known(names)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            offer_names(child)


def _paths(incomplete: str, pattern: str) -> list[str]:
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    return sorted(str(path) for path in folder.glob(pattern)) if folder.is_dir() else []
