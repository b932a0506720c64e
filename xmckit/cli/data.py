"""`xmckit data`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_table
from xmckit.errors import UsageError, nearest

if TYPE_CHECKING:
    from xmckit.context import Context
    from xmckit.data.model import Dataset

_TERMS = {"licence", "citation", "page"}  # facts of a published set


@click.group()
def data() -> None:
    """List, fetch, describe and convert data sets."""


@data.command("ls")
@options.data_option
@options.json_option
def ls(data_folders: tuple[str, ...], as_json: bool) -> None:
    """List the data sets and their state, and other data below --data and XMCKIT_DATA."""
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
    sets += _published_sets(roots)
    taken = {item["path"] for item in sets if item.get("path")}
    readers = {name: registry.resolve("reader", name)() for name in registry.names("reader")}
    for path in (path for root in roots for path in sorted(root.iterdir())):
        formats = [name for name, reader in readers.items() if reader.matches(path)]
        if formats and str(path) not in taken:
            sets.append({"name": str(path), "kind": " or ".join(formats), "state": "there", "what": ""})
    if as_json:
        options.print_json(sets)
        return
    columns = ["name", "kind", "state", "what"]
    print_table([[item[column] for column in columns] for item in sets], ["name", "kind", "", ""], left=4)


def _published_sets(roots: list[Path]) -> list[dict[str, Any]]:
    """Return the sets of the catalogue, each with the folder of `roots` that has it or a part of it."""
    from xmckit.data.catalogue import catalogue, state

    sets = []
    for name, entry in catalogue().items():
        copies = [(root / name, *state(entry, root / name)) for root in roots]
        present = sorted((copy for copy in copies if copy[1] != "missing"), key=lambda copy: copy[1] != "there")
        path, status, problems = present[0] if present else (None, "missing", [])
        sets.append(
            {
                "name": name,
                "kind": "published" if entry.sources else "by hand",
                "state": status,
                "what": "; ".join([entry.about, *problems]),
                "path": None if path is None else str(path),
                **entry.model_dump(include={"rows", "test_rows", "features", "labels", *_TERMS}),
            }
        )
    return sets


@data.command("fetch")
@click.argument("name")
@click.option("--to", "folder", type=click.Path(), help="Folder for the set's folder [default: XMCKIT_DATA, or data].")
@click.option(
    "--timeout", default=60.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds to wait for a server."
)
@options.json_option
def fetch(name: str, folder: str | None, timeout: float, as_json: bool) -> None:
    """Download the published set NAME. Resumes interrupted downloads."""
    from xmckit.data.catalogue import downloaded_bytes, find_entry
    from xmckit.data.download import RetryPolicy
    from xmckit.data.fetch import fetch as fetch_set

    entry = find_entry(name)
    root = Path(folder).resolve() if folder else next(iter(invocation.data_roots()), Path("data").resolve())
    try:
        with invocation.terminal_progress() as progress:
            done = fetch_set(entry, root, progress=progress, retry=RetryPolicy(timeout=timeout), log=_note)
    except KeyboardInterrupt:
        if kept := downloaded_bytes(root / entry.name):
            invocation.hint_after_error(f"{kept:,} bytes are kept: the same command resumes the download")
        raise
    if as_json:
        options.print_json(
            {"name": entry.name, **vars(done), "fetched": bool(done.address), **entry.model_dump(include=_TERMS)}
        )
        return
    if done.address is None:
        click.echo(f"{entry.name} is already complete in this folder")
    elif not done.checked:
        _note(f"no checksum of {entry.name} is published; the checksum of this download is stored in {done.folder}")
    if root not in invocation.data_roots():
        _note(f"use it with --data {root}, or with XMCKIT_DATA set to that folder")
    click.echo(f"licence: {entry.licence}\ncitation: {entry.citation}\n{done.folder}")


def _note(message: str) -> None:
    if not invocation.quiet():
        click.echo(f"note: {message}", err=True)


@data.command("info")
@click.argument("source")
@options.param_option
@options.data_option
@options.json_option
def info(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool) -> None:
    """Describe SOURCE, the name of a data set, a file or a folder: sizes, labels, tail, duplicates.

    For a published set that is missing, print what is published, where, and how to get it.
    """
    from xmckit.data.describe import describe

    facts = _missing_set_facts(source, invocation.data_roots(data_folders))
    if facts is None:
        with invocation.terminal_progress() as progress:
            facts = describe(_read_with_progress(source, params, data_folders, progress))
    if as_json:
        options.print_json(facts)
        return
    from xmckit.report.texts import flat_facts

    print_table(flat_facts(facts), ["", facts["name"]], left=2)


def _missing_set_facts(source: str, roots: list[Path]) -> dict[str, Any] | None:
    """Return the catalogue's facts about a set that no folder has; None for any other source."""
    from xmckit.data.catalogue import catalogue, downloaded_bytes, how_to_get

    entry = catalogue().get(source.lower())
    folders = [Path.cwd(), *roots]
    if entry is None or any((folder / name).exists() for folder in folders for name in (source, entry.name)):
        return None
    facts = entry.model_dump(exclude={"sources", "unpack", "files", "by_hand"})
    sources = {f"source {number}": source_.model_dump() for number, source_ in enumerate(entry.sources, 1)}
    files = {name: known.model_dump() for name, known in entry.needed.items()}
    half = any(downloaded_bytes(root / entry.name) for root in roots)
    state = {"state": "half-downloaded" if half else "missing", "how to have it": how_to_get(entry.name, roots)}
    return {**facts, **sources, "files": files, **state}


