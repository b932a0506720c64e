"""`xmckit plugins`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_table
from xmckit.errors import PluginError, UsageError, counted, nearest, printable


@click.group()
def plugins() -> None:
    """List, show, check, trace and create plugins."""


@plugins.command("ls")
@click.option("--kind", help="List only components of this kind.")
@options.json_option
def ls(kind: str | None, as_json: bool) -> None:
    """List all components, and the plugins that are not used, with the reason."""
    from xmckit.kinds import KINDS

    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind '{kind}'{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    registry = invocation.get_registry(tolerant=True)
    items = [item for item in registry.all() if kind in (None, item.kind)]
    if as_json:
        components = [
            {**_component_facts(item), "plugin": item.plugin.name, "distribution": item.plugin.distribution}
            for item in items
        ]
        plugins = [plugin_facts(plugin) for plugin in registry.plugins]
        options.print_json({"components": components, "plugins": plugins, "unknown_names": registry.unknown_names})
        return
    rows = [
        [item.kind, item.component.name, item.plugin.distribution or item.plugin.file, item.component.summary]
        for item in items
    ]
    print_table(rows, ["kind", "name", "from", "what it is"], left=4)
    print_faults(registry)


def plugin_facts(plugin: Any) -> dict[str, Any]:
    names = ("name", "origin", "distribution", "version", "file", "problem", "blocked", "where")
    return {
        **{name: getattr(plugin, name) for name in names},
        "line": plugin.at.line if plugin.at else None,
        "deprecated": [f"{at}: {message}" for at, message in plugin.deprecated],
    }


def _component_facts(item: Any) -> dict[str, Any]:
    component = item.component
    return {"kind": item.kind, "name": component.name, "summary": component.summary, "target": component.target}


def print_faults(registry: Any) -> None:
    """Print the plugins that are not used, with the reason, and the uses of deprecated names."""
    for plugin in registry.problems:
        click.echo(f"\n{options.styled('set aside', fg='red')}: {printable(f'{plugin.description}: {plugin.problem}')}")
    for plugin in registry.plugins:
        for at, message in plugin.deprecated:
            click.echo(f"\n{options.styled('deprecated', fg='yellow')}: {plugin.description}: {at}: {message}")
        if plugin.blocked:
            click.echo(f"\nnot loaded: {plugin.description}: {plugin.blocked}")
    for name in registry.unknown_names:
        click.echo(
            f"\n{name}: named in XMCKIT_PLUGINS or XMCKIT_DISABLE_PLUGINS, but no plugin or distribution has this name"
        )


@plugins.command("show")
@click.argument("component", metavar="KIND:NAME")
@options.json_option
def show(component: str, as_json: bool) -> None:
    """Show the purpose, the location and the parameters of the component KIND:NAME."""
    from xmckit.recipe.expectations import describe_params

    registry = invocation.get_registry(tolerant=True)
    kind, name = _split_component(component, registry)
    registered = registry.component(kind, name)
    where = registry.locate(kind, name)
    target = registry.resolve(kind, name)
    params = describe_params(target.Params) if hasattr(target, "Params") else []
    facts = {
        **_component_facts(registered),
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
    click.echo(f"{options.styled(f'{kind}:{name}', bold=True)}  {registered.component.summary}\n")
    click.echo(f"defined in  {where.file}" + (f", line {where.line}" if where.line else ""))
    click.echo(f"from        {registered.plugin.description}")
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
@click.option("--single-file", is_flag=True, help="Write a single file for --plugin instead of a distribution.")
@click.option(
    "--output", default=".", metavar="DIR", type=click.Path(path_type=Path), help="Folder to write into [default: .]."
)
@options.json_option
def new(kind: str, name: str, single_file: bool, output: Path, as_json: bool) -> None:
    """Write a plugin to start from: a working example of KIND called NAME, with tests.

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
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a parameter of the component.")
@click.option(
    "--example",
    type=click.Path(exists=True, resolve_path=True, path_type=Path),
    help="Small example file or folder for a reader.",
)
@options.json_option
def check(name: str, sets: tuple[str, ...], example: Path | None, as_json: bool) -> None:
    """Run the conformance suite on a component; exit with code 4 if a check fails.

    NAME alone checks all components with this name, and all components of a plugin or distribution with this name.
    """
    import sys

    from xmckit.cli import plugins_check

    registry = invocation.get_registry()
    cases = plugins_check.select_cases(name, sets, example, registry)
    needs = plugins_check.missing_needs(cases)
    locations = {case.name: registry.locate(case.kind, str(case.component)) for case in cases}
    results = plugins_check.run_checks([case for case in cases if case.name not in needs])
    if as_json:
        options.print_json(plugins_check.results_json(results, locations, needs))
    else:
        plugins_check.print_results(results, locations, needs)
    if not plugins_check.all_passed(results):
        sys.exit(4)


@plugins.command("trace")
@click.option("--components", is_flag=True, help="Also import every component, which may take a while.")
@click.option("--all", "everything", is_flag=True, help="Also show hook calls without an answer.")
@options.json_option
def trace(components: bool, everything: bool, as_json: bool) -> None:
    """Show how plugins were loaded: imports, hook calls, numbers of components, and times.

    A module that several plugins import counts for the first. XMCKIT_TRACE=1 prints the same steps to stderr with any
    command, as they happen.
    """
    import contextlib
    import dataclasses

    registry = invocation.get_registry(tolerant=True)
    for item in registry.all() if components else ():
        with contextlib.suppress(PluginError):  # its step shows the error
            registry.resolve(item.kind, item.component.name)
    if as_json:
        steps = [dataclasses.asdict(step) for step in registry.steps]
        options.print_json({"steps": steps, "plugins": [plugin_facts(plugin) for plugin in registry.plugins]})
        return
    silent = [step for step in registry.steps if step.outcome == "no answer"]
    rows = [
        [step.plugin, step.action, step.what, step.outcome, f"{1000 * step.seconds:.1f}"]
        for step in registry.steps
        if everything or step not in silent
    ]
    print_table(rows, ["plugin", "step", "of", "outcome", "ms"], left=4)
    calls = sum(step.action == "hook" for step in registry.steps)
    seconds = sum(step.seconds for step in registry.steps)
    answers = f"{counted(calls, 'hook call')}, {calls - len(silent)} answered"
    click.echo(f"\n{answers}; all steps took {1000 * seconds:.1f} ms")
    print_faults(registry)


def _split_component(text: str, registry: Any) -> tuple[str, str]:
    """Split KIND:NAME; NAME alone is enough if only one kind has it."""
    kind, colon, name = text.partition(":")
    if colon:
        return kind, name
    kinds = [item.kind for item in registry.all() if item.component.name == text]
    if len(kinds) != 1:
        choices = ", ".join(f"{kind}:{text}" for kind in kinds)
        raise UsageError(f"say KIND:NAME, for instance {choices or 'head:bsl'}; `xmckit plugins ls` lists all of them")
    return kinds[0], text
