"""A head as the judge of a choice: the groups are dealt into folds, the head is trained on the choice for the groups of
the other folds, and scores the rows of the groups that it has not seen.

It lists a row's best labels only: a label that is not among them scores one less than the least score listed. Whether
held-out groups are recognised is asked as in `refine`: does the best row of the group beat as many rows drawn from
groups without the label? The drawn rows are of the same fold, so that the head has seen none of them either.
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
from xmckit_eagle.assign.candidates import Candidates
from xmckit_eagle.assign.refine import FOLDS, Judgement

LISTED = 1000  # labels that the head names for a row: a group's labels should be among them
ROWS_AT_ONCE = 1 << 13


def check_head(spec: Spec, context: Context) -> None:
    """UsageError for a head that cannot be trained by itself."""
    head = context.resolve("head", spec.use)
    needs: frozenset[str] = getattr(head, "needs", frozenset())
    if needs and not getattr(head, "index_optional", False):
        raise UsageError(
            f"head '{spec.use}' needs an index with {', '.join(sorted(needs))}, which a label stage has not: as the "
            "judge of eagle it has to be one that does without"
        )


def head_judge(
    train: Split, these: Candidates, spec: Spec, *, context: Context, advance: Callable[[float], None]
) -> Callable[[np.ndarray], Judgement]:
    """For `refine.improve`; `train` has groups, and rows in none keep their labels. A call advances by 1."""
    assert train.groups is not None
    membership = train.groups.membership
    of_groups = as_csr(membership @ (train.groups.labels > 0).astype(np.float32))
    ungrouped = np.diff(membership.indptr) == 0
    fold_of_group = context.rng("folds").permutation(membership.shape[1]) % FOLDS
    # a label that only one group has cannot be learned without it
    fold = np.where(these.alone, -1, fold_of_group[these.groups])
    sizes = np.diff(these.start)
    labels = np.repeat(these.labels, sizes)

    def judge(chosen: np.ndarray) -> Judgement:
        Y = _labels(train.Y, ungrouped, these.rows[chosen], labels[chosen])
        margins, wins, matches = np.full(len(these.rows), np.nan), 0.0, 0
        for held in range(FOLDS):
            unseen = np.asarray(membership[:, fold_of_group == held].sum(axis=1)).ravel() > 0
            here = np.repeat(fold == held, sizes)
            if here.any() and Y[~unseen].nnz:
                rows, asked = np.flatnonzero(unseen), labels[here]
                rivals = context.rng("rivals", held).integers(len(rows), size=len(asked))
                places = np.concatenate([np.searchsorted(rows, these.rows[here]), rivals])
                trained = replace(train, Y=Y, weights=None, groups=None)
                scores = _scores(trained, unseen, spec, places, np.tile(asked, 2), held, context)
                margins[here], against = scores[: len(asked)], scores[len(asked) :]
                has_label = np.asarray(of_groups[rows[rivals], asked]).ravel() > 0
                won = _won(margins[here], np.where(has_label, -np.inf, against), sizes[fold == held])
                wins, matches = wins + float(won.sum()), matches + len(won)
            advance(1 / FOLDS)
        return Judgement(margins, wins, matches)

    return judge


def _labels(Y: csr_matrix, ungrouped: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> csr_matrix:
    """The chosen labels, and those that rows in no group have themselves."""
    chosen = csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, labels)), shape=Y.shape)
    own = diags(ungrouped.astype(np.float32)) @ Y
    return as_csr((chosen + own) != 0)


def _scores(
    train: Split, unseen: np.ndarray, spec: Spec, places: np.ndarray, labels: np.ndarray, held: int, context: Context
) -> np.ndarray:
    """What a head that is trained on the other rows says about pairs of an `unseen` row (`places`) and a label."""
    with contextlib.ExitStack() as stack:
        folder = context.folder
        if folder is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        inside = context.using(seed=context.seed_for("head", held), progress=silent, folder=folder)
        head = inside.build("head", spec)
        head.fit(train.take(np.flatnonzero(~unseen)), context=inside)
        X = train.matrix[np.flatnonzero(unseen)]
        scores = np.full(len(places), np.nan)
        for begin in range(0, X.shape[0], ROWS_AT_ONCE):
            best: TopK = head.predict(X[begin : begin + ROWS_AT_ONCE], min(LISTED, train.labels))
            here = np.flatnonzero((places >= begin) & (places < begin + best.rows))
            scores[here] = _looked_up(best, places[here] - begin, labels[here], train.labels)
    listed = ~np.isnan(scores)
    return np.where(listed, scores, scores[listed].min() - 1.0 if listed.any() else 0.0)


def _looked_up(best: TopK, rows: np.ndarray, labels: np.ndarray, label_count: int) -> np.ndarray:
    """The scores of these pairs, NaN where the label is not listed for the row."""
    there = best.indices >= 0
    start = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    place = csr_matrix((np.arange(1, start[-1] + 1), best.indices[there], start), shape=(best.rows, label_count))
    at = np.asarray(place[rows, labels]).ravel()
    scores = np.concatenate([[np.nan], best.scores[there]])
    return np.asarray(scores[at], dtype=np.float64)


def _won(scores: np.ndarray, rivals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """By pair, of those that have a rival (the others' rivals are −inf): 1 if its best score is above, 0.5 if equal."""
    begins = np.cumsum(sizes) - sizes
    best, rival = np.maximum.reduceat(scores, begins), np.maximum.reduceat(rivals, begins)
    return np.where(best > rival, 1.0, np.where(best == rival, 0.5, 0.0))[rival > -np.inf]
