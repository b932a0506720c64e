"""Generate the reference pages from the code, as Markdown, whenever the site is built.

mkdocstrings writes the Python names and mkdocs-click the commands; this module says which. Recipe keys and the
parameters of components are known to the registry only, so their tables are written here.
"""

from __future__ import annotations

import copy
import functools
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click

from xmckit import context, hookspecs, params, records
from xmckit.data import model
from xmckit.kinds import KINDS, load_protocol
from xmckit.recipe import sections
from xmckit.recipe.expectations import describe_params, with_article
from xmckit.recipe.schema import recipe_schema
from xmckit.registry import Registered, Registry
from xmckit.testing.suite import checks_of

# The records that several kinds share, by heading.
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


def own_components(registry: Registry) -> list[Registered]:
    """Return the components of this distribution; other installed plugins have documents of their own."""
    return [item for item in registry.all() if item.plugin.distribution == "xmckit"]


def generated_pages(registry: Registry) -> dict[str, str]:
    """Return the Markdown of each generated page by its path."""
    return {
        "reference/recipes.md": recipe_reference(registry),
        "reference/components.md": component_reference(registry),
        "reference/commands.md": command_reference(),
        "reference/records.md": record_reference(),
    }


def contract(kind: str) -> str:
    """Return the hook of a kind, and the protocols that its targets must and may offer, for mkdocstrings to expand."""
    entry = KINDS[kind]
    hook = getattr(hookspecs.specifications(), entry.hook)
    parts = [
        f'```python\n@xmckit.hookspec\ndef {entry.hook}() -> Iterable[Component]:\n    """{hook.__doc__}"""\n```\n'
    ]
    parts += [_documented(load_protocol(name)) for name in (entry.protocol, *entry.related) if name]
    if entry.optional:
        parts += ["### Optional\n", "A component may also offer these; the toolkit uses what it finds.\n"]
        parts += [_optional(kind, load_protocol(name)) for name in entry.optional]
    return "\n".join(parts)


def _optional(kind: str, protocol: type) -> str:
    """Return an optional protocol, with the check that covers it."""
    checks = [check.__name__ for check in checks_of(kind) if protocol in getattr(check, "covered", ())]
    return f"{_documented(protocol)}\nChecked by {', '.join(f'`{name}`' for name in checks)}.\n"


def components_of(kind: str, registry: Registry) -> str:
    """Return a table of the kind's components in xmckit, linked to their parameters."""
    mine = [item for item in own_components(registry) if item.kind == kind]
    page = "commands" if kind == "command" else "components"
    rows = [
        (f"[`{_shown_name(item)}`](../reference/{page}.md#{_anchor(item)})", item.component.summary) for item in mine
    ]
    return _table(["name", "what it is"], rows)


