"""Everything that people can use is documented: hooks, parameters, recipe keys, commands and options.

test_site.py looks for the contracts, records and commands on the pages that mkdocstrings and mkdocs-click write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import Field

import xmckit
from xmckit.kinds import KINDS
from xmckit.recipe import sections
from xmckit.recipe.expectations import describe_params
from xmckit.testing.suite import checks_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows_below(page: str, heading: str) -> dict[str, list[str]]:
    """Return the table rows between a heading and the next one, by their first cell."""
    start = re.search(rf"^#+ .*\{{ #{re.escape(heading)} \}}$", page, flags=re.MULTILINE)
    assert start, f"no heading {heading}"
    part = re.split(r"^#", page[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells}


def undescribed(params: type) -> list[str]:
    return [row["name"] for row in describe_params(params) if len(row["description"]) < 5]


def without_help(command: click.Command) -> list[str]:
    """Return what a command does not explain: itself, options, and arguments that its help does not mention."""
    missing = [] if command.help else ["help"]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.help:
            missing.append(parameter.opts[0])
        if isinstance(parameter, click.Argument):
            words = set(re.findall(r"[A-Z]+", parameter.human_readable_name))
            if not any(word in (command.help or "") for word in words):
                missing.append(parameter.human_readable_name)
    return missing


def walk_commands(commands: dict[str, click.Command]) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its path, groups before their commands."""
    for name, command in commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {path}", child) for path, child in walk_commands(command.commands))


def test_every_hook_has_a_kind_and_every_kind_a_page(reference):
    for kind, entry in KINDS.items():
        hook = entry.hook
        page = (DOCS / "kinds" / f"{kind}.md").read_text("utf-8")
        assert page.count("<!-- contract -->") == page.count("<!-- components -->") == 1, kind
        assert f"def {hook}():" in page, f"{kind}.md has no example that implements {hook}"
        assert f"def {hook}() -> Iterable[Component]:" in reference.contract(kind)
        assert entry.summary in reference.contract(kind)
        assert reference.contract(kind).count("Checked by `") == len(entry.optional)
        assert f"`{hook}`" in (DOCS / "kinds" / "index.md").read_text("utf-8")
        assert not entry.usage or f"`{entry.usage}`" in (DOCS / "kinds" / "index.md").read_text("utf-8"), kind


def test_every_check_is_in_the_documents():
    names = {check.__name__ for kind in KINDS if KINDS[kind].checks for check in checks_of(kind)}
    listed = (DOCS / "conformance.md").read_text("utf-8").partition("## What is checked")[2]
    assert names == set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", listed)) - {"expected_failures"}


def test_every_parameter_is_described_and_in_the_reference(reference, registry):
    page = reference.component_reference(registry)
    checked = 0
    for item in reference.own_components(registry):
        assert len(item.component.summary) > 10, item.description
        if item.kind == "command":
            continue
        params = registry.resolve(item.kind, item.component.name).Params
        assert not undescribed(params), f"{item.description}: {undescribed(params)}"
        rows = rows_below(page, f"{item.kind}-{item.component.name}")
        for row in describe_params(params):
            assert rows[f"`{row['name']}`"][2].replace("\\|", "|") == " ".join(row["description"].split())
            checked += 1
    assert checked > 100


def test_every_key_of_a_recipe_is_in_the_reference(reference, registry):
    page = reference.recipe_reference(registry)
    for key in ("extends", *sections.GeneralKeys.model_fields):
        assert f"| `{key}` |" in page
    kinds = {**sections.SECTIONS, **{f"score-{name}": what for name, what in sections.SCORE_SECTIONS.items()}}
    models = {name: what.reserved for name, what in kinds.items()}
    models |= {"score": sections.ScoreKeys, "ensemble": sections.EnsembleKeys, "report": sections.ReportKeys}
    for name, model in models.items():
        rows = rows_below(page, name)
        for key in model.model_fields:
            assert rows[f"`{key}`"][2], f"[{name}] {key}"
    assert not undescribed(sections.GeneralKeys)


def test_every_command_and_option_is_explained(reference):
    paths = []
    for path, command in walk_commands(reference.documented_commands()):
        assert not without_help(command), f"{path}: {without_help(command)}"
        paths.append(path)
    assert {"run", "plugins new", "certificates check", "labels inspect"} <= set(paths)


def test_what_is_undocumented_is_found():
    class Params(xmckit.Params):
        described: int = Field(1, description="Something that people can read.")
        bare: int = 2

    @click.command()
    @click.argument("thing")
    @click.option("--how")
    def quiet(thing, how):
        """Does it."""

    assert undescribed(Params) == ["bare"]
    assert without_help(quiet) == ["THING", "--how"]
    assert without_help(click.Command("bare")) == ["help"]
