"""The one place that knows PECOS (libpecos 1.2.8), its forms of matrices and its quirks; `storage` knows its files.

What is guarded here, each with a test of its own:
- `pecos.xmc.xtransformer` and `pecos.xmr.reranker` are never imported: they do not import beside new libraries.
- numpy 2 and scipy 1.14: `scipy.sparse.sputils` is gone and `np.array(copy=False)` refuses to copy (`_mend`).
- Matrices are float32 `csr_matrix` with sorted indices; `csr_array`, float64 and unsorted rows are refused by PECOS.
- A label in two clusters trains, but its stored model frees memory twice when it is loaded for prediction, which ends
  the process. Clusters come from a `LabelTree`, in which a node has one parent, and stored files are checked.
- PECOS's loader for prediction ends the process when a file is not as it expects, and its models in Python are ten
  times slower. It is not used: `search.beam` gives the same scores in less time than either, without PECOS. Files of a
  saved model are read and checked by `storage`, and nothing in them is unpickled or executed.
- Some products take every processor of the machine unless each call is told its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse
from pecos.utils import smat_util
from scipy.sparse import csc_matrix, csr_matrix, issparse

from xmckit import Matrix, UsageError
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import features, worthwhile
from xmckit_pecos.linear.model import Model
from xmckit_pecos.linear.options import Training
from xmckit_pecos.linear.storage import ModelLevel


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
from pecos.xmc import Indexer, LabelEmbeddingFactory, MLModel, MLProblem  # noqa: E402

_SOLVERS = {"squared-hinge": "L2R_L2LOSS_SVC_DUAL", "hinge": "L2R_L1LOSS_SVC_DUAL"}
_KEPT_BY_DEFAULT = 20  # labels a stored model gives where PECOS itself is not told how many
_SEEDS = 2**31  # PECOS's seed is a C int


def _ready(X: Matrix) -> Any:
    """PECOS's own view of X, made once for all levels."""
    return ScipyCsrF32.init_from(X) if issparse(X) else ScipyDrmF32.init_from(X)


def _chain(tree: LabelTree) -> list[csc_matrix]:
    return [tree.step(level).tocsc() for level in range(tree.depth)]


# Trees ---------------------------------------------------------------------------------------------------------------


def label_embeddings(X: Matrix, Y: csr_matrix, threads: int) -> Matrix:
    """PIFA: for each label the normalised sum of the rows that have it, each divided by √(its number of labels)."""
    return LabelEmbeddingFactory.create(Y, features(X), method="pifa", threads=worthwhile(threads, X))


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
        threads=worthwhile(threads, embeddings),
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
    # the same weights, told otherwise how to predict where PECOS is not told
    above = _predicting(training.beam, training)
    levels = [] if matcher is None else [replace(level, predicting=above) for level in matcher.levels]
    return Model(_trained(X, Y, tree, training, threads, weights, levels, tree.depth))


def _predicting(kept: int, training: Training) -> dict[str, Any]:
    return {"only_topk": kept, "post_processor": training.post_processor}


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
    levels: list[ModelLevel],
    depth: int,
) -> list[ModelLevel]:
    """`levels` and those below them, down to `depth`."""
    if Y.shape[1] != len(tree.label_of):
        raise UsageError(f"Y has {Y.shape[1]} columns for {len(tree.label_of)} pseudo-labels")
    chain, pX, threads = _chain(tree), _ready(features(X)), worthwhile(threads, X)
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
        levels.append(ModelLevel(trained.W, chain[level], trained.bias, _predicting(kept, training)))
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
    pX: Any, Ys: Sequence[csc_matrix], levels: Sequence[ModelLevel], training: Training, threads: int
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
