"""Options and output that commands share, those of plugins too: `--json`, `--runs`, `--data`, `--set`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["data_option", "json_option", "print_json", "runs_option", "set_option", "styled"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
data_option = click.option(
    "--data",
    "data_folders",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="Look for data here; may be given several times. XMCKIT_DATA adds more.",
)
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the recipe, for instance --set head.dim=64.",
)
runs_option: Callable[..., Any] = click.option(
    "--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs."
)


def print_json(value: Any) -> None:
    """Print a result for machines; characters that the terminal lacks become escapes."""
    import json

    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    click.echo(json.dumps(value, indent=2, ensure_ascii=not unicode, default=str))


def styled(text: str, **style: Any) -> str:
    """Colour `text`, unless NO_COLOR is set (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)
