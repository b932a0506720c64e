"""`xmckit data`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options

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
    """List, fetch, describe and convert data sets."""


@data.command("ls")
@options.data_option
@options.json_option
def ls(data_folders: tuple[str, ...], as_json: bool) -> None:
    """List the data sets by name, whether they are there, and what else is below --data and XMCKIT_DATA."""
    from xmckit.errors import UsageError

    registry = invocation.get_registry()
    roots = invocation.data_roots(data_folders)
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder")
    sets = [
        {"name": item.component.name, "kind": "built in", "state": "", "what": item.component.summary}
        for item in registry.all()
        if item.kind == "dataset"
    ]
    sets += _published(roots)
    taken = {found["path"] for found in sets if found.get("path")}
    readers = {name: registry.resolve("reader", name)() for name in registry.names("reader")}
    for path in (path for root in roots for path in sorted(root.iterdir())):
        formats = [name for name, reader in readers.items() if reader.matches(path)]
        if formats and str(path) not in taken:
            sets.append({"name": str(path), "kind": " or ".join(formats), "state": "there", "what": ""})
    if as_json:
        options.print_json(sets)
        return
    from xmckit.cli.tables import print_table

    columns = ["name", "kind", "state", "what"]
    print_table([[item[column] for column in columns] for item in sets], ["name", "kind", "", ""], left=4)


def _published(roots: list[Path]) -> list[dict[str, Any]]:
    """The sets of the catalogue, each with the folder of `roots` that has it, or has some of it."""
    from xmckit.data.catalogue import catalogue, state

    found = []
    for name, entry in catalogue().items():
        places = [(root / name, *state(entry, root / name)) for root in roots]
        present = [place for place in places if place[1] == "there"] or [
            place for place in places if place[1] != "missing"
        ]
        path, is_there, wrong = present[0] if present else (None, "missing", [])
        sizes = {key: getattr(entry, key) for key in ("rows", "test_rows", "features", "labels")}
        found.append(
            {
                "name": name,
                "kind": "published" if entry.sources else "by hand",
                "state": is_there,
                "what": f"{entry.about}{'; ' + '; '.join(wrong) if wrong else ''}",
                "path": None if path is None else str(path),
                **sizes,
                "licence": entry.licence,
                "citation": entry.citation,
                "page": entry.page,
            }
        )
    return found


@data.command("fetch")
@click.argument("name")
@click.option("--to", "folder", type=click.Path(), help="Where to put its folder [default: XMCKIT_DATA, or else data].")
@click.option(
    "--timeout", default=60.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds to wait for a server."
)
@options.json_option
def fetch(name: str, folder: str | None, timeout: float, as_json: bool) -> None:
    """Download the published set NAME; a download that broke off is gone on with."""
    from xmckit.cli.progress import TerminalProgress
    from xmckit.data.catalogue import downloaded_bytes, find_entry
    from xmckit.data.download import Patience
    from xmckit.data.fetch import fetch as fetch_set

    entry = find_entry(name)
    root = Path(folder).resolve() if folder else next(iter(invocation.data_roots()), Path("data").resolve())
    try:
        with TerminalProgress(quiet=invocation.quiet()) as progress:
            done = fetch_set(entry, root, progress=progress, patience=Patience(timeout=timeout), log=_say)
    except KeyboardInterrupt:
        if kept := downloaded_bytes(root / entry.name):
            invocation.hint_after_error(f"{kept:,} bytes are kept: the same command goes on with them")
        raise
    if as_json:
        facts = {"address": done.address, "bytes": done.bytes, "checked": done.checked}
        about = {"licence": entry.licence, "citation": entry.citation, "page": entry.page}
        options.print_json(
            {"name": entry.name, "folder": str(done.folder), "fetched": bool(done.address), **facts, **about}
        )
        return
    if done.address is None:
        click.echo(f"{entry.name} is there already")
    elif not done.checked:
        _say(f"no checksum of {entry.name} is published; that of what came is kept in {done.folder}")
    if root not in invocation.data_roots():
        _say(f"it is found with --data {root}, or when XMCKIT_DATA names that folder")
    click.echo(f"licence: {entry.licence}\ncitation: {entry.citation}\n{done.folder}")


def _say(message: str) -> None:
    if not invocation.quiet():
        click.echo(f"note: {message}", err=True)


@data.command("info")
@click.argument("source")
@_param_option
@options.data_option
@options.json_option
def info(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool) -> None:
    """Describe SOURCE, a data set's name or a file or folder: sizes, labels, tail, duplicates.

    Of a published set that is not there it tells what is published, where, and how to have it.
    """
    from xmckit.cli.progress import TerminalProgress
    from xmckit.data.describe import describe

    facts = _of_absent_set(source, invocation.data_roots(data_folders))
    if facts is None:
        with TerminalProgress(quiet=invocation.quiet()) as progress:
            facts = describe(_read(source, params, data_folders, progress))
    if as_json:
        options.print_json(facts)
        return
    from xmckit.cli.tables import print_table
    from xmckit.report.texts import flat_facts

    print_table(flat_facts(facts), ["", facts["name"]], left=2)


def _of_absent_set(source: str, roots: list[Path]) -> dict[str, Any] | None:
    """What is known of a set of the catalogue that no folder has; None for anything else."""
    from xmckit.data.catalogue import catalogue, downloaded_bytes, how_to_get

    entry = catalogue().get(source.lower())
    folders = [Path.cwd(), *roots]
    if entry is None or any((folder / name).exists() for folder in folders for name in (source, entry.name)):
        return None
    facts = entry.model_dump(exclude={"sources", "unpack", "files", "by_hand"})
    sources = {f"source {place}": found.model_dump() for place, found in enumerate(entry.sources, 1)}
    files = {name: known.model_dump() for name, known in entry.needed.items()}
    half = any(downloaded_bytes(root / entry.name) for root in roots)
    state = {"state": "half-downloaded" if half else "missing", "how to have it": how_to_get(entry.name, roots)}
    return {**facts, **sources, "files": files, **state}


@data.command("convert")
@click.argument("source")
@click.argument("folder", type=click.Path())
@click.option("--to", "target", required=True, help="The format to write: a reader that can write, such as npz or xmc.")
@_param_option
@options.data_option
def convert(source: str, folder: str, target: str, params: tuple[str, ...], data_folders: tuple[str, ...]) -> None:
    """Write SOURCE into FOLDER in another format. FOLDER must not exist; it appears when it is complete."""
    from xmckit import store
    from xmckit.cli.progress import TerminalProgress
    from xmckit.errors import UsageError, nearest

    registry = invocation.get_registry()
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
    with TerminalProgress(quiet=invocation.quiet()) as progress:
        dataset = _read(source, params, data_folders, progress)
        with progress(f"writing {target}"), store.atomic_folder(destination) as temporary:
            registry.resolve("reader", target)().write(dataset, temporary)
    click.echo(str(destination))


def _section(source: str, known: list[str], roots: list[Path]) -> dict[str, Any]:
    """What a recipe's [data] would say for a name or a path."""
    from xmckit.data.catalogue import catalogue
    from xmckit.errors import UsageError, nearest

    path = Path(os.path.expanduser(source))
    if source in known:
        return {"use": source}
    if source.lower() in catalogue() and not path.exists():
        return {"use": "repository", "name": source.lower()}
    folders = [Path.cwd(), *roots]
    if not any((folder / path).exists() for folder in folders):
        readable = path.parent.is_dir() and os.access(path.parent, os.R_OK)
        beside = [str(one) for one in path.parent.iterdir()] if readable else []
        raise UsageError(
            f"there is no data set, file or folder '{source}'{nearest(source, [*known, *catalogue(), *beside])} "
            f"(looked in {', '.join(map(str, folders))}; `xmckit data ls` lists the sets)"
        )
    return {"use": "files", "path": source}


def _read(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], progress: Any) -> Dataset:
    from xmckit.registry import make_context

    context = make_context(progress=progress, registry=invocation.get_registry())
    return read_dataset(source, params, data_folders, context)


def read_dataset(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], context: Context) -> Dataset:
    """A data set by its name, or the files at a path."""
    from xmckit.pipeline.output_checks import checked_dataset
    from xmckit.recipe import load_section
    from xmckit.recipe.layers import merge, node_of, read_sets

    registry = invocation.get_registry()
    roots = invocation.data_roots(data_folders)
    named = _section(source, registry.names("dataset"), roots)
    given = read_sets(params, "--param")
    values = merge(node_of(named, given.origin), given).plain()
    section = load_section("data", values, registry=registry, data_roots=roots)
    found = registry.resolve("dataset", section.use)(**section.params)
    return checked_dataset(found.read(context=context), section.use)
