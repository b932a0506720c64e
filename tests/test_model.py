"""A loaded model whose parts do not belong together says so, and names the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from xmckit import DataError, StorageError, TopK, make_context
from xmckit.model import Model

ROWS = csr_matrix(np.eye(2, 3, dtype=np.float32))


class AsIs:
    def transform(self, split, *, context):
        return split.X


class Constant:
    """Lists the last of its labels for every row."""

    def __init__(self, labels: int, inputs: int = 3):
        self.count, self.inputs = labels, inputs

    def predict(self, X, k, *, groups=None):
        if X.shape[1] != self.inputs:
            raise DataError(f"rows have {X.shape[1]} features, expected {self.inputs}")
        shape = (X.shape[0], 1)
        return TopK(np.full(shape, self.count - 1, np.int32), np.zeros(shape, np.float32))

    def labels(self, X):
        return csr_matrix((X.shape[0], self.count), dtype=np.float32)


def model(head: Constant) -> Model:
    return Model([AsIs()], [head], ["one", "two"], make_context(), path=Path("runs/small/1"))


def test_parts_that_belong_together_predict():
    assert [tag.label for row in model(Constant(2)).predict(ROWS) for tag in row] == ["two", "two"]
    assert model(Constant(2)).labels(ROWS) == [[], []]


@pytest.mark.parametrize("labels", [1, 3])
def test_a_head_of_another_data_set_is_refused(labels):
    with pytest.raises(StorageError, match=f"runs/small/1: .* a head has {labels} labels, the data has 2"):
        model(Constant(labels)).labels(ROWS)


def test_a_label_without_a_name_is_refused():
    with pytest.raises(StorageError, match=r"runs/small/1: .* a head lists label 2, the data has 2 labels"):
        model(Constant(3)).predict(ROWS)


def test_a_head_on_other_features_is_refused():
    with pytest.raises(StorageError, match=r"runs/small/1: .* rows have 3 features, expected 4"):
        model(Constant(2, inputs=4)).predict(ROWS)
