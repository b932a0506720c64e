"""`xmckit plugins`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xmckit.cli import invocation, options


@click.group()
def plugins() -> None:
    """List plugins, look at one, check one, start one of your own."""


@plugins.command("ls")
@click.option("--kind", help="Only components of this kind.")
@options.json_option
def ls(kind: str | None, as_json: bool) -> None:
    """List every component, and every plugin that was set aside or blocked with the reason."""
    from xmckit.errors import UsageError, nearest
    from xmckit.hookspecs import KINDS

    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind '{kind}'{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    registry = invocation.get_registry(tolerant=True)
    found = [item for item in registry.all() if kind in (None, item.kind)]
    if as_json:
        options.print_json(
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


def plugin_facts(plugin: Any) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "origin": plugin.origin,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "file": plugin.file,
        "problem": plugin.problem,
        "blocked": plugin.blocked,
        "line": plugin.at.line if plugin.at else None,
        "where": plugin.where,
        "deprecated": [f"{at}: {told}" for at, told in plugin.deprecated],
    }


def print_faults(registry: Any) -> None:
    """Plugins that are not used, and why."""
    for plugin in registry.problems:
        click.echo(f"\n{options.styled('set aside', fg='red')}: {plugin.described}: {plugin.problem}")
    for plugin in registry.plugins:
        for at, told in plugin.deprecated:
            click.echo(f"\n{options.styled('deprecated', fg='yellow')}: {plugin.described}: {at}: {told}")
        if plugin.blocked:
            click.echo(f"\nnot loaded: {plugin.described}: {plugin.blocked}")
    for name in registry.unknown_names:
        click.echo(
            f"\n{name}: named in XMCKIT_PLUGINS or XMCKIT_DISABLE_PLUGINS, but no plugin or distribution has this name"
        )


@plugins.command("show")
@click.argument("component", metavar="KIND:NAME")
@options.json_option
def show(component: str, as_json: bool) -> None:
    """Show the component KIND:NAME: what it is for, where it is defined, and its parameters."""
    from xmckit.registry.describe_params import describe_params

    registry = invocation.get_registry(tolerant=True)
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
        options.print_json(facts)
        return
    from xmckit.cli.tables import print_table

    click.echo(f"{options.styled(f'{kind}:{name}', bold=True)}  {registered.component.summary}\n")
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


@plugins.command("new")
@click.argument("kind")
@click.argument("name")
@click.option("--single-file", is_flag=True, help="Write one file, for --plugin, instead of a distribution.")
@click.option(
    "--output", default=".", metavar="DIR", type=click.Path(path_type=Path), help="Where to write it; by default here."
)
@options.json_option
def new(kind: str, name: str, single_file: bool, output: Path, as_json: bool) -> None:
    """Write a plugin to start from: a working example of KIND under your NAME, with its tests.

    KIND is head, indexer, label-preprocessor, verifier, dataset, reader, encoder or metric.
    """
    from xmckit import scaffold

    write = scaffold.write_single_file if single_file else scaffold.write_distribution
    path = write(kind, name, output, invocation.get_registry(tolerant=True))
    if as_json:
        files = [path] if single_file else sorted(file for file in path.rglob("*") if file.is_file())
        options.print_json({"path": str(path), "files": [str(file) for file in files]})
        return
    click.echo(str(path))
    if not invocation.quiet():
        install = f"--plugin {path}" if single_file else f"after: pip install --editable '{path}[test]'"
        click.echo(f"\nIn a recipe ({install}):\n\n{scaffold.usage(kind, name)}", err=True)


@plugins.command("check")
@click.argument("name", metavar="KIND:NAME|NAME")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A parameter to check the component with.")
@click.option(
    "--example",
    type=click.Path(exists=True, resolve_path=True, path_type=Path),
    help="A small example in the format of a reader.",
)
@options.json_option
def check(name: str, sets: tuple[str, ...], example: Path | None, as_json: bool) -> None:
    """Hold a component to the promises of its kind, one check for each; exit code 4 when one is broken.

    NAME alone checks all components of that name, and all that a plugin or a distribution of that name offers.
    """
    import sys

    from xmckit.cli import checks

    registry = invocation.get_registry()
    cases = checks.chosen(name, sets, example, registry)
    needs, places = checks.left_out(cases), checks.defined(cases, registry)
    results = checks.run([case for case in cases if case.name not in needs])
    if as_json:
        options.print_json(checks.facts(results, places, needs))
    else:
        checks.show(results, places, needs)
    if not checks.sound(results):
        sys.exit(4)


@plugins.command("trace")
@click.option("--components", is_flag=True, help="Also import every component: this may take a while.")
@click.option("--all", "everything", is_flag=True, help="Also the hook calls that were not answered.")
@options.json_option
def trace(components: bool, everything: bool, as_json: bool) -> None:
    """Show how plugins were loaded: imports, hook calls, who answered with how many components, how long it took.

    What one import brought along, the next finds there and is quicker. XMCKIT_TRACE=1 prints the same to stderr, as it
    happens, with any command.
    """
    import contextlib
    import dataclasses

    from xmckit.errors import PluginError

    registry = invocation.get_registry(tolerant=True)
    for item in registry.all() if components else ():
        with contextlib.suppress(PluginError):  # its step says so
            registry.resolve(item.kind, item.component.name)
    if as_json:
        options.print_json(
            {
                "steps": [dataclasses.asdict(step) for step in registry.steps],
                "plugins": [plugin_facts(plugin) for plugin in registry.plugins],
            }
        )
        return
    from xmckit.cli.tables import print_table

    silent = [step for step in registry.steps if step.outcome == "no answer"]
    told = registry.steps if everything else [step for step in registry.steps if step not in silent]
    rows = [[step.plugin, step.action, step.what, step.outcome, f"{1000 * step.seconds:.1f}"] for step in told]
    print_table(rows, ["plugin", "step", "of", "outcome", "ms"], left=4)
    calls = sum(step.action == "hook" for step in registry.steps)
    seconds = sum(step.seconds for step in registry.steps)
    click.echo(f"\n{calls} hook calls, {calls - len(silent)} answered; all steps took {1000 * seconds:.1f} ms")
    print_faults(registry)


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
