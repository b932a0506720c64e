"""Options and output helpers for all commands, also for those of plugins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from xmckit.errors import printable_json

__all__ = [
    "data_option",
    "html_option",
    "json_option",
    "param_option",
    "print_json",
    "runs_option",
    "set_option",
    "styled",
    "workers_option",
]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
data_option = click.option(
    "--data",
    "data_folders",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="Folder with data; repeatable. XMCKIT_DATA adds more folders.",
)
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the recipe, for instance --set head.dim=64; repeatable.",
)
runs_option: Callable[..., Any] = click.option(
    "--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs."
)
param_option = click.option(
    "--param",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a parameter of the data set, as in a recipe's [data] section; repeatable.",
)
workers_option = click.option(
    "--workers", default=0, type=click.IntRange(min=0), help="Number of processors; 0 means all."
)
html_option = click.option("--html", type=click.Path(), metavar="FILE", help="Also write a self-contained HTML page.")


def print_json(value: Any) -> None:
    """Print a result as JSON; characters that the terminal cannot show, or that could steer it, become escapes."""
    import json

    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=not unicode, default=str)))


def styled(text: str, **style: Any) -> str:
    """Colour `text`, unless NO_COLOR is set (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)
