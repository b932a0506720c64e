"""The parts of the documents that are made from the code itself, as Markdown: contracts, recipes, components, commands.

They are made whenever the site is built, so none of them can be out of date.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from xmckit import context, hookspecs, params, protocols, records
from xmckit.data import model
from xmckit.hookspecs import KINDS
from xmckit.recipe import sections
from xmckit.recipe.check import a
from xmckit.recipe.schema import recipe_schema
from xmckit.registry import Registered, Registry
from xmckit.registry.describe_params import describe_params

# What is told once, for all kinds, on the page of records.
RECORDS: dict[str, list[type]] = {
    "What a plugin says about itself": [hookspecs.Component],
    "Parameters": [params.Params, params.Spec, params.Configured],
    "What a component is given": [context.Context],
    "Data": [model.Split, model.Groups, model.Dataset],
    "Predictions and their scores": [records.TopK, records.Evaluation],
    "Decisions and verdicts": [
        records.LinearDecision, records.Alternating, records.Verdict, records.Verdicts,
    ],
}  # fmt: skip
# Protocols that belong to another kind's.
BESIDE: dict[str, list[type]] = {"indexer": [protocols.LabelIndex], "reader": [protocols.Writer]}
USED_IN = {
    "head": "[[head]]",
    "label-preprocessor": "[[labels]]",
    "indexer": "[[index]]",
    "verifier": "[verify]",
    "dataset": "[data]",
    "featurizer": "[features]",
    "encoder": "[head.encoder]",
    "metric": "[[score.metrics]]",
    "executor": "[executor]",
}


def own_components(registry: Registry) -> list[Registered]:
    """Those of this distribution: what else is installed here is documented elsewhere."""
    return [item for item in registry.all() if item.plugin.distribution == "xmckit"]


def generated_pages(registry: Registry) -> dict[str, str]:
    """Path of each page → its Markdown."""
    return {
        "reference/recipes.md": recipe_reference(registry),
        "reference/components.md": component_reference(registry),
        "reference/commands.md": command_reference(),
        "reference/records.md": record_reference(),
    }


def contract(kind: str) -> str:
    """The hook of a kind and what its target must offer, word for word as in the source."""
    hook = getattr(hookspecs, KINDS[kind])
    parts = [_code("@xmckit.hookspec\n" + _hook_source(hook))]
    if kind in protocols.PROTOCOLS:
        parts += [_source(protocol) for protocol in (protocols.PROTOCOLS[kind], *BESIDE.get(kind, ()))]
    return "\n".join(parts)


def components_of(kind: str, registry: Registry) -> str:
    """A table of those that come with xmckit, linked to their parameters."""
    mine = [item for item in own_components(registry) if item.kind == kind]
    page = "commands" if kind == "command" else "components"
    rows = [
        (f"[`{_shown_name(item)}`](../reference/{page}.md#{_anchor(item)})", item.component.summary) for item in mine
    ]
    return _table(["name", "what it is"], rows)


def recipe_reference(registry: Registry) -> str:
    """Every section and key of a recipe."""
    schema = recipe_schema(registry)["properties"]
    lines = [
        "# Recipe reference",
        "Made from the models that check recipes. A section that names a component also takes that component's own",
        "parameters: see [components](components.md). `xmckit recipes schema` prints all of this as JSON Schema, for",
        "editors; `xmckit recipes show RECIPE --origin` shows a recipe with all defaults and where each value is from.",
        "",
        "## At the top",
        "",
        _table(_KEYS, [("`extends`", "str", "–", schema["extends"]["description"]), *_key_rows(sections.GeneralKeys)]),
    ]
    for name, section in sections.SECTIONS.items():
        lines += [_section_heading(f"[[{name}]]" if section.repeats else f"[{name}]"), schema[name]["description"]]
        lines += _section_lines(section)
    lines += [_section_heading("[score]"), schema["score"]["description"], ""]
    lines += [_table(_KEYS, _key_rows(sections.ScoreKeys))]
    for name, section in sections.SCORE_SECTIONS.items():
        head = f"[[score.{name}]]" if section.repeats else f"[score.{name}]"
        lines += [_section_heading(head), schema["score"]["properties"][name]["description"]]
        if name == "metrics":
            lines += ["", "By default " + " and ".join(f"`{default}`" for default in sections.DEFAULT_METRICS) + "."]
        lines += _section_lines(section)
    for name, keys in {"ensemble": sections.EnsembleKeys, "report": sections.ReportKeys}.items():
        lines += [_section_heading(f"[{name}]"), "", _table(_KEYS, _key_rows(keys))]
    return "\n".join(lines) + "\n"


def component_reference(registry: Registry) -> str:
    """Every component and its parameters."""
    lines = [
        "# Components",
        "Everything that comes with xmckit and what it takes. `xmckit plugins show KIND:NAME` prints the same for any",
        "installed plugin.",
    ]
    for kind in KINDS:
        mine = [item for item in own_components(registry) if item.kind == kind]
        if kind == "command" or not mine:
            continue
        lines += ["", f"## {_plural(kind)}"]
        if kind in USED_IN:
            lines += ["", f'`use = "…"` in `{USED_IN[kind]}`. [What one must offer](../kinds/{kind}.md).']
        for item in mine:
            lines += ["", f"### {kind}: {item.component.name} {{ #{_anchor(item)} }}", "", item.component.summary]
            if item.component.requires:
                lines += ["", f"Needs `{item.component.requires}`."]
            rows = _key_rows(registry.resolve(kind, item.component.name).Params)
            lines += ["", _table(_KEYS, rows) if rows else "It takes no parameters."]
    return "\n".join(lines) + "\n"


def command_reference() -> str:
    """Every command with its arguments and options, from click."""
    from xmckit.cli.invocation import global_options

    lines = [
        "# Commands",
        "`xmckit --help`, and `--help` behind any command, print the same. These stand anywhere on the line:",
        "",
        _table(["option", "meaning"], [_option_row(option) for option in global_options()]),
    ]
    for path, command, click_context in walk_commands():
        if len(path) == 1:
            continue
        usage = " ".join(click_context.command.collect_usage_pieces(click_context))
        lines += ["", f"{'##' if len(path) == 2 else '###'} {' '.join(path)} {{ #{'-'.join(path[1:])} }}", ""]
        lines += [f"    {click_context.command_path} {usage}".rstrip(), ""]
        lines += [_paragraphs(command.help or "")]
        rows = [_option_row(option) for option in own_options(command)]
        if rows:
            lines += ["", _table(["option", "meaning"], rows)]
    return "\n".join(lines) + "\n"


def record_reference() -> str:
    """The records that all kinds share."""
    lines = [
        "# Records",
        "What components are given and what they return, word for word as in the source. All of these names, but for",
        "`Spec` and `Context`'s parts, are in `xmckit` itself.",
    ]
    for title, classes in RECORDS.items():
        lines += ["", f"## {title}"]
        for record in classes:
            lines += ["", f"### {record.__name__}", "", _source(record)]
    return "\n".join(lines) + "\n"


def walk_commands() -> Iterator[tuple[list[str], click.Command, click.Context]]:
    """Every command of the program, groups before what is below them; those of other distributions are left out."""
    from xmckit.cli import xmckit
    from xmckit.registry import default_registry

    offered = {item.component.name for item in own_components(default_registry()) if _is_command(item)}
    groups = {name.partition(".")[0] for name in offered}

    def below(command: click.Command, above: click.Context | None, path: list[str]) -> Iterator[Any]:
        here = click.Context(command, info_name=path[-1], parent=above)
        yield path, command, here
        if isinstance(command, click.Group):
            for name in command.list_commands(here):
                child = command.get_command(here, name)
                if child is not None and (len(path) > 1 or name in groups):
                    yield from below(child, here, [*path, name])

    yield from below(xmckit, None, ["xmckit"])


def own_options(command: click.Command) -> list[click.Option]:
    """Without those that every command takes."""
    from xmckit.cli.invocation import global_options

    everywhere = {name for option in global_options() for name in option.opts}
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not everywhere & set(parameter.opts)
    ]


_KEYS = ["key", "type", "default", "meaning"]


def _is_command(item: Registered) -> bool:
    return item.kind == "command"


def _section_heading(name: str) -> str:
    anchor = name.strip("[]").replace(".", "-")
    return f"\n## `{name}` {{ #{anchor} }}\n"


def _section_lines(section: sections.SectionKind) -> list[str]:
    article, _, kind = a(section.kind).partition(" ")
    said = [f"`use` names {article} [{kind}](components.md#{_plural(kind).lower().replace(' ', '-')})"]
    if section.default:
        said.append(f"by default `{section.default}`")
    if section.repeats:
        said.append("the section may be there several times")
    if section.optional:
        said.append("`false` is none")
    lines = ["", "; ".join(said) + "."]
    if section.reserved:
        lines += ["", _table(_KEYS, _key_rows(section.reserved))]
    return lines


def _key_rows(keys: type) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{row['name']}`", row["type"], _default(row["default"]), row["description"]) for row in describe_params(keys)
    ]


def _default(text: str) -> str:
    return text if text in ("required", "–") else f"`{text}`"


def _option_row(option: click.Parameter) -> tuple[str, str]:
    assert isinstance(option, click.Option)
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {_metavar(option)}"
    choices = isinstance(option.type, click.Choice)
    default = f" By default `{option.default}`." if option.show_default and option.default is not None else ""
    one_of = " One of " + ", ".join(f"`{choice}`" for choice in option.type.choices) + "." if choices else ""
    return names + value, (option.help or "") + one_of + default


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return ""
    return "N" if isinstance(option.type, (click.IntRange, click.FloatRange)) else option.type.name.upper()


def _paragraphs(help_text: str) -> str:
    """Click's help as Markdown: `\\b` marks a block whose lines stay as they are."""
    parts = []
    for part in inspect.cleandoc(help_text).split("\n\n"):
        kept = part.startswith("\b")
        parts.append(textwrap.indent(part.removeprefix("\b\n"), "    ") if kept else part)
    return "\n\n".join(parts)


def _hook_source(hook: Any) -> str:
    lines = inspect.getsource(hook).splitlines()
    return "\n".join(line.partition("  # type:")[0] for line in lines if not line.startswith("@"))


def _source(record: type) -> str:
    return _code(inspect.getsource(record))


def _code(text: str) -> str:
    return f"```python\n{textwrap.dedent(text).rstrip()}\n```\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _plural(kind: str) -> str:
    name = kind.replace("-", " ")
    return f"{name}s".capitalize()


def _shown_name(item: Registered) -> str:
    return item.component.name.replace(".", " ")


def _anchor(item: Registered) -> str:
    return item.component.name.replace(".", "-") if _is_command(item) else f"{item.kind}-{item.component.name}"