@data.command("convert")
@click.argument("source")
@click.argument("folder", type=click.Path())
@click.option("--to", "target", required=True, help="Format to write, for instance npz or xmc.")
@options.param_option
@options.data_option
def convert(source: str, folder: str, target: str, params: tuple[str, ...], data_folders: tuple[str, ...]) -> None:
    """Write SOURCE into FOLDER in another format. FOLDER must not exist; it appears when it is complete."""
    from xmckit import store
    from xmckit.protocols import Writer, offers

    registry = invocation.get_registry()
    writers = [name for name in registry.names("reader") if offers(registry.resolve("reader", name), Writer)]
    if target not in writers:
        raise UsageError(
            f"cannot write '{target}'{nearest(target, writers)} (formats that can be written: {', '.join(writers)})"
        )
    destination = Path(folder).resolve()
    store.check_new_folder(destination)
    with invocation.terminal_progress() as progress:
        dataset = _read_with_progress(source, params, data_folders, progress)
        with progress(f"writing {target}"), store.atomic_folder(destination) as temporary:
            registry.resolve("reader", target)().write(dataset, temporary)
    click.echo(str(destination))


def _data_section(source: str, known: list[str], roots: list[Path]) -> dict[str, Any]:
    """Return a recipe's [data] section for a name or a path."""
    from xmckit.data.catalogue import catalogue

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


def _read_with_progress(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], progress: Any) -> Dataset:
    from xmckit.registry import make_context

    context = make_context(progress=progress, registry=invocation.get_registry())
    return read_dataset(source, params, data_folders, context)


def read_dataset(source: str, params: tuple[str, ...], data_folders: tuple[str, ...], context: Context) -> Dataset:
    """Read a data set by its name, or the files at a path."""
    from xmckit.pipeline.output_checks import checked_dataset
    from xmckit.recipe import load_section
    from xmckit.recipe.layers import merge, node_of, read_sets

    registry = invocation.get_registry()
    roots = invocation.data_roots(data_folders)
    changes = read_sets(params, "--param")
    named = node_of(_data_section(source, registry.names("dataset"), roots), changes.origin)
    section = load_section("data", merge(named, changes).plain(), registry=registry, data_roots=roots)
    dataset = registry.resolve("dataset", section.use)(**section.params)
    return checked_dataset(dataset.read(context=context), section.use)
