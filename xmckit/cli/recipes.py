"""`xmckit recipes`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import PluginError, RecipeError, StorageError, UsageError, counted


@click.group()
def recipes() -> None:
    """List, show, copy and check recipes."""


@recipes.command("ls")
@options.json_option
def list_recipes(as_json: bool) -> None:
    """List the recipes that ship with xmckit."""
    from xmckit.recipe import shipped_recipes
    from xmckit.recipe.layers import read_source

    rows = []
    for name, file in shipped_recipes().items():
        title = read_source(file).root.child("title")
        rows.append({"name": name, "title": title.plain() if title else "", "path": str(file)})
    if as_json:
        options.print_json(rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['title']}")


@recipes.command("show")
@click.argument("recipe")
@click.option("--origin", is_flag=True, help="Print the origin of each value.")
@options.set_option
@options.data_option
@options.json_option
def show_recipe(recipe: str, origin: bool, sets: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool) -> None:
    """Print RECIPE with all defaults. RECIPE is a name from `xmckit recipes ls` or a .toml file."""
    loaded = _load(recipe, sets, data_folders)
    if not as_json:
        click.echo(loaded.to_toml(with_origins=origin), nl=False)
    elif origin:
        origins = {value["key"]: value["origin"] for value in loaded.written()}
        options.print_json({"recipe": loaded.resolved(), "origins": origins})
    else:
        options.print_json(loaded.resolved())


@recipes.command("cp")
@click.argument("recipe")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def copy_recipe(recipe: str, file: Path | None, force: bool) -> None:
    """Copy RECIPE to FILE for editing; by default to its own name in this folder."""
    from xmckit import store
    from xmckit.recipe.layers import locate, read_text

    source = locate(recipe)
    text = read_text(source)
    target = file or Path(source.name)
    if target.is_dir():
        target = target / source.name
    if target.exists() and not force:
        raise UsageError(f"{target} exists already: choose another name, or --force to overwrite it")
    try:
        store.write_text(target, text)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from None
    click.echo(str(target))


@recipes.command("validate")
@click.argument("names", metavar="RECIPE...", nargs=-1, required=True)
@options.set_option
@options.data_option
@options.json_option
def validate_recipes(
    names: tuple[str, ...], sets: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool
) -> None:
    """Check each RECIPE and print all its mistakes."""
    rows: list[dict[str, Any]] = []
    exit_code = 0
    for name in names:
        try:
            _load(name, sets, data_folders)
            rows.append({"recipe": name, "ok": True, "mistakes": []})
        except (RecipeError, PluginError) as error:
            rows.append({"recipe": name, "ok": False, "mistakes": str(error).splitlines()})
            exit_code = max(exit_code, error.exit_code)
    if as_json:
        options.print_json(rows)
    else:
        for row in rows:
            click.echo(f"{row['recipe']}: {'ok' if row['ok'] else counted(len(row['mistakes']), 'mistake')}")
            for mistake in row["mistakes"]:
                click.echo(f"  {mistake}")
    if exit_code:
        raise SystemExit(exit_code)


@recipes.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of recipe files, for editors that complete and check TOML."""
    from xmckit.recipe.schema import recipe_schema

    options.print_json(recipe_schema(invocation.get_registry()))


def _load(recipe: str, sets: tuple[str, ...], data_folders: tuple[str, ...]) -> Any:
    from xmckit.recipe import load_recipe

    roots = invocation.data_roots(data_folders)
    return load_recipe(recipe, sets=sets, registry=invocation.get_registry(), data_roots=roots)
