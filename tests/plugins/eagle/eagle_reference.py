"""Algorithm 1 and 2 of Shen et al. (2020) label by label with scipy: what the kernels must agree with.

e⁰ = Proj(Σ of all rows of the label's groups). Each step picks in every group the row v_j with the best score and sets
e ← Proj(e + λ Σ_j x_{v_j}); at the end each group gives the label to its best row. The score is ⟨x, e⟩, or with

- background: ⟨x, e − ⟨e, μ⟩/‖μ‖²·μ⟩, μ the sum of the rows of all groups (e itself where nothing is left of it);
- leave_one_out: for the rows of group j, e and μ without what group j has added to them (e itself where nothing is
  left of it, as for a label of one group).

Where e⁰ vanishes it is a row of the label, drawn from the seed. Rows of zeros are never chosen.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

TIE = 1e-10  # scores closer than this, for rows of unit length, are equal
NOTHING = 1e-9  # a squared length below this share of what it was made of is zero
MASK = (1 << 64) - 1


def draw(seed: int, label: int, count: int) -> int:
    """A number below `count` that depends on seed and label only (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (label + 1) * 0xD1B54A32D192ED03) & MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & MASK
    return (z ^ (z >> 31)) % count


def assign(
    X,
    membership,
    labels,
    *,
    iterations=20,
    step=0.1,
    update="sum",
    background=False,
    leave_one_out=False,
    capacity=1,
    threshold=None,
    counts=False,
    seed=0,
):
    """Tuples (group, label, row, score, margin), by label, then group, then rank.

    `capacity`: rows a group gives the label to: a number, "count" (as often as the group has the label) or
    "threshold" (any number); rows after the first need a score of `threshold` times the best one, up to rounding.
    `counts`: a group adds its rows as often as it has the label.
    """
    X = csr_matrix(X, dtype=np.float64)
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    members = csr_matrix(membership.T)
    members.sort_indices()
    by_label = csr_matrix(labels.T)
    by_label.sort_indices()
    rows_of = [members.indices[members.indptr[j] : members.indptr[j + 1]] for j in range(members.shape[0])]
    rows_of = [rows[lengths[rows] > 0] for rows in rows_of]
    everything = np.concatenate([np.empty(0, dtype=np.int64), *rows_of]).astype(np.int64)
    mu = np.asarray(X[everything].sum(axis=0)).ravel() if background else np.zeros(X.shape[1])
    if mu @ mu <= NOTHING * lengths[everything].sum() ** 2:
        mu[:] = 0
    chosen = []
    for label in range(by_label.shape[0]):
        here = slice(by_label.indptr[label], by_label.indptr[label + 1])
        kept = [
            (j, count) for j, count in zip(by_label.indices[here], by_label.data[here], strict=True) if len(rows_of[j])
        ]
        if not kept:
            continue
        weights = [float(count) if counts else 1.0 for _, count in kept]
        rate = step if update == "sum" else step / sum(weights)
        rows = [rows_of[j] for j, _ in kept]
        own = [np.full(len(members_), weight) for members_, weight in zip(rows, weights, strict=True)]  # e = Σ own·x
        blocks = [X[members_] for members_ in rows]
        e = sum(block.T @ share for block, share in zip(blocks, own, strict=True))
        if e @ e <= NOTHING * sum(lengths[members_] @ share for members_, share in zip(rows, own, strict=True)) ** 2:
            own = [np.zeros(len(members_)) for members_ in rows]
            slot = draw(seed, label, sum(map(len, rows)))
            at = int(np.searchsorted(np.cumsum([len(members_) for members_ in rows]), slot, "right"))
            own[at][slot - sum(len(members_) for members_ in rows[:at])] = 1.0
            e = blocks[at].T @ own[at]
        e, own = _projected(e, own)
        for _ in range(iterations):
            best = [
                _order(_scores(block, e, mu, share, leave_one_out)[0], lengths[members_], 1)[0]
                for block, share, members_ in zip(blocks, own, rows, strict=True)
            ]
            c = np.zeros_like(e)
            for position, v in enumerate(best):
                c += weights[position] * blocks[position][v].toarray().ravel()
            e_next = e + rate * c
            if e_next @ e_next <= NOTHING:
                break
            for position, v in enumerate(best):
                own[position][v] += rate * weights[position]
            e, own = _projected(e_next, own)
        for (group, count), block, share, members_ in zip(kept, blocks, own, rows, strict=True):
            scores, length = _scores(block, e, mu, share, leave_one_out)
            limit = {"count": max(1, round(float(count))), "threshold": len(scores)}.get(capacity, capacity)
            order = _order(scores, lengths[members_], limit)
            top, given = order[0], order[:1]
            for position in order[1:]:
                if threshold is not None:
                    slack = TIE * (lengths[members_[top]] + lengths[members_[position]])
                    if scores[top] <= TIE * lengths[members_[top]]:
                        break
                    if scores[position] < threshold * scores[top] - slack:
                        break
                given.append(position)
            scores = scores / length
            left = max((score for position, score in enumerate(scores) if position not in given), default=-np.inf)
            for position in given:
                chosen.append((int(group), label, int(members_[position]), scores[position], scores[position] - left))
    return chosen


def _projected(e, own):
    length = np.sqrt(e @ e)
    return e / length, [share / length for share in own]


def _scores(block, e, mu, share, leave_one_out):
    """Scores of the rows of one group, and the length of the vector that they are products with."""
    if leave_one_out:
        rest = e - block.T @ share
        if rest @ rest > NOTHING:
            e = rest
            if mu.any():
                others = mu - np.asarray(block.sum(axis=0)).ravel()
                mu = others if others @ others > NOTHING * (mu @ mu) else np.zeros_like(mu)
    if mu.any():
        contrast = e - (e @ mu) / (mu @ mu) * mu
        if contrast @ contrast > NOTHING * (e @ e):
            e = contrast
    return block @ e, np.sqrt(e @ e)


def _order(scores, lengths, limit):
    """Up to `limit` positions, best first; of scores that are equal up to rounding the first row comes first."""
    left, order = list(range(len(scores))), []
    while left and len(order) < limit:
        top = max(left, key=lambda i: scores[i])
        first = next(i for i in left if scores[top] - scores[i] <= TIE * (lengths[i] + lengths[top]))
        order.append(first)
        left.remove(first)
    return order
