"""`xmckit completion`: let shells complete commands, recipes, components and runs by name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from xmckit.cli import invocation

PROGRAM = "xmckit"
VARIABLE = f"_{PROGRAM.upper()}_COMPLETE"  # set by a shell that asks the program for names

# bash splits KIND:NAME into three words and replaces the last one by the answer. So the program gets the whole line,
# and the script keeps only what follows the last colon of an answer. It quotes answers unless the user began a quote.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" type value word kept=""
    word="${line##*[[:space:]=]}"
    [[ $COMP_WORDBREAKS == *:* ]] && kept="${word%%"${word##*:}"}"
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                value="${value#"$kept"}"
                [[ ${COMP_WORDS[COMP_CWORD]} == [\\"\\']* ]] || printf -v value %%q "$value"
                COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        last = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], last


add_completion_class(_Bash)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands and names of xmckit.

    \b
    bash, in ~/.bashrc:                   eval "$(xmckit completion bash)"
    zsh, in ~/.zshrc after compinit:      eval "$(xmckit completion zsh)"
    fish, in ~/.config/fish/config.fish:  xmckit completion fish | source
    """
    completer = get_completion_class(shell)
    assert completer is not None
    script = completer(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    # Not `source()`: it asks for the version of bash on this machine, and the script may be for another one.
    click.echo(script.source_template % script.source_vars())


Names: TypeAlias = "Callable[[click.Context, str], Iterator[CompletionItem]]"


class NameType(click.types.StringParamType):
    """A text parameter that offers names for completion."""

    def __init__(self, names: Names):
        self.names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        matches = [item for item in self.names(ctx, incomplete) if item.value.startswith(incomplete)]
        # If no name matches, the user may be typing a path.
        return matches or [CompletionItem(incomplete, type="file")]


def recipes(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer the recipes that ship with xmckit, and recipe files in the folder that the user is typing."""
    from xmckit.recipe.layers import shipped_recipes

    yield from map(CompletionItem, shipped_recipes())
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    yield from map(CompletionItem, sorted(str(path) for path in folder.glob("*.toml")))


def runs(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer names of recipes, which mean their newest run, and run folders."""
    from xmckit.runs.layout import MANIFEST

    root = Path(ctx.params.get("root") or "runs")
    folders = sorted(manifest.parent for manifest in root.glob(f"[!.]*/[!.]*/{MANIFEST}"))
    for name in dict.fromkeys(folder.parent.name for folder in folders):
        yield CompletionItem(name, help="its newest run")
    for folder in folders:
        yield CompletionItem(str(folder))


def sources(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer names of data sets, or runs in a command with `--runs`."""
    yield from (runs if "root" in ctx.params else of_kind("dataset"))(ctx, incomplete)


def of_kind(kind: str) -> Names:
    """Return a function that offers the components of one kind."""

    def names(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
        for component in invocation.get_registry(ctx, tolerant=True).offered(kind):
            yield CompletionItem(component.name, help=component.summary)

    return names


def published_sets(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer the data sets that can be downloaded."""
    from xmckit.data.catalogue import catalogue

    yield from map(CompletionItem, catalogue())


def components(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer NAME, or KIND:NAME if several kinds have the name or if the user typed a kind."""
    items = invocation.get_registry(ctx, tolerant=True).all()
    kinds = Counter(item.component.name for item in items)
    for item in items:
        full = ":" in incomplete or kinds[item.component.name] > 1
        name = f"{item.kind}:{item.component.name}" if full else item.component.name
        yield CompletionItem(name, help=f"{item.kind}: {item.component.summary}")


def kinds(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer the kinds of components; for `plugins new`, those with an example."""
    from xmckit.kinds import KINDS
    from xmckit.scaffold import EXAMPLES

    yield from map(CompletionItem, EXAMPLES if ctx.info_name == "new" else KINDS)


def files(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Offer nothing: the parameter is a path."""
    yield from ()


# By the name of a parameter, in every command, also of plugins.
_BY_NAME = {
    "recipe": recipes,
    "run": runs,
    "runs": runs,
    "resume": runs,
    "source": sources,
    "component": components,
    "kind": kinds,
    "plugin": files,
    "verifier": of_kind("verifier"),
    "executor": of_kind("executor"),
}
# By the metavar, or by command and name, if the name alone is ambiguous.
_BY_METAVAR = {"RECIPE...": recipes, "KIND:NAME|NAME": components, "DATA": of_kind("dataset")}
_IN_COMMAND = {("convert", "target"): of_kind("reader"), ("fetch", "name"): published_sets}


def offer_names(command: click.Command) -> None:
    """Let a command and its subcommands complete text parameters with the names that they accept."""
    for parameter in command.params:
        names = (
            _IN_COMMAND.get((command.name or "", parameter.name or ""))
            or _BY_METAVAR.get(parameter.metavar or "")
            or _BY_NAME.get(parameter.name or "")
        )
        if names is not None and type(parameter.type) is click.types.StringParamType:
            parameter.type = NameType(names)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            offer_names(child)
