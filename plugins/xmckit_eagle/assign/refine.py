"""Rows of a group told apart by classifiers that have not seen the group, one per label and fold.

EAGLE's embedding is a mean; it does not know which features tell the label's rows from others. So each label gets a
linear support vector machine: the rows that were chosen for it against those of its groups that were not and against
rows of groups that do not have the label at all, which are certain not to be about it. The label's groups are dealt
into folds, and a group's rows are scored by the classifier of the other folds. The new scores are mixed with EAGLE's,
the choice is made anew, and so on.

Whether a round was worth it is judged without any row's label: after training on a choice, how often does a group that
was held out, with its best row, beat as many rows drawn from groups without the label? A choice that lowers this share
is dropped, and the rounds end. `improve` is that loop; `cross_fitting` has another judge for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit import Matrix
from xmckit.data.model import as_csr
from xmckit_eagle.assign.candidates import Candidates, standardised
from xmckit_eagle.assign.normalise import squared_lengths
from xmckit_eagle.assign.rows import add_row, clear_rows, dot_row, fetch_row

PARTS = 128  # labels are handed to the threads in about so many parts of equal work
COST = 0.3  # of a wrong side; all of these were tuned on the data sets of docs/eagle.md
COST_UNCHOSEN = 0.15  # a row that was not chosen may still be about the label
FOLDS = 5
EPOCHS = 3
AHEAD = 2  # rows are in no order in memory: the one after the next is asked for while this one is worked on
OUTSIDE, OUTSIDE_LEAST, OUTSIDE_MOST = 4, 100, 50_000  # rows without the label per row of its groups, and bounds
EAGLES_SHARE = 0.5  # of EAGLE's own scores in the mixture, which counts the classifiers' with 1


class Judgement(NamedTuple):
    """`margins` by candidate, by what has not seen its group (NaN: it cannot say); `wins` of held-out groups."""

    margins: np.ndarray
    wins: float
    matches: int


@dataclass(frozen=True)
class Refined:
    """`candidates` with new scores; `margins`, by candidate, of the judge (NaN where a label has one group).

    `recognised`: the share of held-out groups that beat rows without the label, for the choices in the order tried;
    `rounds` of them, after the first, were kept.
    """

    candidates: Candidates
    margins: np.ndarray
    recognised: list[float]
    rounds: int


class _Problem(NamedTuple):
    """What the kernel reads. `pool`: the rows to draw from; `member_of`, from `member_start`: the groups of a row."""

    of_label: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    groups: np.ndarray
    pool: np.ndarray
    member_start: np.ndarray
    member_of: np.ndarray
    squares: np.ndarray


def refine(
    X: Matrix,
    these: Candidates,
    membership: csr_matrix,
    take: np.ndarray,
    *,
    rounds: int,
    seed: int = 0,
    workers: int = 1,
    advance: Callable[[float], None] | None = None,
) -> Refined:
    """Up to `rounds` rounds; `take` rows of each pair count as chosen. The result does not depend on `workers`."""
    features: Any = X
    if issparse(X):
        X = as_csr(X)
        # Compiled code need not ask whether an unsigned index counts from the end.
        indices = X.indices.astype(np.int32, copy=False).view(np.uint32)
        features = (X.indptr.astype(np.int64), indices, X.data)
    problem = _Problem(
        these.of_label,
        these.start,
        these.rows,
        these.groups,
        np.unique(these.rows),
        membership.indptr.astype(np.int64),
        membership.indices.astype(np.int32, copy=False),
        squared_lengths(X),
    )

    def judge(chosen: np.ndarray) -> Judgement:
        return _train(features, X.shape[1], problem, chosen, seed, max(1, workers), advance)

    return improve(these, take, judge, rounds=rounds, shares=(1.0, EAGLES_SHARE))


def improve(
    these: Candidates,
    take: np.ndarray,
    judge: Callable[[np.ndarray], Judgement],
    *,
    rounds: int,
    shares: tuple[float, float],
) -> Refined:
    """Up to `rounds` rounds in which `judge`, trained on a choice, scores all candidates anew.

    New scores are the judge's margins and the scores before the first round, standardised, in these `shares`.
    """
    before = standardised(these, these.scores)
    scores, margins, recognised = [before], [], []
    for _ in range(rounds + 1):
        chosen = these.with_scores(scores[-1]).best(take)
        found, wins, matches = judge(chosen)
        recognised.append(wins / matches if matches else 1.0)
        if len(recognised) > 1 and recognised[-1] < recognised[-2]:
            scores.pop()
            break
        margins.append(found)
        if not matches:
            break
        known = ~np.isnan(found)
        mixed = shares[0] * standardised(these, np.where(known, found, 0.0)) + shares[1] * before
        scores.append(np.where(known, mixed, before))
    kept = min(len(scores) - 1, rounds)
    return Refined(these.with_scores(scores[kept]), margins[max(kept - 1, 0)], recognised, kept)


def _train(
    features: Any,
    columns: int,
    problem: _Problem,
    chosen: np.ndarray,
    seed: int,
    workers: int,
    advance: Callable[[float], None] | None,
) -> Judgement:
    """One classifier per label and fold."""
    margins = np.full(len(problem.rows), np.nan)
    slots = problem.start[problem.of_label]
    cuts = np.unique(np.searchsorted(slots, np.linspace(0, slots[-1], PARTS + 1)))
    cuts[0], cuts[-1] = 0, len(slots) - 1
    parts = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))

    def run(part: tuple[int, int]) -> tuple[float, int]:
        begin, end = part
        most = int(np.diff(slots[begin : end + 1]).max(initial=0))
        room = most + min(OUTSIDE * most + OUTSIDE_LEAST, OUTSIDE_MOST)
        result = _train_labels(features, np.zeros(columns), problem, chosen, begin, end, room, seed, margins)
        if advance is not None:
            advance((slots[end] - slots[begin]) / max(1, slots[-1]))
        return result

    # A part may be one label that is in most groups: the largest come first, so that none is waited for at the end.
    parts.sort(key=lambda part: slots[part[0]] - slots[part[1]])
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(run, parts))
    return Judgement(margins, float(sum(wins for wins, _ in results)), sum(matches for _, matches in results))


@njit(cache=True, nogil=True)
def _next(state: np.ndarray, below: int) -> Any:
    """A number below `below`, by splitmix64."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) % np.uint64(below))


