"""Algorithm 1 of Shen et al. (2020) in the space of scores: the same iterates, without an embedding per label.

The embedding e of a label is never stored. The algorithm keeps s_i = ⟨x_i, e⟩ and r_i = ⟨x_i, c⟩ with
c = Σ_j w_j x_{v_j} over the label's groups j and the rows v_j that they pick, and a step e ← Proj(e + λc) is

    s ← (s + λr)/ν,   ν² = 1 + 2λ Σ_j w_j s_{v_j} + λ² Σ_j w_j r_{v_j}.

r costs a pass over the label's rows, and only if some v_j has changed. To leave out a group's own part of e,
Σ_i ω_i x_i over its rows, the algorithm also keeps the ω_i, q_i = ⟨x_i, part⟩ and p_i = ⟨x_i, x_{v_j}⟩.

A slot is a row in a group of the label. All sums are float64, and of scores that are equal up to rounding the row with
the smallest id wins: so the result does not depend on the order of summation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from xmckit_eagle.assign.rows import add_row, clear_rows, dot_row

TIE = 1e-10  # scores closer than this, for rows of unit length, are equal
NOTHING = 1e-9  # a squared length below this share of its terms is zero
SORTED = 32  # a full ranking of more rows than this is sorted, not picked one by one

# the quantities per slot, in the order of the rows of `slot`
S, R, Z, LENGTH, ALONG, OWN, OMEGA, Q, P = range(9)


class Rules(NamedTuple):
    """The options of `choice.assign`: `limit` 0 is capacity "count", `threshold` −inf is none, mu_squared is ⟨μ, μ⟩."""

    iterations: int
    step: float
    mean: bool
    weighted: bool
    background: bool
    leave_one_out: bool
    limit: int
    threshold: float
    mu_squared: float


class Members(NamedTuple):
    """The rows of each group: `start` and `rows`.

    `lengths` are by row; so is `along` = ⟨x_i, μ⟩, empty without background. `own` = ⟨x_i, Σ of its group⟩ is by
    member, empty without leave-one-out.
    """

    start: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray
    along: np.ndarray
    own: np.ndarray


class LabelGroups(NamedTuple):
    """The groups of each label, how often they have it (`counts`), and a random number for each label (`lots`)."""

    start: np.ndarray
    groups: np.ndarray
    counts: np.ndarray
    lots: np.ndarray


class Scratch(NamedTuple):
    """One thread's memory: by feature, by slot and by group of the current label."""

    dense: np.ndarray
    rows: np.ndarray
    slot: np.ndarray
    marks: np.ndarray
    first: np.ndarray
    weight: np.ndarray
    group: np.ndarray
    times: np.ndarray
    picked: np.ndarray


