"""The one place that knows PECOS (libpecos 1.2.8): its forms of matrices, its quirks, its files.

What is guarded here, each with a test of its own:
- `pecos.xmc.xtransformer` and `pecos.xmr.reranker` are never imported: they do not import beside new libraries.
- numpy 2 and scipy 1.14: `scipy.sparse.sputils` is gone and `np.array(copy=False)` refuses to copy (`_mend`).
- Matrices are float32 `csr_matrix` with sorted indices; `csr_array`, float64 and unsorted rows are refused by PECOS.
- A label in two clusters trains, but its stored model frees memory twice when it is loaded for prediction, which ends
  the process. Clusters come from a `LabelTree`, in which a node has one parent, and stored files are checked.
- PECOS's loader for prediction ends the process when a file is not as it expects, and its models in Python are ten
  times slower. It is not used: `beam_search` gives the same scores, bit for bit, in less time than either. Files of a
  saved model are read and checked by `model_files`, and nothing in them is unpickled or executed.
- Some products take every processor of the machine unless each call is told its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import scipy.sparse
from pecos.utils import smat_util
from scipy.sparse import csc_matrix, csr_matrix, issparse

from xmckit import DataError, Matrix, Split, UsageError
from xmckit.data.model import as_csr
from xmckit_pecos import beam_search
from xmckit_pecos.label_tree import LabelTree
from xmckit_pecos.model_files import POST_PROCESSORS, PostProcessor, read_model, write_model


def _mend(module: Any) -> None:
    """Make `pecos.utils.smat_util` work, and without warnings, whatever the versions of numpy and scipy."""

    class Sparse:
        sputils = SimpleNamespace(
            get_index_dtype=lambda array, check_contents=False: _index_type(array),
            upcast=np.result_type,
        )

        def __getattr__(self, name: str) -> Any:
            return getattr(scipy.sparse, name)

    def cs_matrix(
        arg1: Any, mat_type: Any, shape: Any = None, dtype: Any = None, copy: bool = False, check_contents: bool = False
    ) -> Any:
        data, indices, indptr = arg1
        if shape is None:
            raise ValueError("a matrix needs a shape")
        result = mat_type(shape, dtype=dtype)
        result.indices = _as(indices, _index_type(indices), copy)
        result.indptr = _as(indptr, _index_type(indptr), copy)
        result.data = _as(data, dtype, copy)
        return result

    module.smat, module.cs_matrix = Sparse(), cs_matrix


def _index_type(array: np.ndarray) -> type:
    """int32 where the values fit: PECOS makes uint32 and uint64, which scipy takes for something wider."""
    return np.int32 if not len(array) or array.max() <= np.iinfo(np.int32).max else np.int64


def _as(array: np.ndarray, dtype: Any, copy: bool) -> np.ndarray:
    return np.array(array, dtype=dtype) if copy else np.asarray(array, dtype=dtype)


_mend(smat_util)

from pecos.core import ScipyCsrF32, ScipyDrmF32, clib  # noqa: E402
from pecos.xmc import HierarchicalMLModel, Indexer, LabelEmbeddingFactory, MLModel, MLProblem  # noqa: E402
from pecos.xmc.xlinear import XLinearModel  # noqa: E402

Negatives = Literal["tfn", "man", "tfn+man"]
Loss = Literal["squared-hinge", "hinge"]
_SOLVERS = {"squared-hinge": "L2R_L2LOSS_SVC_DUAL", "hinge": "L2R_L1LOSS_SVC_DUAL"}
_KEPT_BY_DEFAULT = 20  # labels a stored model gives where PECOS itself is not told how many
TOLERANCE = 0.1  # how far from its optimum a linear model may be left
_SEEDS = 2**31  # PECOS's seed is a C int


@dataclass(frozen=True)
class Training:
    """How the linear models of a level are trained; the defaults are PECOS's own."""

    C: float = 1.0
    prune: float = 0.1
    loss: Loss = "squared-hinge"
    negatives: Negatives = "tfn"
    beam: int = 10
    post_processor: PostProcessor = "l3-hinge"
    tolerance: float = TOLERANCE


# Matrices ------------------------------------------------------------------------------------------------------------


