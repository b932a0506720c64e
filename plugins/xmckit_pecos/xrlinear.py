"""Head `xrlinear`: PECOS's XR-Linear (Yu et al. 2020). Linear models lead a row down a label tree by beam search, and
others rank the labels of the leaves it reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from xmckit.protocols import LabelIndex
from xmckit_pecos.labels.report import tree_exhibits
from xmckit_pecos.labels.tree import LabelTree, tree_of_clusters
from xmckit_pecos.linear import calibration as calibrating
from xmckit_pecos.linear import isolation, matrices
from xmckit_pecos.linear.model import Model
from xmckit_pecos.linear.options import Training
from xmckit_pecos.linear.storage import PostProcessor
from xmckit_pecos.search.copies import scores_of_labels
from xmckit_pecos.tree import COUNTS, Branching, LinearParams, build_tree, leaves_facts, over_pseudo_labels

MODEL, STATE = "model", "state.json"
JUDGED = 5  # labels of a row whose probabilities are judged
CALIBRATED = 10  # labels of a row that calibration learns from
CONSIDERED = 100  # labels of a row that the choice of a threshold looks at
MOST_PAIRS = 5_000_000
ROWS_AT_ONCE = 1 << 16
MEASURED_ROWS = 64  # leaves are of about the same size


class XRLinearParams(LinearParams):
    post_processor: PostProcessor = Field(
        "l3-hinge",
        description='How margins become scores that are multiplied (or, "log-", added) down the tree; "noop" keeps the '
        "last level's margin alone.",
    )
    threshold: Annotated[float, Field(ge=-10_000, le=10_000)] | Literal["validation"] = Field(
        "validation", description='Logit above which a label is output; "validation": the best micro-F1 there.'
    )
    k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Output the best k labels of every row instead of those above the threshold."
    )
    calibration: calibrating.Method = Field(
        "none", description="Make σ(score) a probability that comes true, learned on the validation share."
    )
    copies: Literal["mean", "max"] = Field(
        "mean", description="The score of a label that an index has in several leaves, from those of its copies."
    )
    averaged: int | None = Field(
        None,
        ge=1,
        description="A mean is over a label's copies among this many best of a row; none: over all that are scored.",
    )
    branching: Branching = Field(16, description="Children of a node, where the head builds the tree itself.")
    leaf_size: int = Field(100, ge=2, description="Labels in a leaf, at most, where the head builds the tree itself.")

    def training(self) -> Training:
        return Training(self.C, self.prune, self.loss, self.negatives, self.beam, self.post_processor)


class XRLinearHead(Configured):
    """Matcher and ranker over the tree of an index, or over one of its own.

    An index that brings its matcher, as `tree` does, keeps it, with its own C, prune, loss and negatives: this head
    then trains the labels' level below. Labels on no training row are never output. Scores are log-odds of the product
    down the tree. There is no one matrix behind the output, so nothing to verify.
    """

    Params: ClassVar[type[Params]] = XRLinearParams
    needs: ClassVar[frozenset[str]] = frozenset({"clusters"})
    index_optional: ClassVar[bool] = True

    def __init__(self, **params: Any):
        super().__init__(**params)
        self.threshold = 0.0
        self._calibration: calibrating.Calibration = calibrating.Uncalibrated()
        self._model: Model | None = None
        self._tree: LabelTree | None = None
        self._told: dict[str, Any] = {}
        self._counts: np.ndarray | None = None  # training rows of each label, where the tree is this head's own
        self._workers = 1

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        self._train(train, indexes, context)
        self._learn_from_validation(context)

    def refit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        """`fit` with the calibration and the threshold as they are."""
        calibration, threshold, told = self._calibration, self.threshold, self._told
        self._model = self._tree = None  # memory need not hold two models
        self._train(train, indexes, context)
        self._calibration, self.threshold, self._told = calibration, threshold, {**told, **self._told}

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        """Scores are logits; with calibration σ(score) is the probability (see `probabilities`)."""
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        return TopK.of_blocks([_ranking(self._scored(block, k), k) for block in _blocks(X)])

    def rank_and_label(self, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
        """`predict` and `labels`, which would go down the tree twice."""
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        rankings, sets = [], []
        for block in _blocks(X):
            found = self._enough(block, k)
            rankings.append(_ranking(found, k))
            sets.append(self._sets(found))
        return TopK.of_blocks(rankings), _stacked(sets)

    @property
    def probabilistic(self) -> bool:
        """Margins are none, unless they are calibrated."""
        return self.params.post_processor != "noop" or not isinstance(self._calibration, calibrating.Uncalibrated)

    def probabilities(self, X: Matrix, k: int) -> TopK:
        """As `predict`, with σ of the scores; 0 in padded places."""
        best = self.predict(X, k)
        return TopK(best.indices, calibrating.probabilities(best.scores))

    def labels(self, X: Matrix) -> csr_matrix:
        return _stacked([self._sets(self._enough(block, 1)) for block in _blocks(X)])

    def features(self, X: Matrix) -> None:
        return None

    def decision(self) -> LinearDecision | None:
        return None

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        self._fitted()
        return dict(self._told)

    def exhibits(self) -> list[Exhibit]:
        """The tree that this head built for itself; that of an index is shown with the index."""
        return [] if self._counts is None else tree_exhibits(self._fitted()[1], self._counts)

    def save(self, folder: Path) -> None:
        model, tree = self._fitted()
        super().save(folder)
        tree.save(folder)
        model.save(folder / MODEL)
        if self._counts is not None:
            store.write_arrays(folder / COUNTS, {"counts": self._counts})
        state = {"threshold": self.threshold, "calibration": self._calibration.state(), "facts": self._told}
        store.write_json(folder / STATE, state)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> XRLinearHead:
        head = super().load(folder, context=context)
        head._workers = context.workers
        head._tree, head._model = LabelTree.load(folder), Model.load(folder / MODEL)
        if (head._model.labels, head._model.depth) != (len(head._tree.label_of), head._tree.depth):
            raise store.damaged(folder / MODEL, "a model over another tree than the one beside it")
        if (folder / COUNTS).is_file():
            head._counts = store.read_arrays(folder / COUNTS, "counts")["counts"]
            if head._counts.shape != (head._tree.labels,) or head._counts.dtype.kind != "i":
                raise store.damaged(folder / COUNTS, f"expected {head._tree.labels} counts of rows")
        state = store.read_json(folder / STATE)
        if not isinstance(state, dict) or not isinstance(state.get("facts"), dict):
            raise store.damaged(folder / STATE, "expected threshold, calibration and facts")
        if type(state.get("threshold")) not in (int, float) or not np.isfinite(state["threshold"]):
            raise store.damaged(folder / STATE, "expected a threshold that is a finite number")
        try:
            head._calibration = calibrating.from_state(state.get("calibration"))
        except ValueError as error:
            raise store.damaged(folder / STATE, str(error)) from None
        head.threshold, head._told = float(state["threshold"]), state["facts"]
        return head

    # Training

    def _train(self, train: Split, indexes: Sequence[LabelIndex], context: Context) -> None:
        if len(indexes) > 1:
            raise UsageError(
                f'this head takes one index, not {len(indexes)}: name it with index = ["…"] in the head\'s section'
            )
        X, (Y, weights) = matrices.features(train.matrix), matrices.targets(train)
        if not Y.nnz:
            raise DataError("no training row has a label: there is nothing to learn")
        if indexes:
            tree, matcher = self._from_index(indexes[0], Y.shape[1])
        else:
            with context.progress("building the label tree"):
                tree = build_tree(
                    X, Y, self.params.branching, self.params.leaf_size, context, isolated=self.params.isolated
                )
                matcher = None
        # there is nothing to learn about a label on no row, and what its score would be says nothing
        counts = np.bincount(Y.indices, minlength=Y.shape[1])
        tree = tree.only(counts[tree.label_of] > 0)
        self._counts = None if indexes else counts
        with context.progress("training the linear models"):
            model = isolation.train(
                X,
                over_pseudo_labels(Y, tree),
                tree,
                self.params.training(),
                context,
                isolated=self.params.isolated,
                weights=None if weights is None else over_pseudo_labels(weights, tree),
                matcher=matcher,
            )
        self._workers = context.workers
        self._model, self._tree = model, tree
        self._calibration, self.threshold = calibrating.Uncalibrated(), 0.0
        self._told = self._facts_of_training(X, Y, context)
        if indexes and hasattr(indexes[0], "facts") and (told := indexes[0].facts()):
            self._told["index"] = told

    def _from_index(self, index: Any, labels: int) -> tuple[LabelTree, Model | None]:
        """The tree of an index and, where it is one of this plugin's, its matcher."""
        tree, matcher = getattr(index, "tree", None), getattr(index, "matcher", None)
        if not isinstance(tree, LabelTree):
            if not hasattr(index, "clusters") or not hasattr(index, "label_of"):
                raise UsageError(f"this head needs an index with clusters, which a {type(index).__name__} has not")
            tree, matcher = tree_of_clusters(index.clusters, index.label_of, labels, self.params.branching), None
        if tree.labels != labels:
            raise DataError(f"the index is over {tree.labels} labels, the training rows have {labels}")
        return tree, matcher

    def _facts_of_training(self, X: Matrix, Y: csr_matrix, context: Context) -> dict[str, Any]:
        model, tree = self._fitted()
        counts = np.bincount(Y.indices, minlength=Y.shape[1])
        measured = X if self._validation(context) is None else matrices.features(self._validation(context).matrix)
        scored = self._scored_labels(measured[:MEASURED_ROWS])
        return {
            "tree": {
                "levels below the root": tree.depth,
                "nodes": ", ".join(f"{size:,}" for size in tree.level_sizes),
                "leaves": tree.leaves,
                "leaf sizes": leaves_facts(tree.leaf_sizes),
                "copies per label": len(tree.label_of) / max(1, int((counts > 0).sum())),
                "labels on no training row, left out": int((counts == 0).sum()),
            },
            "labels scored per row": float(scored.mean()) if len(scored) else 0.0,
            "weights": model.weights,
            "model bytes": model.bytes,
        }

    def _scored_labels(self, X: Matrix) -> np.ndarray:
        """How many pseudo-labels are ranked for each row: those of the leaves that it reaches."""
        model, tree = self._fitted()
        if tree.depth == 1:
            return np.full(X.shape[0], len(tree.label_of))
        beam = self.params.beam
        reached = Model(model.levels[:-1]).predict(X, beam, beam, self._workers, self.params.post_processor)
        return np.bincount(_places(reached)[0], tree.leaf_sizes[reached.indices], minlength=X.shape[0])

    def _validation(self, context: Context) -> Any:
        """The validation share if it can score anything."""
        return context.validation if context.validation is not None and context.validation.Y.nnz else None

    def _learn_from_validation(self, context: Context) -> None:
        """Calibration and threshold; without a validation share there is neither."""
        validation = self._validation(context)
        wanted = self.params.threshold == "validation" and self.params.k is None
        if self.params.threshold != "validation":
            self.threshold = float(np.float32(self.params.threshold))
        if validation is None:
            if self.params.calibration != "none":
                self._told["warnings"] = [
                    f'scores are not calibrated: calibration = "{self.params.calibration}" needs validation rows with '
                    "labels; set `validation` at the top of the recipe to a share such as 0.1"
                ]
            if wanted:
                context.log("there is no validation share with labels: a label is output when its logit is above 0")
            return
        if not wanted and self.params.calibration == "none":
            return
        rows, logits, hits, true_pairs = self._judged(validation, context)
        if self.params.calibration != "none":
            self._calibrate(rows, logits, hits, context)
            logits = self._calibration(logits)
        if wanted:
            self.threshold, f1 = calibrating.best_threshold(logits, hits, true_pairs)
            self._told["threshold"] = {"logit": self.threshold, "validation micro-F1": f1}
            context.log(f"a label is output when its logit is above {self.threshold:g} (validation micro-F1 {f1:.4f})")

    def _judged(self, validation: Split, context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """(row, logit, whether it is true) of the best labels of validation rows, and the number of true pairs."""
        Y, _ = matrices.targets(validation)
        X = matrices.features(validation.matrix)
        most = max(1, MOST_PAIRS // min(CONSIDERED, Y.shape[1]))
        if Y.shape[0] > most:
            chosen = np.sort(context.rng("calibration").permutation(Y.shape[0])[:most])
            X, Y = X[chosen], Y[chosen]
        found = self._scored(X, CONSIDERED)
        row, _ = _places(found)
        asked = row * Y.shape[1] + found.indices
        true = _places(Y)[0] * Y.shape[1] + Y.indices
        return row, found.data, np.isin(asked, true), int(Y.nnz)

    def _calibrate(self, rows: np.ndarray, logits: np.ndarray, hits: np.ndarray, context: Context) -> None:
        method = self.params.calibration
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        best = place < CALIBRATED
        place, rows, logits, hits = place[best], rows[best], logits[best], hits[best]
        self._calibration = calibrating.fit(method, logits, hits)
        shown = place < JUDGED
        after = calibrating.held_out(method, logits, hits, rows)
        errors = {
            "before": calibrating.calibration_error(calibrating.probabilities(logits[shown]), hits[shown]),
            "after, on rows left out": calibrating.calibration_error(
                calibrating.probabilities(after[shown]), hits[shown]
            ),
        }
        self._told[f"expected calibration error of the best {JUDGED} labels"] = errors
        before, held = errors.values()
        context.log(f"{method} calibration: expected calibration error {before:.4f} before, {held:.4f} after")

    # Prediction

    def _fitted(self) -> tuple[Model, LabelTree]:
        if self._model is None or self._tree is None:
            raise UsageError("this XRLinearHead has not been fitted: call fit or load first")
        return self._model, self._tree

    def _checked(self, X: Matrix) -> None:
        model, _ = self._fitted()
        if X.shape[1] != model.inputs:
            raise DataError(f"the rows have {X.shape[1]} features, this head was fitted on {model.inputs}")

    def _scored(self, X: Matrix, k: int) -> csr_matrix:
        """Rows × labels: up to `k` calibrated logits a row, best first."""
        model, tree = self._fitted()
        self._checked(X)
        beam, post_processor = self.params.beam, self.params.post_processor
        if not tree.copies:
            found = model.predict(X, k, beam, self._workers, post_processor)
            if not tree.plain:
                shape = found.shape[0], tree.labels
                found = csr_matrix((found.data, tree.label_of[found.indices], found.indptr), shape)
        elif self.params.copies == "max" or self.params.averaged is None:
            mean = self.params.copies == "mean"
            found = model.predict(X, k, beam, self._workers, post_processor, tree=tree, mean=mean)
        else:
            asked = max(self.params.averaged, k * tree.most_copies)
            found = model.predict(X, asked, beam, self._workers, post_processor)
            found = scores_of_labels(found, tree.label_of, tree.labels, k, self.params.averaged)
        found.data = self._calibration(calibrating.logits(found.data, post_processor))
        return found

    def _enough(self, X: Matrix, k: int) -> csr_matrix:
        """As many labels of each row as it takes to have the best `k` and all that are output."""
        if self.params.k is not None:
            return self._scored(X, max(k, self.params.k))
        labels, asked = self._fitted()[1].labels, max(k, 256)
        while True:
            found = self._scored(X, asked)
            full = found.indptr[1:][np.diff(found.indptr) >= asked] - 1
            if asked >= labels or not (found.data[full] > np.float32(self.threshold)).any():
                return found
            asked *= 8

    def _sets(self, found: csr_matrix) -> csr_matrix:
        """Those of the scored labels that are output."""
        row, place = _places(found)
        kept = found.data > np.float32(self.threshold) if self.params.k is None else place < self.params.k
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=found.shape[0]))])
        ones = np.ones(int(kept.sum()), dtype=np.float32)
        return csr_matrix((ones, found.indices[kept], indptr), shape=found.shape)


def _blocks(X: Matrix) -> Iterator[Matrix]:
    """The rows in parts of which each fits into memory with all that is scored; one part where there are none."""
    for start in range(0, max(int(X.shape[0]), 1), ROWS_AT_ONCE):
        yield X[start : start + ROWS_AT_ONCE]


def _ranking(found: csr_matrix, k: int) -> TopK:
    """The first `k` entries of each row."""
    places = np.arange(k, dtype=found.indptr.dtype)
    inside = places < np.diff(found.indptr)[:, None]
    entries = (found.indptr[:-1, None] + places)[inside]
    indices, scores = np.full(inside.shape, -1, dtype=np.int32), np.full(inside.shape, -np.inf, dtype=np.float32)
    indices[inside], scores[inside] = found.indices[entries], found.data[entries]
    return TopK(indices, scores)


def _stacked(sets: Sequence[csr_matrix]) -> csr_matrix:
    return csr_matrix(vstack(sets, format="csr", dtype=np.float32)).sorted_indices()


def _places(found: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """(row, place in its row) of each entry."""
    counts = np.diff(found.indptr)
    row = np.repeat(np.arange(found.shape[0]), counts)
    return row, np.arange(found.nnz) - np.repeat(found.indptr[:-1], counts)
