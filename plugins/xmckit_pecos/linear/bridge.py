"""The only module that imports PECOS (libpecos 1.2.8). It knows PECOS's matrix formats and works around its defects.

`storage` knows PECOS's files. Each workaround here has a test:
- `pecos.xmc.xtransformer` and `pecos.xmr.reranker` are never imported: they fail with new libraries.
- With numpy 2 and scipy 1.14, `scipy.sparse.sputils` is gone and `np.array(copy=False)` refuses to copy
  (`_patch_smat_util`).
- PECOS takes float32 `csr_matrix` with sorted indices only. It refuses `csr_array`, float64 and unsorted rows.
- A label in two clusters trains, but when its stored model is loaded for prediction, PECOS frees memory twice and ends
  the process. Clusters come from a `LabelTree`, in which a node has one parent, and stored files are checked.
- PECOS's loader for prediction ends the process if a file is not as expected, and its models in Python are ten times
  slower. Neither is used: `search.beam` computes the same scores faster, without PECOS. `storage` reads and checks the
  files of a saved model, and neither unpickles nor executes anything in them.
- Some products use every processor of the machine unless each call gets a number of threads.
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
from xmckit_pecos.linear.matrices import TrainingRows, features, useful_threads
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TrainingOptions
from xmckit_pecos.linear.storage import ModelLevel


def _patch_smat_util(module: Any) -> None:
    """Make `pecos.utils.smat_util` work without warnings under any version of numpy and scipy."""
    sputils = SimpleNamespace(
        get_index_dtype=lambda array, check_contents=False: _index_type(array), upcast=np.result_type
    )

    def cs_matrix(
        arg1: Any, mat_type: Any, shape: Any = None, dtype: Any = None, copy: bool = False, check_contents: bool = False
    ) -> Any:
        data, indices, indptr = arg1
        if shape is None:
            raise ValueError("a matrix needs a shape")
        result = mat_type(shape, dtype=dtype)
        convert = np.array if copy else np.asarray
        result.indices = convert(indices, dtype=_index_type(indices))
        result.indptr = convert(indptr, dtype=_index_type(indptr))
        result.data = convert(data, dtype=dtype)
        return result

    module.smat, module.cs_matrix = SimpleNamespace(**{**vars(scipy.sparse), "sputils": sputils}), cs_matrix


def _index_type(array: np.ndarray) -> type:
    """Return int32 if the values fit: PECOS makes uint32 and uint64, which scipy would widen."""
    return np.int32 if not len(array) or array.max() <= np.iinfo(np.int32).max else np.int64


_patch_smat_util(smat_util)

from pecos.core import ScipyCsrF32, ScipyDrmF32, clib  # noqa: E402
from pecos.xmc import Indexer, LabelEmbeddingFactory, MLModel, MLProblem  # noqa: E402

_SOLVERS = {"squared-hinge": "L2R_L2LOSS_SVC_DUAL", "hinge": "L2R_L1LOSS_SVC_DUAL"}
_KEPT_BY_DEFAULT = 20  # the labels that PECOS's own `predict` returns by default from a stored model
_SEEDS = 2**31  # PECOS's seed is a C int


# Trees ---------------------------------------------------------------------------------------------------------------


def label_embeddings(X: Matrix, Y: csr_matrix, threads: int) -> Matrix:
    """Return PIFA: for each label the normalised sum of its rows, each divided by √(its number of labels)."""
    return LabelEmbeddingFactory.create(Y, features(X), method="pifa", threads=useful_threads(threads, X))


def balanced_codes(embeddings: Matrix, depth: int, seed: int, threads: int) -> np.ndarray:
    """Return the leaf of each row, from 0 to 2^depth − 1: `depth` levels of balanced spherical 2-means."""
    rows = embeddings.shape[0]
    if depth == 0:
        return np.zeros(rows, dtype=np.int32)
    # PECOS derives the depth from the largest leaf size; the margin keeps its logarithm below the next whole number
    chain = Indexer.gen(
        embeddings,
        indexer_type="hierarchicalkmeans",
        nr_splits=2,
        max_leaf_size=rows / 2**depth * (1 + 1e-9),
        seed=seed % _SEEDS,
        threads=useful_threads(threads, embeddings),
    )
    codes = csr_matrix(chain[-1])
    if codes.shape != (rows, 2**depth) or not (np.diff(codes.indptr) == 1).all():
        raise RuntimeError(f"PECOS made clusters of shape {codes.shape}, expected {(rows, 2**depth)}")
    return codes.indices.astype(np.int32)


# Training ------------------------------------------------------------------------------------------------------------


def train(
    rows: TrainingRows,
    tree: LabelTree,
    options: TrainingOptions,
    threads: int,
    *,
    matcher: LinearModel | None = None,
    to_leaves: bool = False,
) -> LinearModel:
    """Train the linear models of every level of `tree` as `XLinearModel.train` does.

    With `to_leaves`, train all levels but the last: a matcher, which ranks the leaves. With `matcher`, train only the
    last level, below it. A cluster weighs as much as the heaviest of its labels in the row.
    """
    if rows.Y.shape[1] != tree.labels:
        raise UsageError(f"the tree is over {tree.labels} labels, the training rows have {rows.Y.shape[1]}")
    if matcher is not None and matcher.labels != tree.leaves:
        raise UsageError(f"the matcher is over {matcher.labels} leaves, the tree has {tree.leaves}")
    # the weights of the matcher stay; the defaults of PECOS's `predict` become those of this model
    above = _prediction_defaults(options.beam, options)
    levels = [] if matcher is None else [replace(level, predicting=above) for level in matcher.levels]
    X = features(rows.X)
    chain, threads = [tree.step(level).tocsc() for level in range(tree.depth)], useful_threads(threads, X)
    pX = ScipyCsrF32.init_from(X) if issparse(X) else ScipyDrmF32.init_from(X)
    Ys, weighted = _aggregate(rows, tree, chain, threads)
    train_params = MLModel.TrainParams(
        threshold=options.prune,
        solver_type=_SOLVERS[options.loss],
        Cp=options.C,
        Cn=options.C,
        eps=options.tolerance,
        threads=threads,
    )
    for level in range(len(levels), tree.depth - to_leaves):
        kept = _KEPT_BY_DEFAULT if level == tree.depth - 1 else options.beam
        C, M = _most_work_first(chain[level], _training_rows(pX, Ys, levels, options, threads))
        problem = MLProblem(pX, Ys[level], C=C, M=M, R=weighted[level], threads=threads)
        trained = MLModel.train(problem, train_params=train_params)
        levels.append(ModelLevel(trained.W, chain[level], trained.bias, _prediction_defaults(kept, options)))
    return LinearModel(levels)


def _prediction_defaults(kept: int, options: TrainingOptions) -> dict[str, Any]:
    return {"only_topk": kept, "post_processor": options.post_processor}


def _most_work_first(C: csc_matrix, M: csc_matrix | None) -> tuple[csc_matrix, csc_matrix | None]:
    """Sort the nodes above a level, and the rows of each, so that all threads finish at about the same time.

    Each thread takes one node after the other. The models below a node do not depend on other nodes.
    """
    if M is None:
        return C, None
    order = np.argsort(-(np.diff(C.indptr).astype(np.int64) * np.diff(M.indptr)), kind="stable")
    return C[:, order].tocsc(), M[:, order].tocsc()


def _aggregate(
    rows: TrainingRows, tree: LabelTree, chain: Sequence[csc_matrix], threads: int
) -> tuple[list[csc_matrix], list[csc_matrix | None]]:
    """Return Y and the weights over the nodes of each level, from below the root down to the pseudo-labels."""
    Ys = [tree.over_pseudo_labels(rows.Y).tocsc()]
    for step in reversed(chain[1:]):
        Ys.append(clib.sparse_matmul(Ys[-1], step, threads=threads).tocsc())
    if rows.weights is None:
        return Ys[::-1], [None] * len(chain)
    heaviest = [tree.over_pseudo_labels(rows.weights).tocsc()]
    for level in range(tree.depth - 1, 0, -1):
        heaviest.append(_largest_below(heaviest[-1], tree.parents[level], tree.level_sizes[level]))
    return Ys[::-1], heaviest[::-1]


def _largest_below(weights: csc_matrix, parents: np.ndarray, nodes: int) -> csc_matrix:
    """Return each row's largest weight below each parent. Zeros stay, because the pattern has to be that of Y."""
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


def _training_rows(
    pX: Any, Ys: Sequence[csc_matrix], levels: Sequence[ModelLevel], options: TrainingOptions, threads: int
) -> csc_matrix | None:
    """Return M, rows × nodes of the level above: the rows that train the models below each node. None: all rows."""
    if not levels:
        return None
    above = len(levels) - 1
    M = csc_matrix(Ys[above].shape, dtype=np.float32)
    if "tfn" in options.negatives:
        M = M + _ones(Ys[above])
    if "man" in options.negatives:
        reached = LinearModel(levels).predict(pX.buf, options.beam, options.beam, threads, options.post_processor)
        M = M + _ones(reached.tocsc())
    return M.tocsc()


def _ones(matrix: csc_matrix) -> csc_matrix:
    return csc_matrix((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)
