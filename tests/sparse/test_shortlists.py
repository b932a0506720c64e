"""Merged shortlists against dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr

from xmckit.errors import DataError, UsageError
from xmckit.sparse import merge_shortlists

scores = st.sampled_from([-np.inf, -2.5, 0.0, 0.5, 1.0, 3.0])
rows_of_pairs = st.lists(st.dictionaries(st.integers(0, 15), scores, max_size=8), min_size=3, max_size=3)


def as_matrix(rows, labels=16):
    pairs = [pair for row in rows for pair in row.items()]
    return csr_matrix(
        ([score for _, score in pairs], [label for label, _ in pairs], np.cumsum([0, *map(len, rows)])),
        shape=(len(rows), labels),
        dtype=np.float32,
    )


def reference(shortlists, how, order, k):
    merged = []
    for rows in zip(*shortlists, strict=True):
        union: dict[int, float] = {}
        for row in rows:
            for label, score in row.items():
                if score > -np.inf:
                    before = union.get(label)
                    better = score if before is None else before + score if how == "sum" else max(before, score)
                    union[label] = better
        best = sorted(union.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        merged.append(best if order == "score" else sorted(best))
    return merged


@given(
    st.lists(rows_of_pairs, min_size=1, max_size=4),
    st.sampled_from(["max", "sum"]),
    st.sampled_from(["score", "label"]),
    st.sampled_from([None, 1, 3, 40]),
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_union_of_shortlists(shortlists, how, order, k):
    merged = merge_shortlists([as_matrix(rows) for rows in shortlists], how=how, order=order, k=k)
    merged.check_format(full_check=True)
    found = [
        list(zip(merged.indices[start:end].tolist(), merged.data[start:end].tolist(), strict=True))
        for start, end in zip(merged.indptr[:-1], merged.indptr[1:], strict=True)
    ]
    assert found == reference(shortlists, how, order, k)
    assert (merged.dtype, merged.indices.dtype) == (np.float32, np.int32)


def test_sums_are_scipys_and_workers_change_nothing():
    lists = [random_csr(3000, 500, density=0.02, format="csr", dtype=np.float32, random_state=seed) for seed in (0, 1)]
    merged = [merge_shortlists(lists, how="sum", order="label", workers=workers) for workers in (1, 3)]
    np.testing.assert_allclose(merged[0].toarray(), (lists[0] + lists[1]).toarray(), rtol=1e-6)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(merged[0], part), getattr(merged[1], part))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_of_other_types_and_labels_in_any_order(dtype):
    rng = np.random.default_rng(0)
    # a shortlist of 1, 3 and 5 labels in each row
    rows = [
        [{int(label): int(label) % 5 - nth for label in rng.permutation(16)[: 2 * nth + 1]} for _ in range(1500)]
        for nth in range(3)
    ]
    for how in ("max", "sum"):
        merged = merge_shortlists([as_matrix(one).astype(dtype) for one in rows], how=how, order="label", workers=2)
        expected = as_matrix([dict(row) for row in reference(rows, how, "label", None)])
        np.testing.assert_array_equal(merged.indptr, expected.indptr)
        np.testing.assert_array_equal(merged.indices, expected.indices)
        np.testing.assert_array_equal(merged.data, expected.data)
        assert merged.dtype == np.float32


def test_sums_that_float32_cannot_tell_apart_are_ranked():
    large = as_matrix([{0: 2.0**24, 1: 2.0**24}])
    merged = merge_shortlists([large, as_matrix([{0: 0.0, 1: 1.0}])], how="sum")
    assert merged.indices.tolist() == [1, 0]
    assert merged.data.tolist() == [2.0**24, 2.0**24]


def test_no_rows_and_empty_shortlists():
    assert merge_shortlists([csr_matrix((0, 4), dtype=np.float32)]).shape == (0, 4)
    assert merge_shortlists([csr_matrix((3, 4), dtype=np.float32)] * 2).nnz == 0


def test_what_cannot_be_merged():
    one = as_matrix([{1: 2.0}])
    for wrong in ([], [one, as_matrix([{1: 2.0}], labels=3)]):
        with pytest.raises(UsageError, match="one shape"):
            merge_shortlists(wrong)
    for options in ({"how": "mean"}, {"order": "row"}, {"k": 0}):
        with pytest.raises(UsageError, match="cannot merge"):
            merge_shortlists([one], **options)
    with pytest.raises(DataError, match="row 1: a score is not a number"):
        merge_shortlists([as_matrix([{1: 2.0}, {2: np.nan}])])
    with pytest.raises(DataError, match="row 0: a score is not a number"):
        merge_shortlists([as_matrix([{1: np.inf}]), as_matrix([{1: np.inf}]), as_matrix([{1: np.nan}])], how="sum")
    twice = csr_matrix((np.ones(2, np.float32), np.array([3, 3]), np.array([0, 2])), shape=(1, 4))
    with pytest.raises(DataError, match="row 0: a shortlist names a label twice"):
        merge_shortlists([twice])