@njit(cache=True, nogil=True)
def _has_label(row: int, member_start: np.ndarray, member_of: np.ndarray, groups: np.ndarray) -> bool:
    """Whether the row is in one of `groups`, which are in order."""
    for place in range(member_start[row], member_start[row + 1]):
        at = np.searchsorted(groups, member_of[place])
        if at < len(groups) and groups[at] == member_of[place]:
            return True
    return False


@njit(cache=True, nogil=True)
def _train_labels(
    X: Any, w: np.ndarray, problem: _Problem, chosen: np.ndarray, begin: int, end: int, room: int, seed: int,
    margins: np.ndarray,
) -> tuple[float, int]:  # fmt: skip
    of_label, start, candidate_rows, all_groups, pool, member_start, member_of, squares = problem
    rows, side, cost = np.empty(room, np.int32), np.empty(room), np.empty(room)
    alpha, order = np.empty(room), np.empty(room, np.int64)
    state = np.zeros(1, np.uint64)
    wins, matches = 0.0, 0
    for label in range(begin, end):
        first, number = of_label[label], of_label[label + 1] - of_label[label]
        if number < 2:
            continue
        groups = all_groups[first : first + number]
        state[0] = np.uint64(seed) ^ (np.uint64(label + 1) * np.uint64(0xD1B54A32D192ED03))
        folds = min(FOLDS, number)
        fold = np.arange(number) % folds
        for at in range(number - 1, 0, -1):
            other = _next(state, at + 1)
            fold[at], fold[other] = fold[other], fold[at]
        for held in range(folds):
            used = 0
            for pair in range(number):
                if fold[pair] == held:
                    continue
                for place in range(start[first + pair], start[first + pair + 1]):
                    rows[used] = candidate_rows[place]
                    side[used] = 1.0 if chosen[place] else -1.0
                    cost[used] = COST if chosen[place] else COST_UNCHOSEN
                    used += 1
            for _ in range(min(OUTSIDE * used + OUTSIDE_LEAST, OUTSIDE_MOST, len(pool), room - used)):
                row = pool[_next(state, len(pool))]
                if not _has_label(row, member_start, member_of, groups):
                    rows[used], side[used], cost[used] = row, -1.0, COST
                    used += 1
            bias = _separate(X, squares, rows[:used], side, cost, w, alpha, order, state)
            for pair in range(number):
                if fold[pair] != held:
                    continue
                best, rival, outside = -np.inf, -np.inf, 0
                for place in range(start[first + pair], start[first + pair + 1]):
                    margins[place] = dot_row(X, candidate_rows[place], w) + bias
                    best = max(best, margins[place])
                    row = pool[_next(state, len(pool))]
                    if not _has_label(row, member_start, member_of, groups):
                        rival = max(rival, dot_row(X, row, w) + bias)
                        outside += 1
                if outside:
                    matches += 1
                    wins += 1.0 if best > rival else 0.5 if best == rival else 0.0
            clear_rows(X, rows[:used], w)
    return wins, matches


@njit(cache=True, nogil=True)
def _separate(
    X: Any, squares: np.ndarray, rows: np.ndarray, side: np.ndarray, cost: np.ndarray, w: np.ndarray,
    alpha: np.ndarray, order: np.ndarray, state: np.ndarray,
) -> float:  # fmt: skip
    """Squared-hinge support vector machine by dual coordinate descent; w is zero before. Returns the bias."""
    bias = 0.0
    for at in range(len(rows)):
        order[at], alpha[at] = at, 0.0
    for _ in range(EPOCHS):
        for at in range(len(rows) - 1, 0, -1):
            other = _next(state, at + 1)
            order[at], order[other] = order[other], order[at]
        for place in range(len(rows)):
            if place + AHEAD < len(rows):
                fetch_row(X, rows[order[place + AHEAD]])
            at = order[place]
            slack = 0.5 / cost[at]
            gradient = side[at] * (dot_row(X, rows[at], w) + bias) - 1.0 + slack * alpha[at]
            new = max(alpha[at] - gradient / (squares[rows[at]] + 1.0 + slack), 0.0)
            if new != alpha[at]:
                step = (new - alpha[at]) * side[at]
                alpha[at] = new
                add_row(X, rows[at], step, w)
                bias += step
    return bias
