"""Cross-fitting with a head: score the rows of a group by a head that was trained without the group.

The groups are dealt into folds. For each fold the head is trained on the choice for the groups of the other folds, and
scores the rows of the fold's groups.

The head lists a row's best labels only: a label that is not listed scores one less than the lowest listed score. The
test for held-out groups is that of `refine`: does the best row of the group beat as many rows drawn from groups without
the label? The drawn rows are of the same fold, so that the head has seen none of them either.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, diags

from xmckit import Context, Spec, Split, TopK, UsageError
from xmckit.context import silent
from xmckit.data.model import as_csr
from xmckit.protocols import needs_index
from xmckit_eagle.assign.candidates import CandidateRows
from xmckit_eagle.assign.refine import FOLDS, HeldOutScores, Scorer

LISTED = 1000  # labels that the head lists for a row: a group's labels should be among them
ROWS_AT_ONCE = 1 << 13


def check_head(spec: Spec, context: Context) -> None:
    """Raise UsageError for a head that cannot be trained without an index."""
    head = context.resolve("head", spec.use)
    if needs_index(head):
        raise UsageError(
            f"head '{spec.use}' needs an index with {', '.join(sorted(head.needs))}, but a label stage has no index: "
            "the parameter head of eagle takes heads that need none"
        )


def head_scorer(
    train: Split, candidates: CandidateRows, spec: Spec, *, context: Context, advance: Callable[[float], None]
) -> Scorer:
    """Return a scorer for `refine.improve` that trains a head per fold; a call advances by 1.

    `train` has groups; rows in no group keep their labels.
    """
    assert train.groups is not None
    membership = train.groups.membership
    group_labels = as_csr(membership @ (train.groups.labels > 0).astype(np.float32))
    ungrouped = np.diff(membership.indptr) == 0
    fold_of_group = context.rng("folds").permutation(membership.shape[1]) % FOLDS
    # A label that only one group has cannot be learned without that group.
    fold = np.where(candidates.single_group, -1, fold_of_group[candidates.groups])
    sizes = np.diff(candidates.start)
    labels = np.repeat(candidates.labels, sizes)

    def score(chosen: np.ndarray) -> HeldOutScores:
        Y = _training_labels(train.Y, ungrouped, candidates.rows[chosen], labels[chosen])
        margins, wins, matches = np.full(len(candidates.rows), np.nan), 0.0, 0
        for held in range(FOLDS):
            unseen = np.asarray(membership[:, fold_of_group == held].sum(axis=1)).ravel() > 0
            here = np.repeat(fold == held, sizes)
            if here.any() and Y[~unseen].nnz:
                rows, wanted = np.flatnonzero(unseen), labels[here]
                rivals = context.rng("rivals", held).integers(len(rows), size=len(wanted))
                positions = np.concatenate([np.searchsorted(rows, candidates.rows[here]), rivals])
                labelled = replace(train, Y=Y, weights=None, groups=None)
                scores = _head_scores(labelled, unseen, spec, positions, np.tile(wanted, 2), held, context)
                margins[here], rival_scores = scores[: len(wanted)], scores[len(wanted) :]
                has_label = np.asarray(group_labels[rows[rivals], wanted]).ravel() > 0
                rival_scores = np.where(has_label, -np.inf, rival_scores)
                won = _match_results(margins[here], rival_scores, sizes[fold == held])
                wins, matches = wins + float(won.sum()), matches + len(won)
            advance(1 / FOLDS)
        return HeldOutScores(margins, wins, matches)

    return score


def _training_labels(Y: csr_matrix, ungrouped: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> csr_matrix:
    """Return the chosen labels, and the own labels of rows in no group."""
    chosen = csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, labels)), shape=Y.shape)
    own = diags(ungrouped.astype(np.float32)) @ Y
    return as_csr((chosen + own) != 0)


def _head_scores(
    train: Split, unseen: np.ndarray, spec: Spec, positions: np.ndarray, labels: np.ndarray, held: int, context: Context
) -> np.ndarray:
    """Train a head on the seen rows and score pairs of an unseen row and a label.

    `positions` are the rows of the pairs, counted among the `unseen` ones.
    """
    with contextlib.ExitStack() as stack:
        folder = context.folder
        if folder is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        inside = context.using(seed=context.seed_for("head", held), progress=silent, folder=folder)
        head = inside.build("head", spec)
        head.fit(train.take(np.flatnonzero(~unseen)), context=inside)
        X = train.matrix[np.flatnonzero(unseen)]
        scores = np.full(len(positions), np.nan)
        for begin in range(0, X.shape[0], ROWS_AT_ONCE):
            best: TopK = head.predict(X[begin : begin + ROWS_AT_ONCE], min(LISTED, train.labels))
            here = np.flatnonzero((positions >= begin) & (positions < begin + best.rows))
            scores[here] = _look_up(best, positions[here] - begin, labels[here], train.labels)
    listed = ~np.isnan(scores)
    return np.where(listed, scores, scores[listed].min() - 1.0 if listed.any() else 0.0)


def _look_up(best: TopK, rows: np.ndarray, labels: np.ndarray, label_count: int) -> np.ndarray:
    """Return the scores of these pairs; NaN if the label is not listed for the row."""
    listed = best.indices >= 0
    start = np.concatenate([[0], np.cumsum(listed.sum(axis=1))])
    position = csr_matrix((np.arange(1, start[-1] + 1), best.indices[listed], start), shape=(best.rows, label_count))
    at = np.asarray(position[rows, labels]).ravel()
    scores = np.concatenate([[np.nan], best.scores[listed]])
    return np.asarray(scores[at], dtype=np.float64)


def _match_results(scores: np.ndarray, rivals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return 1 for each pair with a best score above its best rival, 0.5 if equal, otherwise 0.

    Pairs with no rival above −inf are left out.
    """
    begins = np.cumsum(sizes) - sizes
    best, rival = np.maximum.reduceat(scores, begins), np.maximum.reduceat(rivals, begins)
    return np.where(best > rival, 1.0, np.where(best == rival, 0.5, 0.0))[rival > -np.inf]
