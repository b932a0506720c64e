"""The product of a sparse batch and a table, and its gradient, against scipy and torch's own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr
from torch.nn.functional import embedding_bag

from xmckit.errors import DataError
from xmckit.nn import SparseBatch, products
from xmckit.nn.products import sparse_product
from xmckit.nn.threads import current_threads, use_threads


def batch_and_table(rows, features, width, density, seed):
    rng = np.random.default_rng(seed)
    X = random_csr(rows, features, density=density, format="csr", dtype=np.float32, random_state=rng)
    X.sort_indices()
    return X, torch.nn.Parameter(torch.from_numpy(rng.standard_normal((features, width), dtype=np.float32)))


@given(
    st.integers(0, 20), st.integers(1, 200), st.integers(1, 40), st.sampled_from([0, 0.02, 0.3, 1]), st.integers(0, 9)
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_product_and_gradient_are_scipys(rows, features, width, density, seed):
    X, table = batch_and_table(rows, features, width, density, seed)
    slope = np.random.default_rng(seed + 1).standard_normal((rows, width), dtype=np.float32)
    product = sparse_product(SparseBatch.from_csr(X), table)
    np.testing.assert_allclose(product.detach().numpy(), X @ table.detach().numpy(), rtol=1e-4, atol=1e-5)
    product.backward(torch.from_numpy(slope))
    gradient = table.grad
    assert gradient.is_sparse
    np.testing.assert_array_equal(gradient._indices()[0].numpy(), np.unique(X.indices))
    np.testing.assert_allclose(gradient.to_dense().numpy(), X.T @ slope, rtol=1e-4, atol=1e-5)


def test_gradient_is_the_embedding_bags():
    X, table = batch_and_table(50, 300, 16, 0.1, 0)
    batch = SparseBatch.from_csr(X)
    (sparse_product(batch, table) ** 2).sum().backward()
    ours, table.grad = table.grad.to_dense(), None
    sums = embedding_bag(
        batch.indices, table, batch.offsets, mode="sum", per_sample_weights=batch.values, include_last_offset=True
    )
    (sums**2).sum().backward()
    torch.testing.assert_close(ours, table.grad)


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_change_no_bit(monkeypatch, workers):
    monkeypatch.setattr(products, "_LEAST_WORK", 100)
    X, table = batch_and_table(200, 500, 24, 0.05, 3)
    results = []
    for count in (1, workers):
        table.grad = None
        with use_threads(count):
            product = sparse_product(SparseBatch.from_csr(X), table)
            product.pow(3).sum().backward()
        results.append((product.detach(), table.grad.to_dense()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_threads_belong_to_their_block_and_not_to_its_threads():
    assert current_threads()._pool is None
    with use_threads(2) as pool:
        assert current_threads() is pool
        inside = pool.map(lambda _: current_threads()._pool, [0, 1])
    assert inside == [None, None]
    assert current_threads()._pool is None


def test_pieces_come_back_in_order_and_errors_come_out():
    def fail(piece):
        if piece == 5:
            raise ValueError("piece 5")
        return piece

    with use_threads(3) as pool:
        assert pool.map(lambda piece: piece * piece, range(40)) == [piece * piece for piece in range(40)]
        with pytest.raises(ValueError, match="piece 5"):
            pool.map(fail, range(8))
        assert pool.map(fail, range(5)) == [0, 1, 2, 3, 4]


def test_a_feature_that_the_table_does_not_have():
    X, table = batch_and_table(10, 30, 8, 0.3, 5)
    with pytest.raises(DataError, match="a table of 29 features does not have"):
        sparse_product(SparseBatch.from_csr(csr_matrix(X)), table[: X.indices.max()])
    X.indices[0] = -1
    with pytest.raises(DataError, match="a table of 30 features does not have"):
        sparse_product(SparseBatch.from_csr(X), table)


def test_a_slope_that_is_not_contiguous():
    X, table = batch_and_table(10, 30, 8, 0.3, 5)
    product = sparse_product(SparseBatch.from_csr(csr_matrix(X)), table)
    product.sum().backward()  # its slope is one number, spread over the rows without being copied
    np.testing.assert_allclose(table.grad.to_dense().numpy(), X.T @ np.ones((10, 8), np.float32), rtol=1e-5)