def recipe_reference(registry: Registry) -> str:
    """Return the page of all sections and keys of a recipe."""
    schema = recipe_schema(registry)["properties"]
    lines = [
        "# Recipe reference",
        "Generated from the models that check recipes. A section that names a component also takes the parameters of",
        "that component: see [components](components.md). `xmckit recipes schema` prints the same as JSON Schema, for",
        "editors. `xmckit recipes show RECIPE --origin` shows a recipe with all defaults and the origin of each value.",
        "",
        "## Top level",
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
    """Return the page of all components and their parameters."""
    lines = [
        "# Components",
        "All components of xmckit and their parameters. `xmckit plugins show KIND:NAME` prints the same for any",
        "installed plugin.",
    ]
    for kind in KINDS:
        mine = [item for item in own_components(registry) if item.kind == kind]
        if kind == "command" or not mine:
            continue
        lines += ["", f"## {KINDS[kind].plural.capitalize()}"]
        if KINDS[kind].usage:
            lines += ["", f'`use = "…"` in `{KINDS[kind].usage}`. [Contract](../kinds/{kind}.md).']
        for item in mine:
            lines += ["", f"### {kind}: {item.component.name} {{ #{_anchor(item)} }}", "", item.component.summary]
            if item.component.requires:
                lines += ["", f"Needs `{item.component.requires}`."]
            rows = _key_rows(registry.resolve(kind, item.component.name).Params)
            lines += ["", _table(_KEYS, rows) if rows else "No parameters."]
    return "\n".join(lines) + "\n"


def command_reference() -> str:
    """Return the page of all commands, for mkdocs-click to expand."""
    lines = [
        "# Commands",
        "`xmckit --help`, and `--help` after any command, print the same. Every command also takes these options:",
        "",
        _table(["option", "meaning"], _global_option_rows()),
    ]
    for name in documented_commands():
        lines += ["", "::: mkdocs-click", "    :module: reference", f"    :command: {_COMMAND}{name}"]
        lines += [f"    :prog_name: xmckit {name}", "    :depth: 1"]
    return "\n".join(lines) + "\n"


def record_reference() -> str:
    """Return the page of the records that several kinds share, for mkdocstrings to expand."""
    lines = [
        "# Records",
        "What components take and return. All of these names can be imported from `xmckit` itself.",
    ]
    for title, records_ in RECORDS.items():
        lines += ["", f"## {title}", "", *map(_documented, records_)]
    return "\n".join(lines) + "\n"


_COMMAND = "command_"
_KEYS = ["key", "type", "default", "meaning"]


def _is_command(item: Registered) -> bool:
    return item.kind == "command"


def _section_heading(name: str) -> str:
    anchor = name.strip("[]").replace(".", "-")
    return f"\n## `{name}` {{ #{anchor} }}\n"


def _section_lines(section: sections.SectionKind) -> list[str]:
    article, _, kind = with_article(section.kind).partition(" ")
    said = [f"`use` names {article} [{kind}](components.md#{KINDS[section.kind].plural.replace(' ', '-')})"]
    if section.default:
        said.append(f"by default `{section.default}`")
    if section.repeats:
        said.append("the section may be there several times")
    if section.optional:
        said.append("`false` is none")
    lines = ["", "; ".join(said) + "."]
    if section.reserved.model_fields:
        lines += ["", _table(_KEYS, _key_rows(section.reserved))]
    return lines


def _key_rows(keys: type) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{row['name']}`", row["type"], _default(row["default"]), row["description"]) for row in describe_params(keys)
    ]


def _default(text: str) -> str:
    return text if text in ("required", "–") else f"`{text}`"


def _documented(thing: Any) -> str:
    """Return the directive for mkdocstrings. The signature of a dataclass already has its fields."""
    lines = [f"::: {thing.__module__}.{thing.__qualname__}"]
    fields = getattr(thing, "__dataclass_fields__", ())
    if fields:
        lines += ["    options:", f"      filters: ['!^_', '!^({'|'.join(fields)})$']"]
    return "\n".join([*lines, ""])


def _global_options() -> list[click.Option]:
    """Return the options that every command takes; the program itself also has `--version`."""
    from xmckit.cli import xmckit

    return [option for option in xmckit.params if isinstance(option, click.Option) and option.name != "version"]


def _global_option_rows() -> list[tuple[str, str]]:
    return [
        (" ".join([", ".join(f"`{name}`" for name in option.opts), option.metavar or ""]), option.help or "")
        for option in _global_options()
    ]


def __getattr__(name: str) -> Any:
    """Give mkdocs-click, which asks for an attribute of a module, the command of this name."""
    commands = documented_commands() if name.startswith(_COMMAND) else {}
    if name.removeprefix(_COMMAND) not in commands:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return commands[name.removeprefix(_COMMAND)]


@functools.cache
def documented_commands() -> dict[str, click.Command]:
    """Return the commands of this distribution by name, without the options that all commands take."""
    from xmckit.cli import xmckit
    from xmckit.registry import default_registry

    own = {item.component.name.partition(".")[0] for item in own_components(default_registry()) if _is_command(item)}
    context = click.Context(xmckit)
    commands = {name: xmckit.get_command(context, name) for name in xmckit.list_commands(context) if name in own}
    return {name: _documented_command(command) for name, command in commands.items() if command is not None}


def _documented_command(command: click.Command) -> click.Command:
    everywhere = {name for option in _global_options() for name in option.opts}
    result = copy.copy(command)
    result.params = [parameter for parameter in command.params if not everywhere & set(parameter.opts)]
    result.help = _paragraphs(command.help or "")
    result.add_help_option = False
    if isinstance(result, click.Group):
        result.commands = {name: _documented_command(child) for name, child in result.commands.items()}
    return result


def _paragraphs(help_text: str) -> str:
    """Return click's help as Markdown, in which `\\b` marks a block with fixed lines."""
    parts = []
    for part in inspect.cleandoc(help_text).split("\n\n"):
        kept = part.startswith("\b")
        parts.append(textwrap.indent(part.removeprefix("\b\n"), "    ") if kept else part)
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shown_name(item: Registered) -> str:
    return item.component.name.replace(".", " ")


def _anchor(item: Registered) -> str:
    if _is_command(item):  # as mkdocs-click names its headings
        return f"xmckit-{item.component.name.replace('.', '-')}"
    return f"{item.kind}-{item.component.name}"
