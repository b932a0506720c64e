"""The check of sparse matrices: exactly the sound ones pass, and no array makes compiled code leave its memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit import store
from xmckit.data.model import Groups, Split, as_csr
from xmckit.errors import DataError, StorageError
from xmckit.sparse.csr import csr_pattern

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, ">i4", ">i8"]


def is_sound(data, indices, indptr, shape) -> bool:
    """Check in Python integers, entry by entry, what the validation checks by numpy."""
    rows, columns = map(int, shape)
    pointers, numbers = [int(n) for n in indptr], [int(n) for n in indices]
    return (
        min(rows, columns) >= 0
        and len(pointers) == rows + 1
        and pointers[0] == 0
        and all(a <= b for a, b in itertools.pairwise(pointers))
        and pointers[-1] == len(numbers) == len(data)
        and all(0 <= n < columns for n in numbers)
    )


@st.composite
def compressed(draw):
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    small = st.integers(-2, 6)
    if draw(st.booleans()):  # nearly sound
        lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
        indptr = np.cumsum([0, *lengths]).tolist()
        indices = draw(st.lists(st.integers(0, max(columns - 1, 0)), min_size=indptr[-1], max_size=indptr[-1]))
        if draw(st.booleans()):
            place = draw(st.integers(0, rows))
            indptr[place] = draw(st.one_of(small, st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**62, -(2**63)])))
    else:
        indptr, indices = draw(st.lists(small, max_size=6)), draw(st.lists(small, max_size=6))
    count = len(indices) if draw(st.booleans()) else draw(st.integers(0, 6))
    kinds = [np.dtype(kind) for kind in INTEGERS]

    def array(numbers):
        fitting = [k for k in kinds if all(np.iinfo(k).min <= n <= np.iinfo(k).max for n in numbers)]
        return np.array(numbers, dtype=draw(st.sampled_from(fitting)))

    return np.arange(1, count + 1, dtype=np.float32), array(indices), array(indptr), (rows, columns)


@settings(max_examples=1500, deadline=None)
@given(compressed())
def test_exactly_the_sound_arrays_become_a_matrix(arrays):
    data, indices, indptr, (rows, columns) = arrays
    try:
        matrix = store.make_csr(data, indices, indptr, (rows, columns))
    except ValueError:
        assert not is_sound(data, indices, indptr, (rows, columns))
        return
    assert is_sound(data, indices, indptr, (rows, columns))
    dense = np.zeros((rows, columns), np.float32)
    for row in range(rows):
        for place in range(int(indptr[row]), int(indptr[row + 1])):
            dense[row, int(indices[place])] += data[place]
    np.testing.assert_array_equal(matrix.toarray(), dense)
    transposed = store.make_csc(data, indices, indptr, (columns, rows))
    np.testing.assert_array_equal(transposed.toarray(), dense.T)
    assert as_csr(matrix).nnz == np.count_nonzero(dense)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=6), st.integers(0, 4), st.integers(0, 4))
def test_exactly_the_sound_coordinates_become_a_matrix(places, rows, columns):
    row, col = (np.array([pair[axis] for pair in places], dtype=np.int64) for axis in (0, 1))
    data = np.ones(len(places), np.float32)
    sound = all(0 <= r < rows and 0 <= c < columns for r, c in places)
    if not sound:
        with pytest.raises(ValueError, match="is not between 0 and"):
            store.make_coo(data, row, col, (rows, columns))
        return
    dense = np.zeros((rows, columns), np.float32)
    np.add.at(dense, (row, col), data)
    np.testing.assert_array_equal(store.make_coo(data, row, col, (rows, columns)).toarray(), dense)


def sound_csr() -> sp.csr_matrix:
    return sp.random(20, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)


def broken(change) -> sp.csr_matrix:
    matrix = sound_csr()
    change(matrix)
    return matrix


def last_pointer(value):
    def change(matrix):
        matrix.indptr = matrix.indptr.copy()
        matrix.indptr[-1] = value

    return change


def array(name, value):
    def change(matrix):
        setattr(matrix, name, value(getattr(matrix, name)))

    return change


BROKEN = {
    "last pointer 0": last_pointer(0),
    "last pointer -1": last_pointer(-1),
    "last pointer -2^31": last_pointer(-(2**31)),
    "last pointer too large": last_pointer(1000),
    "first pointer 5": array("indptr", lambda a: np.r_[5, a[1:]].astype(a.dtype)),
    "pointer decreases": array("indptr", lambda a: np.r_[a[:3], 1, a[4:]].astype(a.dtype)),
    "index too large": array("indices", lambda a: np.r_[a[:-1], 30].astype(a.dtype)),
    "index negative": array("indices", lambda a: np.r_[a[:-1], -1].astype(a.dtype)),
    "float indices": array("indices", lambda a: a.astype(np.float64)),
    "two dimensions": array("indices", lambda a: a[None]),
    "too few values": array("data", lambda a: a[:-1]),
    "complex values": array("data", lambda a: a.astype(np.complex64)),
    "values that are objects": array("data", lambda a: a.astype(object)),
    "too few pointers": array("indptr", lambda a: a[:-1]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_entry_point_refuses_a_broken_matrix(name, tmp_path):
    matrix = broken(BROKEN[name])
    with pytest.raises(DataError, match="this is not a sound CSR matrix"):
        store.check_matrix(matrix, "this")
    transposed = sp.csc_matrix((30, 20))
    transposed.data, transposed.indices, transposed.indptr = matrix.data, matrix.indices, matrix.indptr
    with pytest.raises(DataError, match="this is not a sound CSC matrix"):
        store.check_matrix(transposed, "this")
    with pytest.raises(DataError, match="not a sound CSR matrix"):
        as_csr(matrix)
    with pytest.raises(DataError, match="not a sound CSR matrix"):
        csr_pattern(matrix, "the matrix")
    sound = sound_csr()
    for split in (Split(X=matrix, Y=sound), Split(X=sound, Y=matrix)):
        with pytest.raises(DataError, match="not a sound CSR matrix"):
            split.check()
    with pytest.raises(DataError, match="not a sound CSR matrix"):
        Groups(matrix, sound).check(20, 30)
    if matrix.data.dtype != object:
        arrays = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
        store.write_arrays(tmp_path / "matrix.npz", {**arrays, "shape": np.array(matrix.shape)})
        with pytest.raises(StorageError, match="not a CSR matrix"):
            store.read_csr(tmp_path / "matrix.npz")


@pytest.mark.parametrize(
    "shape", [(20,), (20, 30, 1), (-20, 30), (20, -30), (20, 2**31), (2**31, 30), (20.5, 30.0), (2**63, 30), ("a", "b")]
)
def test_sizes_that_cannot_be_are_refused(shape):
    matrix = sound_csr()
    with pytest.raises(ValueError, match="shape"):
        store.make_csr(matrix.data, matrix.indices, matrix.indptr, shape)


@pytest.mark.parametrize("form", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_a_sound_matrix_of_any_format_is_taken(form):
    matrix = sound_csr()
    np.testing.assert_array_equal(as_csr(matrix.asformat(form)).toarray(), matrix.toarray())


@pytest.mark.parametrize(("name", "position"), [("indptr", -1), ("indices", 0)])
def test_broken_blocks_are_refused(name, position):
    matrix = sp.bsr_matrix(sound_csr(), blocksize=(2, 3))
    getattr(matrix, name)[position] = 10**6
    with pytest.raises(DataError, match="the matrix is not a sound BSR matrix"):
        as_csr(matrix)
    matrix = sp.bsr_matrix(sound_csr(), blocksize=(2, 3))
    matrix.data = matrix.data[:, :, :0]
    with pytest.raises(DataError, match="do not divide"):
        as_csr(matrix)


def test_a_matrix_shares_its_arrays():
    matrix = sound_csr()
    again = store.make_csr(matrix.data, matrix.indices, matrix.indptr, matrix.shape)
    assert np.shares_memory(again.data, matrix.data)
    assert np.shares_memory(again.indices, matrix.indices)
