"""`xmckit argmax`"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from xmckit.cli.options import json_option, print_json
from xmckit_argmax.cli.common import PLOT
from xmckit_argmax.cli.hasse import hasse
from xmckit_argmax.cli.reach import reach

MOST_DIGITS = 30  # longer counts are printed as powers of ten


@click.group()
def argmax() -> None:
    """Show which label sets a linear output layer can produce at all."""


argmax.add_command(hasse)
argmax.add_command(reach)


@argmax.command("count")
@click.option("--labels", type=click.IntRange(min=0), required=True, help="Labels of the layer (rows of W).")
@click.option("--dim", "dims", type=click.IntRange(min=0), required=True, multiple=True,
              help="Dimensions of the layer (columns of W); can be repeated.")  # fmt: skip
@click.option("--bias/--no-bias", default=False, show_default=True, help="Whether every label has its own bias.")
@click.option("--rule", type=click.Choice(["sign", "topk"]), default="sign", show_default=True,
              help="sign: labels above 0 are output; topk: the labels ranked first.")  # fmt: skip
@PLOT
@json_option
def count(labels: int, dims: tuple[int, ...], bias: bool, rule: Any, plot: Path | None, as_json: bool) -> None:
    """Count the label sets that a layer of N labels in D dimensions can output at most (Cover's formula).

    Weights in general position reach exactly this many of the 2^N label sets, other weights fewer. As in the paper,
    ties do not count: sets that are output only where a logit is exactly 0, or equal to another one, come on top.
    --plot draws this share by dimension.
    """
    from xmckit_argmax.paper.counting import share_curve

    shares = share_curve(labels, dims, bias=bias, rule=rule)
    results = [_facts(labels, dim, float(share), bias, rule) for dim, share in zip(dims, shares, strict=True)]
    if plot is not None:
        from xmckit import store
        from xmckit_argmax.figures import share_of_all_curve

        store.write_text(plot, share_of_all_curve([labels], bias=bias, rule=rule, marked=dims))
    if as_json:
        print_json({"labels": labels, "bias": bias, "rule": rule, "counts": results})
        return
    for facts in results:
        click.echo(_sentence(labels, facts))


def _facts(labels: int, dim: int, share: float, bias: bool, rule: Any) -> dict[str, Any]:
    from xmckit_argmax.paper.counting import argmaxable_count

    log10 = None if math.isinf(share) else share + labels * math.log10(2)
    small = log10 is None or log10 < MOST_DIGITS
    return {
        "dim": dim,
        "count": argmaxable_count(labels, dim, bias=bias, rule=rule) if small else None,
        "log10_count": log10,
        "log10_share": None if math.isinf(share) else share,
    }


def _sentence(labels: int, facts: dict[str, Any]) -> str:
    if facts["log10_count"] is None:
        return f"d = {facts['dim']}: no label set of {labels:,} labels can be output"
    number = f"10^{facts['log10_count']:.2f}" if facts["count"] is None else f"{facts['count']:,}"
    return f"d = {facts['dim']}: {number} of 2^{labels} label sets can be output, {_share(facts['log10_share'])}"


def _share(log10: float) -> str:
    if log10 == 0:
        return "all of them"
    if log10 < -4:
        return f"a share of 10^{log10:.2f}"
    missing = -math.expm1(log10 * math.log(10))
    return f"all but a share of {missing:.3g}" if missing < 0.01 else f"{100 * (1 - missing):.3g} %"
