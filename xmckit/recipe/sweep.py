"""Expand `--sweep head.slack=32,64 --sweep seed=0,1,2` into the grid of all combinations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from xmckit.errors import RecipeError
from xmckit.recipe.layers import parse_set
from xmckit.recipe.toml_lines import split_values

MOST_CELLS = 1000


def parse_sweep(options: Sequence[str]) -> list[list[str]]:
    """Return one list of `--set` texts per cell, the first option changing slowest; RecipeError lists all mistakes.

    Values are separated by commas outside quotes and brackets, so `k=[1,3],[1,5]` is two.
    """
    axes: dict[tuple[str, ...], list[str]] = {}
    mistakes: list[str] = []
    for option in options:
        try:
            key, cells = _axis(option)
            if key in axes:
                raise RecipeError(f"--sweep {option}: {'.'.join(key)} is swept twice; give all its values at once")
            axes[key] = cells
        except RecipeError as error:
            mistakes += error.mistakes
    size = math.prod(len(cells) for cells in axes.values())
    if size > MOST_CELLS:
        mistakes.append(f"--sweep: this grid has {size} runs, expected at most {MOST_CELLS}")
    if mistakes:
        raise RecipeError(mistakes)
    return [list(cell) for cell in itertools.product(*axes.values())]


def _axis(option: str) -> tuple[tuple[str, ...], list[str]]:
    key, equals, values = (part.strip() for part in option.partition("="))
    if not equals or not key or not values:
        raise RecipeError(f"--sweep {option}: expected KEY=VALUE,VALUE,… such as seed=0,1,2")
    try:
        pieces = split_values(values)
    except (ValueError, RecursionError):
        raise RecipeError(f"--sweep {option}: a quote or a bracket is not closed") from None
    if "" in pieces:
        raise RecipeError(f"--sweep {option}: there is nothing between two commas")
    cells = [f"{key}={piece}" for piece in pieces]
    parsed = [parse_set(cell, "--sweep") for cell in cells]
    for place, (_, value) in enumerate(parsed):
        if any(type(value) is type(other) and value == other for _, other in parsed[:place]):
            raise RecipeError(f"--sweep {option}: {pieces[place]} is listed twice")
    return parsed[0][0], cells
