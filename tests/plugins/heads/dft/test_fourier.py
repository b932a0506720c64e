"""The fast DFT operator against its explicit matrix, and the matrix against the theorem it is there for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from xmckit_heads.dft import fourier
from xmckit_heads.dft.fourier import Grid, dft_error, dft_logits, learned_angles, learned_rows, matrix

from xmckit.errors import UsageError
from xmckit.nn.threads import use_threads

TOLERANCE = {torch.float32: 3e-6, torch.float64: 2e-13}
# degrees on both sides of every change of rotation, up to the largest degree of odd and even n, with N = n and N ≠ n
SIZES = (
    (3, 1), (4, 1), (7, 3), (8, 3), (12, 5), (25, 12), (26, 12), (64, 24), (101, 50), (100, 49), (333, 96), (2048, 50),
    (1000, 120), (4999, 200), (1200, 599),
)  # fmt: skip


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("labels", "degree"), SIZES)
def test_logits_and_gradient_equal_the_matrix(labels: int, degree: int, dtype: torch.dtype) -> None:
    grid = Grid(labels, degree)
    rows = matrix(grid, torch.float64)
    x = random(19, grid.columns, dtype=dtype).requires_grad_()
    slope = random(19, labels, dtype=dtype, seed=1)
    logits = dft_logits(x, grid)
    (gradient,) = torch.autograd.grad(logits, x, slope)
    assert logits.dtype == gradient.dtype == dtype
    wanted, wanted_gradient = x.detach().double() @ rows.T, slope.double() @ rows
    assert (logits - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert (gradient - wanted_gradient).abs().max() <= TOLERANCE[dtype] * wanted_gradient.abs().max()


@pytest.mark.parametrize(("labels", "degree"), SIZES)
def test_float32_logits_are_within_their_bound(labels: int, degree: int) -> None:
    grid = Grid(labels, degree)
    rows, bound = matrix(grid, torch.float32).double(), dft_error(grid)
    scales = 10.0 ** (8 * torch.rand(40, grid.columns, generator=torch.Generator().manual_seed(3)) - 4)
    kinds = [random(40, grid.columns), random(40, grid.columns).abs(), random(40, grid.columns) * scales, rows[:40]]
    worst = 0.0
    for x in (kind.float() for kind in kinds):
        errors = (dft_logits(x, grid).double() - x.double() @ rows.T).abs() / x.double().norm(dim=1, keepdim=True)
        worst = max(worst, float(errors.max()))
    assert worst <= bound
    assert bound <= 200 * worst  # a bound that nothing comes near would excuse anything


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_any_size_equals_the_matrix(data: st.DataObject) -> None:
    labels = data.draw(st.integers(3, 700))
    grid = Grid(labels, data.draw(st.integers(1, (labels - 1) // 2)), data.draw(st.sampled_from(["rows", "columns"])))
    x = random(data.draw(st.integers(0, 40)), grid.columns)
    torch.testing.assert_close(dft_logits(x, grid), x @ matrix(grid).T, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("labels", "degree"), [*SIZES, (20000, 50)])
def test_slots_are_distinct_points_of_the_grid(labels: int, degree: int) -> None:
    grid = Grid(labels, degree)
    assert grid.labels <= grid.points < grid.labels + 2 * grid.rotations
    angles, position = grid.angles(), grid.cyclic_position()
    assert sorted(position) == list(range(labels))
    by_rank = angles[np.argsort(position)]
    assert by_rank[0] >= 0
    assert by_rank[-1] < 2 * np.pi
    steps = np.diff(by_rank) * grid.points / (2 * np.pi)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-6)
    assert steps.min() > 0.5


@pytest.mark.parametrize("labels", [9, 300])
def test_matrix_is_the_truncated_dft_at_the_angles(labels: int) -> None:
    grid = Grid(labels, 4)
    wave = np.exp(1j * np.outer(grid.angles(), np.arange(5)))
    rows = matrix(grid).numpy()
    np.testing.assert_allclose(rows[:, 0], 1 / 3, rtol=1e-15)
    np.testing.assert_allclose(rows[:, 1::2], math.sqrt(2) / 3 * wave[:, 1:].real, atol=1e-14)
    np.testing.assert_allclose(rows[:, 2::2], math.sqrt(2) / 3 * wave[:, 1:].imag, atol=1e-14)


def test_scales() -> None:
    unit_rows = matrix(Grid(500, 60))
    torch.testing.assert_close(unit_rows.norm(dim=1), torch.ones(500, dtype=torch.float64))
    # 512 labels fill their grid, on which the paper's scale makes the columns orthonormal
    paper = matrix(Grid(512, 60, "columns"))
    torch.testing.assert_close(paper.T @ paper, torch.eye(121, dtype=torch.float64), rtol=0, atol=1e-12)
    assert paper[0, 0].item() == pytest.approx(512**-0.5)


@pytest.mark.parametrize(("labels", "degree"), [(5, 2), (30, 13), (61, 25), (110, 50)])
def test_first_and_second_derivatives(labels: int, degree: int) -> None:
    grid = Grid(labels, degree)
    x = random(2, grid.columns).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dft_logits(x, grid), (x,))
    assert torch.autograd.gradgradcheck(lambda x: dft_logits(x, grid), (x,))


def test_layouts_of_memory_do_not_matter() -> None:
    grid = Grid(40, 13)
    x = random(27, 3).T.requires_grad_()
    logits = dft_logits(x, grid)
    torch.testing.assert_close(logits, x @ matrix(grid).T)
    (gradient,) = torch.autograd.grad(logits.sum(), x)  # the slope of a sum is one number, expanded
    torch.testing.assert_close(gradient, matrix(grid).sum(0).expand(3, -1), rtol=0, atol=1e-12)


def test_no_rows() -> None:
    grid = Grid(9, 2)
    x = random(0, 5).requires_grad_()
    logits = dft_logits(x, grid)
    assert logits.shape == (0, 9)
    assert torch.autograd.grad(logits.sum(), x)[0].shape == (0, 5)


def test_the_number_of_threads_changes_no_bit() -> None:
    grid = Grid(1500, 60)
    x, slope = random(70, grid.columns, dtype=torch.float32), random(70, 1500, dtype=torch.float32, seed=1)
    results = []
    for workers in (1, 2, 3):
        with use_threads(workers) as pool:
            rows = x.clone().requires_grad_()
            logits = dft_logits(rows, grid, pool)
            results.append([logits, *torch.autograd.grad(logits, rows, slope)])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_a_row_that_is_not_finite_stays_alone() -> None:
    grid = Grid(200, 30)
    x = random(20, grid.columns, dtype=torch.float32)
    clean = dft_logits(x, grid)
    x[5, 7] = math.nan
    spoilt = dft_logits(x, grid)
    assert spoilt[5].isnan().any()
    assert torch.equal(spoilt[np.arange(20) != 5], clean[np.arange(20) != 5])


def test_the_product_for_other_devices_is_the_same() -> None:
    """What a device without the kernels computes, run here."""
    grid = Grid(90, 20)
    rows = fourier.matrix_on(grid, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(random(4, 41) @ rows.T, dft_logits(random(4, 41), grid))


@pytest.mark.parametrize(("labels", "degree"), [(7, 1), (7, 2), (8, 2), (9, 1), (9, 2), (8, 3)])
def test_exactly_the_sets_with_at_most_k_arcs_are_argmaxable(labels: int, degree: int) -> None:
    grid = Grid(labels, degree)
    rows = matrix(grid).numpy()[np.argsort(grid.cyclic_position())]
    for signs in itertools.product((-1, 1), repeat=labels):
        arcs = sum(signs[place] > signs[place - 1] for place in range(labels))
        assert (margin(rows * np.array(signs)[:, None]) > 1e-7) == (arcs <= degree), signs


def margin(rows: np.ndarray) -> float:
    """The largest t with rows·x ≥ t for some x in the unit box; 0 where only x = 0 comes near."""
    width = rows.shape[1]
    found = linprog(
        np.append(np.zeros(width), -1.0),
        A_ub=np.column_stack([-rows, np.ones(len(rows))]),
        b_ub=np.zeros(len(rows)),
        bounds=[(-1, 1)] * width + [(None, None)],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0
    return float(-found.fun)


def test_equal_gaps_are_equal_angles() -> None:
    angles = learned_angles(torch.zeros(50))
    torch.testing.assert_close(angles, torch.arange(50, dtype=torch.float64) * (2 * math.pi / 50))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=60))
def test_learned_angles_always_increase(gaps: list[float]) -> None:
    angles = learned_angles(torch.tensor(gaps))
    assert angles[0] == 0
    assert (angles.diff() > 0).all()
    assert angles[-1] < 2 * math.pi


@pytest.mark.parametrize("degree", [1, 2, 7, 37])
def test_learned_rows_are_rows_at_the_learned_angles(degree: int) -> None:
    gaps = random(80, dtype=torch.float32)
    phases = learned_angles(gaps)[:, None] * torch.arange(1, degree + 1)
    wanted = torch.full((80, 2 * degree + 1), 0.25, dtype=torch.float64)
    wanted[:, 1::2], wanted[:, 2::2] = 0.25 * 2**0.5 * phases.cos(), 0.25 * 2**0.5 * phases.sin()
    rows = learned_rows(gaps, degree, 0.25)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.double(), wanted, rtol=0, atol=1e-6)


def test_learned_rows_can_be_learned() -> None:
    gaps = random(6).requires_grad_()
    assert torch.autograd.gradcheck(lambda gaps: learned_rows(gaps, 5, 0.3), (gaps,))
    x, wanted = random(40, 7, seed=1), learned_rows(gaps.detach() + 0.3 * random(6, seed=2), 3, 1.0)
    optimiser = torch.optim.Adam([gaps], lr=0.05)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = (x @ (learned_rows(gaps, 3, 1.0) - wanted).T).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize(
    ("labels", "degree", "message"),
    [(9, 0, "from 1 to 4"), (9, 5, "from 1 to 4"), (10, 5, "from 1 to 4"), (2, 1, "at least 3 labels")],
)
def test_sizes_out_of_range(labels: int, degree: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grid(labels, degree)


def test_wrong_arguments() -> None:
    grid = Grid(9, 2)
    with pytest.raises(UsageError, match="rows × 5"):
        dft_logits(random(3, 4), grid)
    with pytest.raises(UsageError, match="float16"):
        dft_logits(random(3, 5).half(), grid)
    with pytest.raises(UsageError, match="scale"):
        Grid(9, 2, "none")  # type: ignore[arg-type]
