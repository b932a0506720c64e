"""What training gives and prediction takes. PECOS is needed for the one, not for the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scipy.sparse import csr_matrix

from xmckit import DataError, Matrix, UsageError
from xmckit.data.model import as_csr
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import features, worthwhile
from xmckit_pecos.linear.storage import POST_PROCESSORS, ModelLevel, read_model, write_model
from xmckit_pecos.search import beam as beam_search


class Model:
    """Linear models down a tree, level by level."""

    def __init__(self, levels: Sequence[ModelLevel]):
        self.levels = list(levels)
        self._searched: list[beam_search.Level] | None = None
        self._copies: tuple[LabelTree, beam_search.Copies] | None = None

    @property
    def inputs(self) -> int:
        return self.levels[0].inputs

    @property
    def labels(self) -> int:
        """What the last level ranks: pseudo-labels, or the leaves of a matcher."""
        return int(self.levels[-1].W.shape[1])

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
        k, threads = min(k, self.labels), worthwhile(threads, rows, 1 << 12)
        return beam_search.search(self._searched, rows, k, beam, threads, post_processor, copies, mean)

    def _copies_in(self, tree: LabelTree, last: beam_search.Level) -> beam_search.Copies:
        known = self._copies
        if known is None or known[0] is not tree:
            known = self._copies = tree, beam_search.Copies.of(tree.label_of, tree.labels, last)
        return known[1]

    def save(self, folder: Path) -> None:
        """Write PECOS's files, which `pecos.xmc.xlinear.XLinearModel.load` reads too, into `folder`."""
        write_model(folder, self.levels)

    @classmethod
    def load(cls, folder: Path) -> Model:
        """The model in `folder`; StorageError names the first file that is not sound."""
        return cls(read_model(folder))
