"""The result of training, and prediction with it. Prediction does not need PECOS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scipy.sparse import csr_matrix

from xmckit import DataError, Matrix, UsageError
from xmckit.data.model import as_csr
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import features, useful_threads
from xmckit_pecos.linear.storage import POST_PROCESSORS, ModelLevel, read_model, write_model
from xmckit_pecos.search.beam import search
from xmckit_pecos.search.levels import LabelCopies, SearchLevel


class LinearModel:
    """Linear models down a tree, level by level."""

    def __init__(self, levels: Sequence[ModelLevel]):
        self.levels = list(levels)
        self._search_levels: list[SearchLevel] | None = None
        self._copies: tuple[LabelTree | None, LabelCopies | None] = None, None  # of the tree of the last prediction

    @property
    def inputs(self) -> int:
        return self.levels[0].inputs

    @property
    def labels(self) -> int:
        """The number of nodes that the last level ranks: pseudo-labels, or the leaves of a matcher."""
        return int(self.levels[-1].W.shape[1])

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def weights(self) -> int:
        """The number of non-zero weights, over all levels."""
        return sum(int(level.W.nnz) for level in self.levels)

    @property
    def bytes(self) -> int:
        """The memory that the matrices of all levels take."""
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
        """Return rows × nodes of the last level, with up to `k` scores in each row, best first.

        Equal scores are in the order of the tree. With `tree`, return rows × labels: the score of a label is the mean
        over its copies that the row reaches, or the best of them if not `mean`.
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
        if self._search_levels is None:
            self._search_levels = [SearchLevel.from_matrices(level.W, level.C, level.bias) for level in self.levels]
        k, threads = min(k, self.labels), useful_threads(threads, rows, 1 << 12)
        copies = None if tree is None else self._copies_of(tree, self._search_levels[-1])
        return search(self._search_levels, rows, k, beam, threads, post_processor, copies, mean)

    def _copies_of(self, tree: LabelTree, last: SearchLevel) -> LabelCopies:
        """Return the copies of the labels of `tree`; the last ones are kept for the next call."""
        known, copies = self._copies
        if known is not tree or copies is None:
            copies = LabelCopies.from_tree(tree.label_of, tree.labels, last)
            self._copies = tree, copies
        return copies

    def save(self, folder: Path) -> None:
        """Write PECOS's files, which `pecos.xmc.xlinear.XLinearModel.load` reads too, into `folder`."""
        write_model(folder, self.levels)

    @classmethod
    def load(cls, folder: Path) -> LinearModel:
        """Load the model in `folder`. StorageError names the first file that is not sound."""
        return cls(read_model(folder))
