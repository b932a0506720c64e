from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr

from xmckit.nn import SparseBatch, SparseLinear, SparseMLP
from xmckit.nn.batches import as_batch, as_inputs


def prepared(cls, inputs=40, seed=0, **params):
    encoder = cls(**params)
    encoder.prepare(inputs, torch.Generator().manual_seed(seed))
    return encoder


def rows_with_an_empty_one(seed=0) -> csr_matrix:
    X = random_csr(12, 40, density=0.2, format="lil", dtype=np.float32, random_state=seed)
    X[5] = 0
    return as_inputs(X.tocsr())


@pytest.mark.parametrize("cls", [SparseLinear, SparseMLP])
def test_sparse_and_dense_rows_give_the_same_vectors(cls):
    encoder, X = prepared(cls, width=7), rows_with_an_empty_one()
    sparse, dense = encoder(as_batch(X)), encoder(as_batch(X.toarray()))
    assert sparse.shape == (12, 7)
    torch.testing.assert_close(sparse, dense)


def test_linear_is_the_matrix_product():
    encoder, X = prepared(SparseLinear, width=7), rows_with_an_empty_one()
    with torch.no_grad():
        encoder.features.bias.normal_(generator=torch.Generator().manual_seed(1))
    table, bias = encoder.features.table.detach().numpy(), encoder.features.bias.detach().numpy()
    np.testing.assert_allclose(encoder(as_batch(X)).detach().numpy(), X @ table + bias, rtol=1e-5, atol=1e-6)


def test_sparse_gradient_is_the_dense_one_on_the_rows_that_occur():
    encoder, X = prepared(SparseLinear, width=5), rows_with_an_empty_one()
    table = encoder.features.table
    (encoder(as_batch(X)) ** 2).sum().backward()
    sparse = table.grad
    table.grad = None
    (encoder(as_batch(X.toarray())) ** 2).sum().backward()
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), table.grad)
    assert sorted(sparse._indices()[0].tolist()) == sorted(set(X.indices.tolist()))


def test_a_batch_without_any_feature_gives_the_bias():
    encoder = prepared(SparseLinear, width=3)
    vectors = encoder(as_batch(csr_matrix((4, 40), dtype=np.float32)))
    assert torch.equal(vectors, encoder.features.bias.expand(4, 3))
    vectors.sum().backward()


def test_mlp_has_no_activation_at_the_end():
    encoder, X = prepared(SparseMLP, width=9, hidden=4), rows_with_an_empty_one()
    assert (encoder(as_batch(X)) < 0).any()


@pytest.mark.parametrize(
    ("params", "width", "hidden"),
    [({}, 256, 256), ({"width": 300}, 300, 300), ({"width": 9}, 9, 256), ({"width": 9, "hidden": 4}, 4, 4)],
)
def test_an_mlp_fills_the_space_it_is_wide(params, width, hidden):
    encoder = prepared(SparseMLP, **params)
    assert encoder.width == width
    assert encoder.second.weight.shape == (width, hidden)


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two, other = (prepared(SparseMLP, seed=seed, width=3).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["features.table"], other["features.table"])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("params", [{"width": 0}, {"breadth": 3}, {"width": "wide"}])
def test_wrong_parameters_are_refused(params):
    with pytest.raises(ValidationError):
        SparseLinear(**params)


def test_batch_holds_the_csr_arrays():
    X = rows_with_an_empty_one()
    batch = SparseBatch.from_csr(X)
    back = csr_matrix((batch.values.numpy(), batch.indices.numpy(), batch.offsets.numpy()), X.shape)
    assert (back != X).nnz == 0
    assert batch.rows == 12


def test_dense_batches_never_share_memory_that_is_read_only():
    X = np.ones((3, 2), dtype=np.float32)
    X.flags.writeable = False
    assert torch.equal(as_batch(X), torch.ones(3, 2))