def features(X: Matrix) -> Matrix:
    """X as PECOS takes it: a canonical float32 csr_matrix or a contiguous float32 array, with finite numbers only."""
    if issparse(X):
        ready: Any = as_csr(X)
        ready.sort_indices()
        values = ready.data
    else:
        ready = values = np.ascontiguousarray(X, dtype=np.float32)
        if ready.ndim != 2:
            raise UsageError(f"expected a matrix of features, not an array with {ready.ndim} dimensions")
    if not ready.shape[1]:
        raise DataError("the rows have no features at all: there is nothing to learn from")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(np.asarray(ready.sum(axis=1)).ravel()))[0])
        raise DataError("a feature is not a finite number", row=row)
    return ready


def targets(train: Split) -> tuple[csr_matrix, csr_matrix | None]:
    """(Y of ones, weights with its pattern or None), without pairs that are stored as 0 in Y."""
    if train.weights is None:
        Y = as_csr(train.Y)
        return csr_matrix((np.ones(Y.nnz, dtype=np.float32), Y.indices, Y.indptr), shape=Y.shape), None
    train.check("train")
    true = train.Y.data != 0
    starts = np.concatenate([[0], np.cumsum(true)])[train.Y.indptr]
    Y, weights = (
        csr_matrix((data[true].astype(np.float32), train.Y.indices[true], starts), shape=train.Y.shape).sorted_indices()
        for data in (np.ones(train.Y.nnz), train.weights.data)
    )
    return Y, weights


def _ready(X: Matrix) -> Any:
    """PECOS's own view of X, made once for all levels."""
    return ScipyCsrF32.init_from(X) if issparse(X) else ScipyDrmF32.init_from(X)


def _chain(tree: LabelTree) -> list[csc_matrix]:
    return [tree.step(level).tocsc() for level in range(tree.depth)]


