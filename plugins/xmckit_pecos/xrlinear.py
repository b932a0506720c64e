"""Head `xrlinear`: PECOS's XR-Linear (Yu et al. 2020).

Linear models lead a row down a label tree by beam search, and others rank the labels of the leaves that it reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix, vstack

from xmckit import (
    Configured,
    Context,
    DataError,
    Groups,
    LinearDecision,
    Matrix,
    Params,
    Split,
    TopK,
    UsageError,
    store,
)  # fmt: skip
from xmckit.exhibits import Exhibit
from xmckit.protocols import ClusteredIndex, LabelIndex, SupportsFacts, offers
from xmckit_pecos.labels.report import leaf_size_facts, tree_exhibits
from xmckit_pecos.labels.tree import LabelTree, tree_of_clusters
from xmckit_pecos.linear import calibration, isolation, matrices
from xmckit_pecos.linear.calibration import CalibrationMethod
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TrainingOptions
from xmckit_pecos.linear.storage import LARGEST, PostProcessor
from xmckit_pecos.search.copies import scores_of_labels
from xmckit_pecos.tree import COUNTS, Branching, LinearParams, TreeIndex, build_tree, read_counts

MODEL, STATE = "model", "state.json"
EVALUATED = 5  # best labels of a row in the calibration error
CALIBRATED = 10  # best labels of a row that calibration learns from
CONSIDERED = 100  # best labels of a row that the choice of a threshold uses
MOST_PAIRS = 5_000_000
ROWS_AT_ONCE = 1 << 16
MEASURED_ROWS = 64  # a few suffice, because leaves are of about the same size


class XRLinearParams(LinearParams):
    post_processor: PostProcessor = Field(
        "l3-hinge",
        description='How margins become scores, which are multiplied down the tree ("log-": added). "noop": the margin '
        "of the last level alone.",
    )
    threshold: Annotated[float, Field(ge=-10_000, le=10_000)] | Literal["validation"] = Field(
        "validation", description='Logit above which a label is output. "validation": best micro-F1 on validation rows.'
    )
    k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Output the best k labels of every row instead of those above the threshold."
    )
    calibration: CalibrationMethod = Field(
        "none", description="Calibrate on the validation share, so that σ(score) is a probability."
    )
    copies: Literal["mean", "max"] = Field(
        "mean", description="How a label in several leaves gets its score from the scores of its copies."
    )
    averaged: int | None = Field(
        None,
        ge=1,
        description="Average only the copies among this many best of a row. None: all copies that are scored.",
    )
    branching: Branching = Field(16, description="Children of a node, if the head builds its own tree.")
    leaf_size: int = Field(100, ge=2, description="Labels in a leaf, at most, if the head builds its own tree.")

    def training_options(self) -> TrainingOptions:
        return replace(super().training_options(), post_processor=self.post_processor)


class XRLinearHead(Configured):
    """Matcher and ranker over the tree of an index, or over a tree of its own.

    If the index has a matcher, as `tree` does, this head uses it, with the matcher's own C, prune, loss and negatives,
    and trains only the level of the labels below it. Labels on no training row are never output. Scores are log-odds of
    the product down the tree. The output does not come from one matrix, so there is nothing to verify.
    """

    Params: ClassVar[type[Params]] = XRLinearParams
    needs: ClassVar[frozenset[str]] = frozenset({"clusters"})
    index_optional: ClassVar[bool] = True

    def __init__(self, **params: Any):
        super().__init__(**params)
        self.threshold = 0.0
        self._calibration: calibration.Calibration = calibration.Uncalibrated()
        self._model: LinearModel | None = None
        self._tree: LabelTree | None = None
        self._facts: dict[str, Any] = {}
        self._counts: np.ndarray | None = None  # training rows of each label, if the head built its own tree
        self._workers = 1

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        self._train(train, indexes, context)
        self._learn_from_validation(context)

    def refit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        """Train again, and keep the calibration and the threshold."""
        kept, threshold, facts = self._calibration, self.threshold, self._facts
        self._model = self._tree = None  # so that memory does not hold two models
        self._train(train, indexes, context)
        self._calibration, self.threshold, self._facts = kept, threshold, {**facts, **self._facts}

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        """Rank labels by their logits. With calibration σ(score) is the probability."""
        _check_k(k)
        return TopK.of_blocks([_ranking(self._score(block, k), k) for block in _blocks(X)])

    def rank_and_label(self, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
        """Return `predict` and `labels` at the cost of one beam search."""
        _check_k(k)
        rankings, sets = [], []
        for block in _blocks(X):
            scores = self._score_enough(block, k)
            rankings.append(_ranking(scores, k))
            sets.append(self._label_sets(scores))
        return TopK.of_blocks(rankings), _stack(sets)

    @property
    def probabilistic(self) -> bool:
        """Whether σ(score) is a probability: not for margins, unless they are calibrated."""
        return self.params.post_processor != "noop" or not isinstance(self._calibration, calibration.Uncalibrated)

    def probabilities(self, X: Matrix, k: int) -> TopK:
        """Return `predict` with σ of the scores, and 0 in padded places."""
        best = self.predict(X, k)
        return TopK(best.indices, calibration.probabilities(best.scores))

    def labels(self, X: Matrix) -> csr_matrix:
        return _stack([self._label_sets(self._score_enough(block, 1)) for block in _blocks(X)])

    def features(self, X: Matrix) -> None:
        return None

    def decision(self) -> LinearDecision | None:
        return None

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        self._require_fitted()
        return dict(self._facts)

    def exhibits(self) -> list[Exhibit]:
        """Return the tree that this head built. The report shows the tree of an index with the index."""
        return [] if self._counts is None else tree_exhibits(self._require_fitted()[1], self._counts)

    def save(self, folder: Path) -> None:
        model, tree = self._require_fitted()
        super().save(folder)
        tree.save(folder)
        model.save(folder / MODEL)
        if self._counts is not None:
            store.write_arrays(folder / COUNTS, {"counts": self._counts})
        state = {"threshold": self.threshold, "calibration": self._calibration.state(), "facts": self._facts}
        store.write_json(folder / STATE, state)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> XRLinearHead:
        head = super().load(folder, context=context)
        head._workers = context.workers
        head._tree, head._model = LabelTree.load(folder), LinearModel.load(folder / MODEL)
        if (head._model.labels, head._model.depth) != (len(head._tree.label_of), head._tree.depth):
            raise store.damaged(folder / MODEL, "the model belongs to another tree than the one beside it")
        if (folder / COUNTS).is_file():
            head._counts = read_counts(folder, head._tree)
        state = store.read_json(folder / STATE)
        if not isinstance(state, dict) or not isinstance(state.get("facts"), dict):
            raise store.damaged(folder / STATE, "expected threshold, calibration and facts")
        if type(state.get("threshold")) not in (int, float) or not abs(state["threshold"]) <= LARGEST:
            raise store.damaged(folder / STATE, "expected a threshold that is a finite number")
        try:
            head._calibration = calibration.from_state(state.get("calibration"))
        except ValueError as error:
            raise store.damaged(folder / STATE, str(error)) from None
        head.threshold, head._facts = float(state["threshold"]), state["facts"]
        return head

    # Training

    def _train(self, train: Split, indexes: Sequence[LabelIndex], context: Context) -> None:
        if len(indexes) > 1:
            raise UsageError(
                f'this head takes one index, not {len(indexes)}: name it with index = ["…"] in the head\'s section'
            )
        params, rows = self.params, TrainingRows.from_split(train)
        if indexes:
            tree, matcher = self._from_index(indexes[0], rows.Y.shape[1])
        else:
            with context.progress("building the label tree"):
                tree = build_tree(rows, params.branching, params.leaf_size, context, isolated=params.isolated)
                matcher = None
        # a label on no row has nothing to learn from, and its score would mean nothing
        counts = rows.label_counts
        tree = tree.keep(counts[tree.label_of] > 0)
        self._counts = None if indexes else counts
        with context.progress("training the linear models"):
            model = isolation.train(
                rows, tree, params.training_options(), context, isolated=params.isolated, matcher=matcher
            )
        self._workers = context.workers
        self._model, self._tree = model, tree
        self._calibration, self.threshold = calibration.Uncalibrated(), 0.0
        self._facts = self._training_facts(rows.X, counts, context)
        if indexes and offers(indexes[0], SupportsFacts) and (facts := indexes[0].facts()):
            self._facts["index"] = facts

    def _from_index(self, index: LabelIndex, labels: int) -> tuple[LabelTree, LinearModel | None]:
        """Return the tree of an index and, if it is an index of this plugin, its matcher."""
        if isinstance(index, TreeIndex):
            tree, matcher = index.tree, index.matcher
        elif offers(index, ClusteredIndex):
            tree, matcher = tree_of_clusters(index.clusters, index.label_of, labels, self.params.branching), None
        else:
            raise UsageError(f"this head needs an index with clusters, and a {type(index).__name__} has none")
        if tree.labels != labels:
            raise DataError(f"the index is over {tree.labels} labels, the training rows have {labels}")
        return tree, matcher

    def _training_facts(self, X: Matrix, counts: np.ndarray, context: Context) -> dict[str, Any]:
        model, tree = self._require_fitted()
        validation = _usable_validation(context)
        rows = X if validation is None else matrices.features(validation.matrix)
        scored = self._scored_labels(rows[:MEASURED_ROWS])
        return {
            "tree": {
                "levels below the root": tree.depth,
                "nodes": ", ".join(f"{size:,}" for size in tree.level_sizes),
                "leaves": tree.leaves,
                "leaf sizes": leaf_size_facts(tree),
                "copies per label": len(tree.label_of) / max(1, int((counts > 0).sum())),
                "labels on no training row, left out": int((counts == 0).sum()),
            },
            "labels scored per row": float(scored.mean()) if len(scored) else 0.0,
            "weights": model.weights,
            "model bytes": model.bytes,
        }

    def _scored_labels(self, X: Matrix) -> np.ndarray:
        """Count the pseudo-labels that are ranked for each row: those in the leaves that it reaches."""
        model, tree = self._require_fitted()
        if tree.depth == 1:
            return np.full(X.shape[0], len(tree.label_of))
        beam = self.params.beam
        matcher = LinearModel(model.levels[:-1])
        reached = matcher.predict(X, beam, beam, self._workers, self.params.post_processor)
        return np.bincount(_rows_and_ranks(reached)[0], tree.leaf_sizes[reached.indices], minlength=X.shape[0])

    def _learn_from_validation(self, context: Context) -> None:
        """Fit the calibration and choose the threshold, if there is a validation share."""
        validation = _usable_validation(context)
        wanted = self.params.threshold == "validation" and self.params.k is None
        if self.params.threshold != "validation":
            self.threshold = float(np.float32(self.params.threshold))
        if validation is None:
            if self.params.calibration != "none":
                self._facts["warnings"] = [
                    f'scores are not calibrated: calibration = "{self.params.calibration}" needs validation rows with '
                    "labels; set `validation` at the top of the recipe to a share such as 0.1"
                ]
            if wanted:
                context.log("no validation rows have labels: a label is output when its logit is above 0")
            return
        if not wanted and self.params.calibration == "none":
            return
        rows, logits, hits, true_pairs = self._validation_pairs(validation, context)
        if self.params.calibration != "none":
            self._calibrate(rows, logits, hits, context)
            logits = self._calibration(logits)
        if wanted:
            self.threshold, f1 = calibration.best_threshold(logits, hits, true_pairs)
            self._facts["threshold"] = {"logit": self.threshold, "validation micro-F1": f1}
            context.log(f"a label is output when its logit is above {self.threshold:g} (validation micro-F1 {f1:.4f})")

    def _validation_pairs(self, validation: Split, context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return (rows, logits, hits) of the best labels of validation rows, and the number of true pairs."""
        Y, _ = matrices.targets(validation)
        X = matrices.features(validation.matrix)
        most = max(1, MOST_PAIRS // min(CONSIDERED, Y.shape[1]))
        if Y.shape[0] > most:
            chosen = np.sort(context.rng("calibration").permutation(Y.shape[0])[:most])
            X, Y = X[chosen], Y[chosen]
        scores = self._score(X, CONSIDERED)
        row, _ = _rows_and_ranks(scores)
        pairs = row * Y.shape[1] + scores.indices
        true = _rows_and_ranks(Y)[0] * Y.shape[1] + Y.indices
        return row, scores.data, np.isin(pairs, true), int(Y.nnz)

    def _calibrate(self, rows: np.ndarray, logits: np.ndarray, hits: np.ndarray, context: Context) -> None:
        method = self.params.calibration
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        best = rank < CALIBRATED
        rank, rows, logits, hits = rank[best], rows[best], logits[best], hits[best]
        self._calibration = calibration.fit(method, logits, hits)
        held_out = calibration.calibrate_held_out(method, logits, hits, rows)
        top = rank < EVALUATED
        before, after = (
            calibration.calibration_error(calibration.probabilities(values[top]), hits[top])
            for values in (logits, held_out)
        )
        errors = {"before": before, "after, on rows left out": after}
        self._facts[f"expected calibration error of the best {EVALUATED} labels"] = errors
        context.log(f"{method} calibration: expected calibration error {before:.4f} before, {after:.4f} after")

    # Prediction

    def _require_fitted(self) -> tuple[LinearModel, LabelTree]:
        if self._model is None or self._tree is None:
            raise UsageError("this XRLinearHead has not been fitted: call fit or load first")
        return self._model, self._tree

    def _score(self, X: Matrix, k: int) -> csr_matrix:
        """Return rows × labels: up to `k` calibrated logits in each row, best first."""
        model, tree = self._require_fitted()
        beam, post_processor = self.params.beam, self.params.post_processor
        if tree.most_copies <= 1:
            scores = model.predict(X, k, beam, self._workers, post_processor)
            if not tree.plain:
                shape = scores.shape[0], tree.labels
                scores = csr_matrix((scores.data, tree.label_of[scores.indices], scores.indptr), shape)
        elif self.params.copies == "max" or self.params.averaged is None:
            mean = self.params.copies == "mean"
            scores = model.predict(X, k, beam, self._workers, post_processor, tree=tree, mean=mean)
        else:
            copies = max(self.params.averaged, k * tree.most_copies)
            scores = model.predict(X, copies, beam, self._workers, post_processor)
            scores = scores_of_labels(scores, tree.label_of, tree.labels, k, self.params.averaged)
        scores.data = self._calibration(calibration.logits(scores.data, post_processor))
        return scores

    def _score_enough(self, X: Matrix, k: int) -> csr_matrix:
        """Score as many labels of each row as needed to have the best `k` and all labels that are output."""
        if self.params.k is not None:
            return self._score(X, max(k, self.params.k))
        labels, wanted = self._require_fitted()[1].labels, max(k, 256)
        while True:
            scores = self._score(X, wanted)
            last_of_full_rows = scores.indptr[1:][np.diff(scores.indptr) >= wanted] - 1
            if wanted >= labels or not (scores.data[last_of_full_rows] > np.float32(self.threshold)).any():
                return scores
            wanted *= 8

    def _label_sets(self, scores: csr_matrix) -> csr_matrix:
        """Return the scored labels that are output."""
        row, rank = _rows_and_ranks(scores)
        kept = scores.data > np.float32(self.threshold) if self.params.k is None else rank < self.params.k
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=scores.shape[0]))])
        ones = np.ones(int(kept.sum()), dtype=np.float32)
        return csr_matrix((ones, scores.indices[kept], indptr), shape=scores.shape)


