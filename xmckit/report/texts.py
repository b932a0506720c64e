"""Numbers and other people's texts as a page shows them."""

from __future__ import annotations

import math
import re
from typing import Any

from xmckit.errors import shorten

LONGEST_NAME = 120

# What a reader cannot see, or what would steer the text around it: control characters, marks of writing direction,
# line separators, and halves of characters that no file can hold.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with escapes for what cannot be seen; line ends and tabs stay."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\r\n", "\n"))


def short(text: str, longest: int = LONGEST_NAME) -> str:
    """At most so many characters, with a sign where some are left out."""
    return shorten(text, longest)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def number(value: Any) -> str:
    """A count with separators, any other number with four digits."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
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