def _worth(threads: int, X: Matrix, per_thread: int = 1 << 16) -> int:
    """As many of the threads as have something to do: waking one for a small matrix takes longer than the work."""
    entries = X.size if isinstance(X, np.ndarray) else X.nnz
    return max(1, min(threads, entries // per_thread))


# Trees ---------------------------------------------------------------------------------------------------------------


def label_embeddings(X: Matrix, Y: csr_matrix, threads: int) -> Matrix:
    """PIFA: for each label the normalised sum of the rows that have it, each divided by √(its number of labels)."""
    return LabelEmbeddingFactory.create(Y, features(X), method="pifa", threads=_worth(threads, X))


def balanced_codes(embeddings: Matrix, depth: int, seed: int, threads: int) -> np.ndarray:
    """The leaf of each row, from 0 to 2^depth − 1: balanced 2-means, spherical, `depth` times one below the other."""
    rows = embeddings.shape[0]
    if depth == 0:
        return np.zeros(rows, dtype=np.int32)
    # PECOS derives the depth from the largest leaf; the margin keeps its logarithm below the next whole number
    chain = Indexer.gen(
        embeddings,
        indexer_type="hierarchicalkmeans",
        nr_splits=2,
        max_leaf_size=rows / 2**depth * (1 + 1e-9),
        seed=seed % _SEEDS,
        threads=_worth(threads, embeddings),
    )
    codes = csr_matrix(chain[-1])
    if codes.shape != (rows, 2**depth) or not (np.diff(codes.indptr) == 1).all():
        raise RuntimeError(f"PECOS made clusters of shape {codes.shape}, expected {(rows, 2**depth)}")
    return codes.indices.astype(np.int32)


# Training ------------------------------------------------------------------------------------------------------------


def train(
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree,
    training: Training,
    threads: int,
    *,
    weights: csr_matrix | None = None,
    matcher: Model | None = None,
) -> Model:
    """Linear models for every level of `tree`, as `XLinearModel.train` would give them for Y over its pseudo-labels.

    With `matcher`, a model over the tree's leaves, only the last level is trained, below it. `weights` has Y's pattern
    and multiplies the cost of each positive; a cluster counts as much as the heaviest of its labels in the row.
    """
    if matcher is not None and matcher.labels != tree.leaves:
        raise UsageError(f"the matcher is over {matcher.labels} leaves, the tree has {tree.leaves}")
    predicting = MLModel.PredParams(only_topk=training.beam, post_processor=training.post_processor)
    levels = [] if matcher is None else [_with(level, predicting) for level in matcher.levels]
    return Model(_trained(X, Y, tree, training, threads, weights, levels, tree.depth))


def _with(level: Any, predicting: Any) -> Any:
    """The same weights, told otherwise how to predict where PECOS is not told."""
    return MLModel(W=level.pW, C=level.pC, bias=level.bias, pred_params=predicting)


def train_matcher(
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree,
    training: Training,
    threads: int,
    *,
    weights: csr_matrix | None = None,
) -> Model | None:
    """As `train`, without the last level: a model that ranks the leaves. None for a tree that has only one."""
    if tree.depth == 1:
        return None
    return Model(_trained(X, Y, tree, training, threads, weights, [], tree.depth - 1))


def _trained(
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree,
    training: Training,
    threads: int,
    weights: csr_matrix | None,
    levels: list[Any],
    depth: int,
) -> list[Any]:
    """`levels` and those below them, down to `depth`."""
    if Y.shape[1] != len(tree.label_of):
        raise UsageError(f"Y has {Y.shape[1]} columns for {len(tree.label_of)} pseudo-labels")
    chain, pX, threads = _chain(tree), _ready(features(X)), _worth(threads, X)
    Ys, weighted = _aggregated(Y, weights, tree, chain, threads)
    options = MLModel.TrainParams(
        threshold=training.prune,
        solver_type=_SOLVERS[training.loss],
        Cp=training.C,
        Cn=training.C,
        eps=training.tolerance,
        threads=threads,
    )
    for level in range(len(levels), depth):
        kept = _KEPT_BY_DEFAULT if level == tree.depth - 1 else training.beam
        C, M = _most_work_first(chain[level], _rows_to_train_on(pX, Ys, levels, training, threads))
        problem = MLProblem(pX, Ys[level], C=C, M=M, R=weighted[level], threads=threads)
        trained = MLModel.train(problem, train_params=options)
        predicting = MLModel.PredParams(only_topk=kept, post_processor=training.post_processor)
        levels.append(MLModel(W=trained.pW, C=chain[level], bias=trained.bias, pred_params=predicting))
    return levels


def _most_work_first(C: csc_matrix, M: csc_matrix | None) -> tuple[csc_matrix, csc_matrix | None]:
    """The nodes above a level, and the rows of each, in an order in which threads come to an end together.

    Each thread takes one node after the other, and what is learned below a node depends on no other.
    """
    if M is None:
        return C, None
    order = np.argsort(-(np.diff(C.indptr).astype(np.int64) * np.diff(M.indptr)), kind="stable")
    return C[:, order].tocsc(), M[:, order].tocsc()


def _aggregated(
    Y: csr_matrix, weights: csr_matrix | None, tree: LabelTree, chain: Sequence[csc_matrix], threads: int
) -> tuple[list[csc_matrix], list[csc_matrix | None]]:
    """Y, and the weights, over the nodes of each level, from below the root down to the pseudo-labels."""
    Ys = [Y.tocsc()]
    for step in reversed(chain[1:]):
        Ys.append(clib.sparse_matmul(Ys[-1], step, threads=threads).tocsc())
    if weights is None:
        return Ys[::-1], [None] * len(chain)
    heaviest = [weights.tocsc()]
    for level in range(tree.depth - 1, 0, -1):
        heaviest.append(_largest(heaviest[-1], tree.parents[level], tree.level_sizes[level]))
    return Ys[::-1], heaviest[::-1]


def _largest(weights: csc_matrix, parents: np.ndarray, nodes: int) -> csc_matrix:
    """For each row the largest weight below each parent; zeros stay, because the pattern has to be that of Y."""
    entries = weights.tocoo()
    columns = parents[entries.col]
    order = np.lexsort((entries.row, columns))
    rows, columns, data = entries.row[order], columns[order], entries.data[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    starts = np.flatnonzero(first)
    largest = np.maximum.reduceat(data, starts) if len(starts) else data
    indptr = np.concatenate([[0], np.cumsum(np.bincount(columns[starts], minlength=nodes))])
    return csc_matrix((largest, rows[starts], indptr), shape=(weights.shape[0], nodes))


def _rows_to_train_on(
    pX: Any, Ys: Sequence[csc_matrix], levels: Sequence[Any], training: Training, threads: int
) -> csc_matrix | None:
    """M: rows × nodes of the level above, whose rows train the models below the node. None: all rows, at the root."""
    if not levels:
        return None
    above = len(levels) - 1
    M = csc_matrix(Ys[above].shape, dtype=np.float32)
    if "tfn" in training.negatives:
        M = M + _ones(Ys[above])
    if "man" in training.negatives:
        found = Model(levels).predict(pX.buf, training.beam, training.beam, threads, training.post_processor)
        M = M + _ones(found.tocsc())
    return M.tocsc()


def _ones(matrix: csc_matrix) -> csc_matrix:
    return csc_matrix((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


# Models --------------------------------------------------------------------------------------------------------------

_META = {cls.__name__: cls.append_meta() for cls in (XLinearModel, HierarchicalMLModel, MLModel)}


class Model:
    """Linear models down a tree: PECOS's `MLModel` of each level."""

    def __init__(self, levels: Sequence[Any]):
        self.levels = list(levels)
        self._searched: list[beam_search.Level] | None = None
        self._copies: tuple[LabelTree, beam_search.Copies] | None = None

    @property
    def inputs(self) -> int:
        return int(self.levels[0].nr_features)

    @property
    def labels(self) -> int:
        """What the last level ranks: pseudo-labels, or the leaves of a matcher."""
        return int(self.levels[-1].nr_labels)

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def weights(self) -> int:
        """Numbers that are not 0, over all levels."""
        return sum(int(level.W.nnz) for level in self.levels)

    @property
    def bytes(self) -> int:
        """What the weights of all levels take in memory."""
        return sum(
            int(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes)
            for level in self.levels
            for part in (level.W, level.C)
        )

    def predict(
        self,
        X: Matrix,
        k: int,
        beam: int,
        threads: int,
        post_processor: str,
        *,
        tree: LabelTree | None = None,
        mean: bool = True,
    ) -> csr_matrix:
        """Rows × nodes of the last level: up to `k` scores a row, stored best first; of equal ones the first in the
        tree comes first. With `tree`, rows × labels, each with the mean score of its copies that the row reaches, or
        that of the best.
        """
        if k < 1 or beam < 1:
            raise UsageError(f"a prediction needs k and a beam of at least 1, not {k} and {beam}")
        if post_processor not in POST_PROCESSORS:
            raise UsageError(f"there is no post-processor '{post_processor}' (known: {', '.join(POST_PROCESSORS)})")
        rows = as_csr(features(X))
        if rows.shape[1] != self.inputs:
            raise DataError(f"the rows have {rows.shape[1]} features, this model was fitted on {self.inputs}")
        if rows.nnz and not 0 <= rows.indices.min() <= rows.indices.max() < self.inputs:
            raise DataError(f"a row has a feature that is not between 0 and {self.inputs - 1}")
        if tree is not None and len(tree.label_of) != self.labels:
            raise UsageError(f"the tree has {len(tree.label_of)} pseudo-labels, this model {self.labels}")
        if self._searched is None:
            self._searched = [beam_search.Level.of(level.W, level.C, level.bias) for level in self.levels]
        copies = None if tree is None else self._copies_in(tree, self._searched[-1])
        k, threads = min(k, self.labels), _worth(threads, rows, 1 << 12)
        return beam_search.search(self._searched, rows, k, beam, threads, post_processor, copies, mean)

    def _copies_in(self, tree: LabelTree, last: beam_search.Level) -> beam_search.Copies:
        known = self._copies
        if known is None or known[0] is not tree:
            known = self._copies = tree, beam_search.Copies.of(tree.label_of, tree.labels, last)
        return known[1]

    def save(self, folder: Path) -> None:
        """Write PECOS's files, which `pecos.xmc.xlinear.XLinearModel.load` reads too, into `folder`."""
        write_model(folder, self.levels, _META)

    @classmethod
    def load(cls, folder: Path) -> Model:
        """The model in `folder`; StorageError names the first file that is not sound."""
        return cls(
            [
                MLModel(W=level.W, C=level.C, bias=level.bias, pred_params=MLModel.PredParams(**level.predicting))
                for level in read_model(folder)
            ]
        )
