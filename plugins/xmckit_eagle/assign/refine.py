"""Refine the choice with classifiers that have not seen the group, one per label and fold.

EAGLE's embedding is a mean; it does not know which features distinguish the label's rows from others. So each label
gets a linear support vector machine: the rows chosen for it against the other rows of its groups, and against rows of
groups without the label, which are certainly not about it. The label's groups are dealt into folds, and the classifier
of the other folds scores a group's rows. The new scores are mixed with EAGLE's, rows are chosen again, and so on.

No row's label is needed to decide whether a round helped. After training on a choice: how often does the best row of a
held-out group beat as many rows drawn from groups without the label? A choice that lowers this share is dropped, and
the rounds end. `improve` is that loop; `cross_fitting` has another scorer for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit import Matrix
from xmckit_eagle.assign.candidates import CandidateRows
from xmckit_eagle.assign.normalise import squared_lengths
from xmckit_eagle.assign.rows import add_row, clear_rows, compiled_rows, dot_row, fetch_row
from xmckit_eagle.assign.spread import map_labels

COST = 0.3  # of a row on the wrong side; this and the following were tuned on the data sets of docs/eagle.md
COST_UNCHOSEN = 0.15  # a row that was not chosen may still be about the label
FOLDS = 5
EPOCHS = 3
AHEAD = 2  # rows are in no order in memory: prefetch the one after the next
OUTSIDE, OUTSIDE_LEAST, OUTSIDE_MOST = 4, 100, 50_000  # rows without the label per row of its groups, and bounds
EAGLES_SHARE = 0.5  # of EAGLE's own scores in the mixture; the classifiers' scores count with 1


class HeldOutScores(NamedTuple):
    """Scores by classifiers that have not seen the group.

    `margins` are by candidate, NaN if no classifier could be trained; held-out groups won `wins` of `matches`.
    """

    margins: np.ndarray
    wins: float
    matches: int


Scorer: TypeAlias = Callable[[np.ndarray], HeldOutScores]


@dataclass(frozen=True)
class Refinement:
    """The result of `improve`: `candidates` with new scores, and the scorer's `margins` by candidate.

    Margins are NaN for labels with one group. `recognised` is the share of held-out groups that beat rows without the
    label, for the choices in the order tried; `rounds` of them, after the first, were kept.
    """

    candidates: CandidateRows
    margins: np.ndarray
    recognised: list[float]
    rounds: int


class _Problem(NamedTuple):
    """The kernel's input. It draws rows from `pool`; `member_of`, from `member_start[row]` on, are a row's groups."""

    label_start: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    groups: np.ndarray
    pool: np.ndarray
    member_start: np.ndarray
    member_of: np.ndarray
    squares: np.ndarray


def refine(
    X: Matrix,
    candidates: CandidateRows,
    membership: csr_matrix,
    *,
    rounds: int,
    seed: int = 0,
    workers: int = 1,
    advance: Callable[[float], None] | None = None,
) -> Refinement:
    """Run up to `rounds` rounds with classifiers as the scorer. The result does not depend on `workers`."""
    features = compiled_rows(X)
    problem = _Problem(
        candidates.label_start,
        candidates.start,
        candidates.rows,
        candidates.groups,
        np.unique(candidates.rows),
        membership.indptr.astype(np.int64),
        membership.indices.astype(np.int32, copy=False),
        squared_lengths(X),
    )

    def score(chosen: np.ndarray) -> HeldOutScores:
        return _train(features, X.shape[1], problem, chosen, seed, workers, advance)

    return improve(candidates, score, rounds=rounds, shares=(1.0, EAGLES_SHARE))


def improve(candidates: CandidateRows, scorer: Scorer, *, rounds: int, shares: tuple[float, float]) -> Refinement:
    """Run up to `rounds` rounds in which `scorer`, trained on a choice, scores all candidates again.

    A pair's best candidates, as many as its `times`, are the choice. New scores are the scorer's margins and the scores
    before the first round, standardised, in these `shares`.
    """
    before = candidates.standardise(candidates.scores)
    scores, margins, recognised = [before], [], []
    for _ in range(rounds + 1):
        chosen = candidates.with_scores(scores[-1]).best(candidates.times)
        new_margins, wins, matches = scorer(chosen)
        recognised.append(wins / matches if matches else 1.0)
        if len(recognised) > 1 and recognised[-1] < recognised[-2]:
            scores.pop()
            break
        margins.append(new_margins)
        if not matches:
            break
        known = ~np.isnan(new_margins)
        mixed = shares[0] * candidates.standardise(np.where(known, new_margins, 0.0)) + shares[1] * before
        scores.append(np.where(known, mixed, before))
    kept = min(len(scores) - 1, rounds)
    return Refinement(candidates.with_scores(scores[kept]), margins[max(kept - 1, 0)], recognised, kept)


def _train(
    features: Any,
    columns: int,
    problem: _Problem,
    chosen: np.ndarray,
    seed: int,
    workers: int,
    advance: Callable[[float], None] | None,
) -> HeldOutScores:
    """Train one classifier per label and fold, and score the held-out groups."""
    margins = np.full(len(problem.rows), np.nan)
    slots = np.diff(problem.start[problem.label_start])

    def train_range(begin: int, end: int) -> tuple[float, int]:
        most = int(slots[begin:end].max(initial=0))
        room = most + min(OUTSIDE * most + OUTSIDE_LEAST, OUTSIDE_MOST)
        return _train_labels(features, np.zeros(columns), problem, chosen, begin, end, room, seed, margins)

    results = map_labels(train_range, slots, workers, advance)
    return HeldOutScores(margins, float(sum(wins for wins, _ in results)), sum(matches for _, matches in results))


@njit(cache=True, nogil=True)
def _next(state: np.ndarray, below: int) -> Any:
    """Draw a number below `below` by splitmix64."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) % np.uint64(below))


@njit(cache=True, nogil=True)
def _has_label(row: int, member_start: np.ndarray, member_of: np.ndarray, groups: np.ndarray) -> bool:
    """Return whether the row is in one of `groups`, which are sorted."""
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
    """Fill `margins` for the labels `begin` to `end`; return the matches that held-out groups won, and all matches.

    The kernel stays whole: every step works on the scratch arrays of one label, and w is cleared after each fold.
    """
    label_start, start, candidate_rows, all_groups, pool, member_start, member_of, squares = problem
    rows, side, cost = np.empty(room, np.int32), np.empty(room), np.empty(room)
    alpha, order = np.empty(room), np.empty(room, np.int64)
    state = np.zeros(1, np.uint64)
    wins, matches = 0.0, 0
    for label in range(begin, end):
        first, number = label_start[label], label_start[label + 1] - label_start[label]
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
    """Train a squared-hinge support vector machine by dual coordinate descent; w starts at zero. Return the bias."""
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
