"""`xmckit data`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import common

if TYPE_CHECKING:
    from xmckit.context import Context
    from xmckit.data.model import Dataset

_param_option = click.option(
    "--param",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the data set, as in a recipe's [data] section.",
)


@click.group()
def data() -> None:
    """List, describe and convert data sets."""


@data.command("ls")
@common.data_option
@common.json_option
def ls(data_folders: tuple[str, ...], as_json: bool) -> None:
    """List the data sets by name, and those found below --data and XMCKIT_DATA."""
    registry = common.get_registry()
    named = [
        {"name": item.component.name, "kind": "built in", "what": item.component.summary}
        for item in registry.all()
        if item.kind == "dataset"
    ]
    readers = {name: registry.resolve("reader", name)() for name in registry.names("reader")}
    stored = []
    for root in common.data_roots(data_folders):
        if not root.is_dir():
            from xmckit.errors import UsageError

            raise UsageError(f"{root} is not a folder")
        for path in sorted(root.iterdir()):
            formats = [name for name, reader in readers.items() if reader.matches(path)]
            if formats:
                stored.append({"name": str(path), "kind": " or ".join(formats), "what": ""})
    if as_json:
        common.print_json([*named, *stored])
        return
    from xmckit.cli.tables import print_table

    print_table(
        [[item["name"], item["kind"], item["what"]] for item in [*named, *stored]], ["name", "kind", ""], left=3
    )


@data.command("info")
@click.argument("source")
@_param_option
@common.data_option
@common.json_option
def info(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool) -> None:
    """Describe SOURCE, a data set's name or a file or folder: sizes, labels, tail, duplicates."""
    from xmckit.cli.progress import TerminalProgress
    from xmckit.data.describe import describe

    with TerminalProgress(quiet=common.quiet()) as progress:
        dataset = _read(source, params, data_folders, progress)
        facts = describe(dataset)
    if as_json:
        common.print_json(facts)
        return
    from xmckit.cli.tables import print_table
    from xmckit.report.facts import flat_facts

    print_table(flat_facts(facts), ["", dataset.name], left=1)


@data.command("convert")
@click.argument("source")
@click.argument("folder", type=click.Path())
@click.option("--to", "target", required=True, help="The format to write: a reader that can write, such as npz or xmc.")
@_param_option
@common.data_option
def convert(source: str, folder: str, target: str, params: tuple[str, ...], data_folders: tuple[str, ...]) -> None:
    """Write SOURCE into FOLDER in another format. FOLDER must not exist; it appears when it is complete."""
    from xmckit import store
    from xmckit.cli.progress import TerminalProgress
    from xmckit.errors import UsageError, nearest

    registry = common.get_registry()
    writers = [name for name in registry.names("reader") if hasattr(registry.resolve("reader", name), "write")]
    if target not in writers:
        raise UsageError(
            f"cannot write '{target}'{nearest(target, writers)} (formats that can be written: {', '.join(writers)})"
        )
    destination = Path(folder).resolve()
    if destination.exists():
        raise UsageError(f"{destination} exists already; name a new folder")
    above = next(parent for parent in destination.parents if parent.exists())
    if not above.is_dir():
        raise UsageError(f"{destination} cannot be a folder: {above} is a file")
    with TerminalProgress(quiet=common.quiet()) as progress:
        dataset = _read(source, params, data_folders, progress)
        with progress(f"writing {target}"), store.atomic_folder(destination) as temporary:
            registry.resolve("reader", target)().write(dataset, temporary)
    click.echo(str(destination))


def _read(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], progress: Any) -> Dataset:
    """A data set by its registered name, or the files at a path."""
    from xmckit.recipe import load_section
    from xmckit.recipe.layers import merge, node_of, read_sets
    from xmckit.registry import make_context

    registry = common.get_registry()
    context: Context = make_context(progress=progress, registry=registry)
    named = {"use": source} if source in registry.names("dataset") else {"use": "files", "path": source}
    given = read_sets(params, "--param")
    values = merge(node_of(named, given.origin), given).plain()
    section = load_section("data", values, registry=registry, data_roots=common.data_roots(data_folders))
    dataset: Dataset = registry.resolve("dataset", section.use)(**section.params).read(context=context)
    dataset.check()
    return dataset
