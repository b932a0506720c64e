from __future__ import annotations

import numpy as np
import pytest
import torch

from xmckit.nn.optimiser import Adam
from xmckit.nn.threads import Threads, use_threads


def parameter(rows=30, width=4, seed=0):
    return torch.nn.Parameter(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)))


def sparse(rows: list[int], values: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, size, check_invariants=True)


@pytest.fixture(params=["kernel", "torch"], autouse=True)
def how(request, monkeypatch):
    """Both ways of a step: the kernel of the CPU, and torch's operations for other devices."""
    if request.param == "torch":
        monkeypatch.setattr("xmckit.nn.optimiser._has_kernel", lambda tensor: False)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_dense_steps_are_torchs_adamw(decay):
    ours, theirs = parameter(), parameter()
    mine = Adam([ours], weight_decay=decay, threads=Threads())
    reference = torch.optim.AdamW([theirs], lr=0.01, weight_decay=decay)
    for step in range(7):
        ours.grad = parameter(seed=step + 1).detach()
        theirs.grad = ours.grad.clone()
        mine.step(0.01)
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_sparse_steps_are_torchs_sparse_adam_and_leave_other_rows_alone():
    ours, theirs, start = parameter(), parameter(), parameter().detach()
    mine = Adam([ours], weight_decay=0.0, threads=Threads())
    reference = torch.optim.SparseAdam([theirs], lr=0.01)
    for step, rows in enumerate([[1, 4, 9], [4, 5], [9, 4, 4]]):
        gradient = sparse(rows, parameter(len(rows), seed=step).detach(), ours.shape)
        ours.grad, theirs.grad = gradient, gradient.clone()
        mine.step(0.01)
        reference.step()
    torch.testing.assert_close(ours, theirs)
    untouched = [row for row in range(30) if row not in (1, 4, 5, 9)]
    assert torch.equal(ours[untouched], start[untouched])
    assert all((moment[untouched] == 0).all() for moment in mine.moments[0])


def test_a_table_need_not_be_contiguous():
    ours = torch.nn.Parameter(parameter().detach().T.contiguous().T)
    theirs = parameter()
    assert not ours.is_contiguous()
    gradient = sparse([0, 2, 5], parameter(3, seed=1).detach(), ours.shape)
    for table in (ours, theirs):
        table.grad = gradient
        Adam([table], weight_decay=0.0, threads=Threads()).step(0.1)
    torch.testing.assert_close(ours, theirs)


def test_chunks_and_threads_do_not_change_a_bit(monkeypatch):
    results = []
    for workers, chunk in ((1, 1 << 16), (3, 8)):
        monkeypatch.setattr("xmckit.nn.optimiser.CHUNK", chunk)
        dense, table = parameter(), parameter()
        with use_threads(workers) as pool:
            optimiser = Adam([dense, table], weight_decay=0.1, threads=pool)
            for step in range(4):
                dense.grad = parameter(seed=step).detach()
                table.grad = sparse([0, 7, 8, 29], parameter(4, seed=step).detach(), table.shape)
                optimiser.step(0.02)
        results.append((dense.detach(), table.detach()))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_biases_are_not_decayed():
    bias = torch.nn.Parameter(torch.ones(3))
    bias.grad = torch.zeros(3)
    Adam([bias], weight_decay=1.0, threads=Threads()).step(0.5)
    assert torch.equal(bias.detach(), torch.ones(3))


def test_slower_parameters_move_by_less():
    fast, slow = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    optimiser = Adam([fast, slow], weight_decay=0.0, threads=Threads(), slower=[slow], slowness=0.1)
    fast.grad = slow.grad = torch.ones(1).expand(3)  # as a sum's gradient comes
    optimiser.step(0.01)
    torch.testing.assert_close(slow, fast * 0.1)


def test_tables_of_any_shape_and_type_and_empty_gradients():
    for shape, dtype in (((6,), torch.float32), ((6, 2, 3), torch.float64), ((6, 0), torch.float32)):
        ours, theirs = (torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for _ in range(2))
        mine = Adam([ours], weight_decay=0.0, threads=Threads())
        reference = torch.optim.SparseAdam([theirs], lr=0.01)
        for rows in ([5, 0], [], [3]):
            values = torch.full((len(rows), *shape[1:]), 0.5, dtype=dtype)
            ours.grad = torch.sparse_coo_tensor(
                torch.tensor([rows], dtype=torch.int64), values, shape, check_invariants=True
            )
            theirs.grad = ours.grad.clone()
            mine.step(0.01)
            reference.step()
        torch.testing.assert_close(ours, theirs)


def test_a_large_table_is_only_touched_where_a_batch_uses_it():
    """As an epoch does it: the encoder's gradient, 100,000 rows, 300 of them used."""
    from xmckit.nn import FeatureTable, SparseBatch

    features = FeatureTable(100_000, 8, torch.Generator().manual_seed(0))
    start, rng = features.table.detach().clone(), np.random.default_rng(0)
    optimiser = Adam(features.parameters(), weight_decay=0.1, threads=Threads())
    used = rng.permutation(100_000)[:300]
    for _ in range(3):
        indices = torch.from_numpy(rng.choice(used, 500))
        batch = SparseBatch(indices, torch.arange(0, 501, 50), torch.ones(500), 100_000)
        optimiser.zero_grad()
        (features(batch) ** 2).sum().backward()
        assert features.table.grad.is_sparse
        optimiser.step(0.01)
    changed = (features.table.detach() != start).any(1).nonzero()[:, 0].numpy()
    assert 0 < len(changed) <= 300
    assert np.isin(changed, used).all()
    table = next(n for n, parameter in enumerate(optimiser.parameters) if parameter is features.table)
    for moment in optimiser.moments[table]:
        assert np.array_equal(moment.any(1).nonzero()[:, 0].numpy(), changed)
