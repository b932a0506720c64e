"""Colours of all charts, and figures as reproducible SVG text."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = [BLUE, VERMILION, GREEN, PINK, ORANGE, SKY]
GREY = "#8A8A8A"


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG; equal figures give equal text."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    # A fixed salt and no date: the same numbers give the same bytes.
    with rc_context({"svg.hashsalt": "xmckit", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    without_head = re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
    return re.sub(r"<metadata>.*?</metadata>", "", without_head, flags=re.DOTALL)
