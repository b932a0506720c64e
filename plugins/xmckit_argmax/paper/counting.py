"""How many label sets a linear layer can output at all (Cover 1965, theorem 2; Grivas et al. 2024, equation 2).

If the rows of n labels are in general position in d dimensions, the number depends on n and d alone:

    2 · Σ_{i<d} C(n−1, i)     sign(W·x)
    Σ_{i≤d} C(n, i)           sign(W·x + b): the regions of n hyperplanes that do not meet in one point

The rule "topk" has a free threshold, which is one more dimension. Divided by 2^n, both counts are probabilities of a
fair coin: of at most d−1 heads in n−1 tosses, and of at most d heads in n tosses. Rows that are not in general position
reach fewer sets, never more. Ties do not count here, as in the paper: no logit is exactly 0, and no two are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from xmckit.errors import UsageError

Rule = Literal["sign", "topk"]

MOST_LABELS = 10**8  # beyond this the logarithms below have fewer than seven correct digits


def argmaxable_count(labels: int, dim: int, *, bias: bool = False, rule: Rule = "sign") -> int:
    """Count the label sets within reach exactly. The digits grow with `dim`: use `share_of_all` for large counts."""
    tosses, most = _as_tosses(labels, dim, bias, rule)
    if tosses < 0 or most >= tosses:
        return 2**labels
    total, term = 0, 1
    for heads in range(most + 1):
        total += term
        term = term * (tosses - heads) // (heads + 1)
    return total << (labels - tosses)


def share_of_all(labels: int, dim: int, *, bias: bool = False, rule: Rule = "sign") -> float:
    """Return log10 of the share of all 2^n label sets that is within reach: 0 if all are, −inf if none is.

    The error is about 1e-9 at a million labels; close to 0 it is small relative to the number itself.
    """
    return float(share_curve(labels, [dim], bias=bias, rule=rule)[0])


def share_curve(labels: int, dims: Sequence[int], *, bias: bool = False, rule: Rule = "sign") -> np.ndarray:
    """Return `share_of_all` for several dimensions, in time linear in the number of labels."""
    games = [_as_tosses(labels, dim, bias, rule) for dim in dims]
    at_most = _log_at_most(max((tosses for tosses, _ in games), default=0))
    shares = np.zeros(len(games))
    for position, (tosses, most) in enumerate(games):
        if most >= tosses:
            shares[position] = 0.0
        elif most < 0:
            shares[position] = -np.inf
        elif 2 * most < tosses:
            shares[position] = at_most[most]
        else:
            # A share near 1 is computed from its complement: many heads are few tails.
            shares[position] = np.log1p(-np.exp(at_most[tosses - most - 1]))
    return shares / math.log(10)


def _log_at_most(tosses: int) -> np.ndarray:
    """Return the logarithms of the probabilities of at most h heads, for h = 0 … tosses."""
    from scipy.special import gammaln

    heads = np.arange(max(0, tosses) + 1)
    each = gammaln(tosses + 1) - gammaln(heads + 1) - gammaln(tosses - heads + 1) - tosses * math.log(2)
    return np.logaddexp.accumulate(each)


def _as_tosses(labels: int, dim: int, bias: bool, rule: Rule) -> tuple[int, int]:
    """Return the tosses of a fair coin, and the most heads, that have the share as their probability."""
    if rule not in ("sign", "topk"):
        raise UsageError(f'no rule is called {rule!r}, expected "sign" or "topk"')
    if labels < 0 or dim < 0:
        raise UsageError(f"{labels} labels in {dim} dimensions cannot be counted, expected 0 or more of both")
    if labels > MOST_LABELS:
        raise UsageError(f"{labels} labels are too many to count with, expected at most {MOST_LABELS}")
    wide = dim + (rule == "topk")
    return (labels, wide) if bias else (labels - 1, wide - 1)
