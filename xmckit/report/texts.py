"""Format numbers, facts and foreign texts for a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

LONGEST_NAME = 120
MIB = 2**20

# Characters that a reader cannot see or that change the text around them: control characters, marks of writing
# direction, line separators, and lone surrogates, which no file can hold.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Escape the characters that cannot be seen, except line ends and tabs."""
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text.replace("\r\n", "\n"))


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def number(value: Any) -> str:
    """Format a count with separators, and any other number with four digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"


def seconds(value: float) -> str:
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit in ("B", "KiB") or value >= 100 else f"{value:.1f} {unit}"


def flat_facts(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested facts as (name, text) in order, without values that are missing or empty."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            rows += flat_facts(value, f"{name} · ")
        elif isinstance(value, bool):
            rows.append((name, number(value)))
        elif isinstance(value, int | float):
            rows.append((name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"))
        elif value:
            rows.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return rows
