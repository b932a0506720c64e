"""Row weights, products with dense matrices, index types, and compiled code that is found again."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr
from sklearn.preprocessing import normalize

from xmckit.errors import UsageError
from xmckit.sparse import labels, normalise, product, shortlists, text_kernels, topk, weigh_rows
from xmckit.sparse.csr import row_pointers
from xmckit.sparse.product import Entries, multiply, transpose


def entries_of(X):
    return Entries(X.indptr.astype(np.int64), X.indices.astype(np.int64), X.data)


@given(
    st.integers(0, 30), st.integers(1, 40), st.booleans(), st.booleans(), st.sampled_from([1.0, 2.5]), st.integers(0, 9)
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_rows_are_weighted_and_of_length_one(rows, columns, weighted, unit, factor, seed):
    X = random_csr(rows, columns, density=0.2, format="csr", dtype=np.float32, random_state=seed)
    weights = np.random.default_rng(seed).random(columns) + 0.1 if weighted else None
    expected = X.toarray().astype(np.float64) * (1 if weights is None else weights)
    expected = factor * (normalize(expected) if unit and rows else expected)
    weigh_rows(X, weights, unit=unit, factor=factor, workers=2)
    np.testing.assert_allclose(X.toarray(), expected, rtol=1e-6)


@given(
    st.integers(0, 20),
    st.integers(1, 300),
    st.one_of(st.integers(1, 30), st.sampled_from([32, 47, 48, 64, 65, 96, 100, 128, 191, 256])),
    st.integers(0, 9),
    st.sampled_from([np.float32, np.float64]),
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_products_and_transposed_products_are_scipys(rows, columns, width, seed, dtype):
    rng = np.random.default_rng(seed)
    X = random_csr(rows, columns, density=0.1, format="csr", dtype=dtype, random_state=rng)
    dense, slopes = (rng.standard_normal((size, width)).astype(dtype) for size in (columns, rows))
    entries = entries_of(X)
    out = np.empty((rows, width), dtype)
    for first in range(0, rows, 7):
        multiply(entries, dense, out, slice(first, min(first + 7, rows)))
    np.testing.assert_allclose(out, X @ dense, rtol=1e-4, atol=1e-5)
    used, by_column = transpose(entries, columns)
    np.testing.assert_array_equal(used, np.unique(X.indices))
    sums = np.empty((len(used), width), dtype)
    multiply(by_column, slopes, sums, slice(0, len(sums)))
    np.testing.assert_allclose(sums, (X.T @ slopes)[used], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [5, 24, 200])
def test_rows_of_any_part_and_length_have_the_same_bits(width):
    rng = np.random.default_rng(0)
    X = random_csr(60, 2000, density=0.05, format="csr", dtype=np.float32, random_state=rng)
    dense = rng.standard_normal((2000, width), dtype=np.float32)
    whole, parts = np.empty((2, 60, width), np.float32)
    multiply(entries_of(X), dense, whole, slice(0, 60))
    for first, last in ((0, 1), (1, 4), (4, 60)):
        multiply(entries_of(X), dense, parts, slice(first, last))
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_allclose(whole, X @ dense, rtol=1e-4, atol=1e-4)


def test_a_product_reads_only_arrays_that_are_as_they_should_be():
    entries = Entries(np.array([0, 1]), np.array([0]), np.ones(1, np.float32))
    dense, out = np.ones((4, 16), np.float32), np.empty((1, 16), np.float32)
    for wrong in ((np.asfortranarray(dense), out), (dense, out.astype(np.float64))):
        with pytest.raises(TypingError, match="contiguous"):
            multiply(entries, *wrong, slice(0, 1))


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [([2**30, 2**30 - 1], np.int32), ([2**30, 2**30], np.int64), ([2**31 - 1, 0, 1], np.int64), ([], np.int32)],
)
def test_index_pointers_become_wide_where_entries_pass_two_to_the_31(sizes, dtype):
    pointers = row_pointers(np.array(sizes, dtype=np.int64))
    assert pointers.dtype == dtype
    assert pointers[-1] == sum(sizes)
    assert (np.diff(pointers.astype(object)) == sizes).all()


def test_a_second_process_compiles_nothing(tmp_path):
    script = """
        import numpy as np
        from scipy.sparse import eye
        from xmckit.sparse import normalise, topk
        X = eye(4, format="csr", dtype=np.float32)
        normalise.weigh_rows(X)
        topk.topk_csr(X, 2)
        kernels = (normalise._weigh, topk._select_csr, topk.first_row_with_repeats)
        print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", dedent(script)]
    first, second = (
        int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
        for _ in range(2)
    )
    assert first > 0
    assert second == 0


@pytest.mark.parametrize("module", [labels, normalise, product, shortlists, text_kernels, topk])
def test_every_kernel_that_python_calls_is_kept(module):
    """Helpers, which only kernels call, are compiled into them."""
    helpers = {"_address", "_bytes_at", "_key", "_slot_of", "_same", "_find", "_contains", "term_hash", "_character"}
    helpers |= {"_last_item", "_room_lacking", "_add_wide", "_add_half", "_add_line", "_add_few"}
    kernels = {name: item for name, item in vars(module).items() if isinstance(item, Dispatcher)}
    assert kernels
    for name, kernel in kernels.items():
        assert name in helpers or kernel._cache.__class__.__name__ == "FunctionCache", name


def test_weights_for_other_columns():
    matrix = csr_matrix(np.eye(3, dtype=np.float32))
    for count in (0, 2, 4):
        with pytest.raises(UsageError, match="3 columns needs as many weights"):
            weigh_rows(matrix, np.ones(count))