def _check_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"a ranking needs k of at least 1, not {k}")


def _usable_validation(context: Context) -> Any:
    """Return the validation share if it has labels, or None."""
    return context.validation if context.validation is not None and context.validation.Y.nnz else None


def _blocks(X: Matrix) -> Iterator[Matrix]:
    """Split the rows into blocks that fit into memory with their scores. No rows make one empty block."""
    for start in range(0, max(int(X.shape[0]), 1), ROWS_AT_ONCE):
        yield X[start : start + ROWS_AT_ONCE]


def _ranking(scores: csr_matrix, k: int) -> TopK:
    """Return the first `k` entries of each row."""
    ranks = np.arange(k, dtype=scores.indptr.dtype)
    inside = ranks < np.diff(scores.indptr)[:, None]
    entries = (scores.indptr[:-1, None] + ranks)[inside]
    indices, values = np.full(inside.shape, -1, dtype=np.int32), np.full(inside.shape, -np.inf, dtype=np.float32)
    indices[inside], values[inside] = scores.indices[entries], scores.data[entries]
    return TopK(indices, values)


def _stack(sets: Sequence[csr_matrix]) -> csr_matrix:
    return csr_matrix(vstack(sets, format="csr", dtype=np.float32)).sorted_indices()


def _rows_and_ranks(matrix: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return (the row, the rank in its row) of each entry."""
    counts = np.diff(matrix.indptr)
    row = np.repeat(np.arange(matrix.shape[0]), counts)
    return row, np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