def make_scratch(features: int, slots: int, groups: int, rules: Rules) -> Scratch:
    """Allocate scratch; `slots` and `groups` are the largest numbers of one label."""
    return Scratch(
        dense=np.zeros((2 if rules.leave_one_out and rules.iterations else 1, features)),
        rows=np.empty(slots, dtype=np.int32),
        slot=np.empty((9, slots)),
        marks=np.zeros(slots, dtype=np.uint8),
        first=np.zeros(groups + 1, dtype=np.int64),
        weight=np.empty(groups),
        group=np.empty(groups, dtype=np.int32),
        times=np.empty(groups, dtype=np.int64),
        picked=np.empty(groups, dtype=np.int64),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def assign_labels(
    X: Any, members: Members, labels: LabelGroups, rules: Rules, begin: int, end: int, scratch: Scratch,
    whole: np.ndarray, real: np.ndarray,
) -> int:  # fmt: skip
    """Choose rows for the labels `begin` to `end`.

    Write (group, label, row) to `whole` and (score, margin) to `real`; return the number of entries.
    """
    # Unpacked here: a tuple of many arrays is slow to compile in every function that takes it.
    dense, rows, slot, marks, first, weight, group, times, picked = scratch
    written = 0
    for label in range(begin, end):
        number = _collect(members, labels, label, rules, rows, slot, first, weight, group, times)
        if number == 0:
            continue
        bounds, weights = first[: number + 1], weight[:number]
        here = rows[: bounds[number]]
        e_mu = _embed(X, here, bounds, weights, slot, dense, rules, labels.lots[label])
        if rules.iterations:
            e_mu = _iterate(X, here, bounds, weights, slot, dense, rules, e_mu, marks, picked)
        for at in range(number):
            limit = rules.limit if rules.limit else times[at]
            upto = _give(bounds[at], bounds[at + 1], slot, marks, rows, rules, e_mu, limit, whole[2], real, written)
            whole[0, written:upto] = group[at]
            whole[1, written:upto] = label
            written = upto
    return written


@njit(cache=True, nogil=True, error_model="numpy")
def _collect(
    members: Members, labels: LabelGroups, label: int, rules: Rules,
    rows: np.ndarray, slot: np.ndarray, first: np.ndarray, weight: np.ndarray, group: np.ndarray, times: np.ndarray,
) -> int:  # fmt: skip
    """Collect the label's groups that have rows, and their rows; return the number of groups."""
    number, slots = 0, 0
    for place in range(labels.start[label], labels.start[label + 1]):
        begin, end = members.start[labels.groups[place]], members.start[labels.groups[place] + 1]
        if begin == end:
            continue
        group[number] = labels.groups[place]
        # A count may overflow an integer, and may be below 1.
        times[number] = np.int64(max(1.0, np.rint(min(labels.counts[place], np.float64(end - begin)))))
        weight[number] = labels.counts[place] if rules.weighted else 1.0
        for member in range(begin, end):
            row = members.rows[member]
            rows[slots] = row
            slot[LENGTH, slots] = members.lengths[row]
            if rules.background:
                slot[ALONG, slots] = members.along[row]
            if rules.leave_one_out:
                slot[OWN, slots] = members.own[member]
            slots += 1
        number += 1
        first[number] = slots
    return number


@njit(cache=True, nogil=True, error_model="numpy")
def _embed(
    X: Any, rows: np.ndarray, first: np.ndarray, weight: np.ndarray, slot: np.ndarray, dense: np.ndarray,
    rules: Rules, lot: int,
) -> float:  # fmt: skip
    """Fill S, and with leave-one-out OMEGA and Q, for e⁰; return ⟨e⁰, μ⟩."""
    squared, rough, e_mu = 0.0, 0.0, 0.0
    for at in range(len(weight)):
        for i in range(first[at], first[at + 1]):
            add_row(X, rows[i], weight[at], dense[0])
            rough += weight[at] * slot[LENGTH, i]
    for at in range(len(weight)):
        for i in range(first[at], first[at + 1]):
            slot[S, i] = dot_row(X, rows[i], dense[0])
            squared += weight[at] * slot[S, i]
            if rules.background:
                e_mu += weight[at] * slot[ALONG, i]
            if rules.leave_one_out:
                slot[OMEGA, i] = weight[at]
                slot[Q, i] = weight[at] * slot[OWN, i]
    clear_rows(X, rows, dense[0])
    if squared <= NOTHING * rough * rough:
        drawn = np.int64(lot % np.uint64(len(rows)))
        add_row(X, rows[drawn], 1.0, dense[0])
        for at in range(len(weight)):
            here = first[at] <= drawn < first[at + 1]
            for i in range(first[at], first[at + 1]):
                slot[S, i] = dot_row(X, rows[i], dense[0])
                slot[OMEGA, i] = 1.0 if i == drawn else 0.0
                slot[Q, i] = slot[S, i] if here else 0.0
        clear_rows(X, rows[drawn : drawn + 1], dense[0])
        squared, e_mu = slot[S, drawn], slot[ALONG, drawn]
    length = np.sqrt(squared)
    for i in range(len(rows)):
        slot[S, i] /= length
    if rules.leave_one_out:
        for i in range(len(rows)):
            slot[OMEGA, i] /= length
            slot[Q, i] /= length
    return e_mu / length


@njit(cache=True, nogil=True, error_model="numpy")
def _iterate(
    X: Any, rows: np.ndarray, first: np.ndarray, weight: np.ndarray, slot: np.ndarray, dense: np.ndarray,
    rules: Rules, e_mu: float, marks: np.ndarray, picked: np.ndarray,
) -> float:  # fmt: skip
    """Run the iterations, which update S, OMEGA and Q; return ⟨e, μ⟩."""
    groups = len(weight)
    rate = rules.step / weight.sum() if rules.mean else rules.step
    picked[:groups] = -1
    for _ in range(rules.iterations):
        changed = False
        for at in range(groups):
            _group_scores(first[at], first[at + 1], slot, rules, e_mu)
            best = _best(first[at], first[at + 1], slot, marks, False)
            if best != picked[at]:
                changed = True
                _pick(X, rows, first[at], first[at + 1], weight[at], picked[at], best, slot, dense, rules)
                picked[at] = best
                marks[best] = 1
        if changed:
            for i in range(len(rows)):
                slot[R, i] = dot_row(X, rows[i], dense[0])
        e_c, c_c, c_mu = 0.0, 0.0, 0.0
        for at in range(groups):
            e_c += weight[at] * slot[S, picked[at]]
            c_c += weight[at] * slot[R, picked[at]]
            if rules.background:
                c_mu += weight[at] * slot[ALONG, picked[at]]
        squared = 1.0 + 2.0 * rate * e_c + rate * rate * c_c
        if squared <= NOTHING:
            break
        length = np.sqrt(squared)
        for i in range(len(rows)):
            slot[S, i] = (slot[S, i] + rate * slot[R, i]) / length
        e_mu = (e_mu + rate * c_mu) / length
        if rules.leave_one_out:
            for at in range(groups):
                slot[OMEGA, picked[at]] += rate * weight[at]
                for i in range(first[at], first[at + 1]):
                    slot[Q, i] = (slot[Q, i] + rate * weight[at] * slot[P, i]) / length
                    slot[OMEGA, i] /= length
    clear_rows(X, rows[marks[: len(rows)] == 1], dense[0])
    marks[: len(rows)] = 0
    return e_mu


@njit(cache=True, nogil=True, error_model="numpy")
def _pick(
    X: Any, rows: np.ndarray, begin: int, end: int, weight: float, before: int, best: int, slot: np.ndarray,
    dense: np.ndarray, rules: Rules,
) -> None:  # fmt: skip
    """Let a group pick slot `best`: update c, which is in dense[0], and the group's P."""
    if before >= 0:
        add_row(X, rows[before], -weight, dense[0])
    add_row(X, rows[best], weight, dense[0])
    if rules.leave_one_out:
        add_row(X, rows[best], 1.0, dense[1])
        for i in range(begin, end):
            slot[P, i] = dot_row(X, rows[i], dense[1])
        clear_rows(X, rows[best : best + 1], dense[1])


@njit(cache=True, nogil=True, error_model="numpy")
def _group_scores(begin: int, end: int, slot: np.ndarray, rules: Rules, e_mu: float) -> float:
    """Fill Z for the rows of one group; return the squared length of the vector that Z are the products with."""
    squared, mu_squared = 1.0, rules.mu_squared
    without = False
    if rules.leave_one_out:
        removed = 0.0
        for i in range(begin, end):
            removed += slot[OMEGA, i] * (2.0 * slot[S, i] - slot[Q, i])
        without = 1.0 - removed > NOTHING
    if without:
        squared = 1.0 - removed
        for i in range(begin, end):
            slot[Z, i] = slot[S, i] - slot[Q, i]
    else:
        for i in range(begin, end):
            slot[Z, i] = slot[S, i]
    if not rules.background:
        return squared
    if without:
        for i in range(begin, end):
            mu_squared += slot[OWN, i] - 2.0 * slot[ALONG, i]
            e_mu += slot[OMEGA, i] * (slot[OWN, i] - slot[ALONG, i]) - slot[S, i]
        if mu_squared <= NOTHING * rules.mu_squared:
            return squared
    left = squared - e_mu * e_mu / mu_squared
    if left <= NOTHING * squared:
        return squared
    for i in range(begin, end):
        slot[Z, i] -= e_mu / mu_squared * (slot[ALONG, i] - slot[OWN, i] if without else slot[ALONG, i])
    return left


@njit(cache=True, nogil=True, error_model="numpy")
def _best(begin: int, end: int, slot: np.ndarray, marks: np.ndarray, unmarked: bool) -> int:
    """Return the slot with the best score, or −1; with `unmarked`, of those without a mark. Slots are in row order."""
    top = -1
    for i in range(begin, end):
        if (top < 0 or slot[Z, i] > slot[Z, top]) and not (unmarked and marks[i]):
            top = i
    for i in range(begin, top):
        close = slot[Z, top] - slot[Z, i] <= TIE * (slot[LENGTH, top] + slot[LENGTH, i])
        if close and not (unmarked and marks[i]):
            return i
    return top


@njit(cache=True, nogil=True, error_model="numpy")
def _close_enough(slot: np.ndarray, top: int, other: int, threshold: float) -> bool:
    """Return whether a row has the share of the best score, which must be above 0, up to rounding."""
    if threshold == -np.inf:
        return True
    near = slot[Z, other] >= threshold * slot[Z, top] - TIE * (slot[LENGTH, top] + slot[LENGTH, other])
    return bool(near and slot[Z, top] > TIE * slot[LENGTH, top])


@njit(cache=True, nogil=True, error_model="numpy")
def _give(
    begin: int, end: int, slot: np.ndarray, marks: np.ndarray, rows: np.ndarray, rules: Rules, e_mu: float, limit: int,
    chosen: np.ndarray, real: np.ndarray, written: int,
) -> int:  # fmt: skip
    """Give the label to the best rows of one group: write the rows to `chosen`, scores and margins to `real`."""
    length = np.sqrt(_group_scores(begin, end, slot, rules, e_mu))
    start = written
    best = _best(begin, end, slot, marks, True)
    top = best
    if end - begin > SORTED and limit >= end - begin and rules.threshold == -np.inf:
        chosen[written], real[0, written] = best, slot[Z, best] / length
        written += 1
        for place in np.argsort(-slot[Z, begin:end], kind="mergesort"):
            if begin + place != best:
                chosen[written], real[0, written] = begin + place, slot[Z, begin + place] / length
                written += 1
        marks[begin:end] = 1
        best = -1
    while best >= 0:
        if written > start and (written - start >= limit or not _close_enough(slot, top, best, rules.threshold)):
            break
        marks[best] = 1
        chosen[written] = best
        real[0, written] = slot[Z, best] / length
        written += 1
        best = _best(begin, end, slot, marks, True)
    rest = -np.inf
    for i in range(begin, end):
        if marks[i] == 0:
            rest = max(rest, slot[Z, i] / length)
        marks[i] = 0
    for place in range(start, written):
        real[1, place] = slot[Z, chosen[place]] / length - rest
        chosen[place] = rows[chosen[place]]
    return written
