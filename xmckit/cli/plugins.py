"""`xmckit plugins`"""

from __future__ import annotations

from typing import Any

import click

from xmckit.cli import common


@click.group()
def plugins() -> None:
    """List plugins and show what a component takes."""


@plugins.command("ls")
@click.option("--kind", help="Only components of this kind.")
@common.json_option
def ls(kind: str | None, as_json: bool) -> None:
    """List every component, and every plugin that was set aside or blocked with the reason."""
    from xmckit.errors import UsageError, nearest
    from xmckit.hookspecs import KINDS

    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind '{kind}'{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    registry = common.get_registry(tolerant=True)
    found = [item for item in registry.all() if kind in (None, item.kind)]
    if as_json:
        common.print_json(
            {
                "components": [
                    {
                        "kind": item.kind,
                        "name": item.component.name,
                        "summary": item.component.summary,
                        "target": item.component.target,
                        "plugin": item.plugin.name,
                        "distribution": item.plugin.distribution,
                    }
                    for item in found
                ],
                "plugins": [plugin_facts(plugin) for plugin in registry.plugins],
                "unknown_names": registry.unknown_names,
            }
        )
        return
    from xmckit.cli.tables import print_table

    rows = [
        [item.kind, item.component.name, item.plugin.distribution or item.plugin.file, item.component.summary]
        for item in found
    ]
    print_table(rows, ["kind", "name", "from", "what it is"], left=4)
    print_faults(registry)


def plugin_facts(plugin: Any) -> dict[str, str]:
    return {
        "name": plugin.name,
        "origin": plugin.origin,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "file": plugin.file,
        "problem": plugin.problem,
        "blocked": plugin.blocked,
    }


def print_faults(registry: Any) -> None:
    """Plugins that are not used, and why."""
    for plugin in registry.problems:
        click.echo(f"\n{common.styled('set aside', fg='red')}: {plugin.described}: {plugin.problem}")
    for plugin in registry.plugins:
        if plugin.blocked:
            click.echo(f"\nnot loaded: {plugin.described}: {plugin.blocked}")
    for name in registry.unknown_names:
        click.echo(
            f"\n{name}: named in XMCKIT_PLUGINS or XMCKIT_DISABLE_PLUGINS, but no plugin or distribution has this name"
        )


@plugins.command("show")
@click.argument("component", metavar="KIND:NAME")
@common.json_option
def show(component: str, as_json: bool) -> None:
    """Show one component: what it is for, where it is defined, and its parameters."""
    from xmckit.describe_params import describe_params

    registry = common.get_registry(tolerant=True)
    kind, name = _split_component(component, registry)
    registered = registry.component(kind, name)
    where = registry.locate(kind, name)
    target = registry.resolve(kind, name)
    params = describe_params(target.Params) if hasattr(target, "Params") else []
    facts = {
        "kind": kind,
        "name": name,
        "summary": registered.component.summary,
        "target": registered.component.target,
        "file": where.file,
        "line": where.line,
        "plugin": plugin_facts(registered.plugin),
        "api_version": registered.component.api_version,
        "requires": registered.component.requires,
        "params": params,
    }
    if as_json:
        common.print_json(facts)
        return
    from xmckit.cli.tables import print_table

    click.echo(f"{common.styled(f'{kind}:{name}', bold=True)}  {registered.component.summary}\n")
    click.echo(f"defined in  {where.file}" + (f", line {where.line}" if where.line else ""))
    click.echo(f"from        {registered.plugin.described}")
    if registered.component.requires:
        click.echo(f"requires    {registered.component.requires}")
    if params:
        click.echo()
        rows = [[param["name"], param["type"], param["default"], param["description"]] for param in params]
        print_table(rows, ["parameter", "type", "default", "meaning"], left=4)
    else:
        click.echo("\nIt takes no parameters.")


def _split_component(text: str, registry: Any) -> tuple[str, str]:
    """KIND:NAME, or NAME alone where only one kind has it."""
    from xmckit.errors import UsageError

    kind, colon, name = text.partition(":")
    if colon:
        return kind, name
    kinds = [item.kind for item in registry.all() if item.component.name == text]
    if len(kinds) != 1:
        choices = ", ".join(f"{kind}:{text}" for kind in kinds)
        raise UsageError(f"say KIND:NAME, for instance {choices or 'head:bsl'}; `xmckit plugins ls` lists all of them")
    return kinds[0], text
