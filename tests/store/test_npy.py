"""Decoding npz and npy: numpy's own files come back, and a file that lies about itself is refused by name."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xmckit import store
from xmckit.errors import DataError, StorageError
from xmckit.store.npy import decode_npy, read_npz

TYPES = hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufcSU" and dtype.itemsize)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def write_members(path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_arrays_of_every_type_come_back(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("arrays") / "x.npz"
    array = data.draw(
        TYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
    )
    array = np.asfortranarray(array) if data.draw(st.booleans()) else array
    save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    save(path, a=array, b=np.arange(3))
    np.save(path.with_suffix(".npy"), array)
    for read in (read_npz(path, "a")["a"], decode_npy(np.fromfile(path.with_suffix(".npy"), dtype=np.uint8))):
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()


def test_a_byte_that_is_no_truth_value_is_refused(tmp_path):
    """numpy counts the byte 2 twice, and then copies fewer entries than it has allocated."""
    content = npy(np.ones(4, dtype=bool))
    write_members(tmp_path / "x.npz", {"alive": content[:-1] + b"\x02"})
    with pytest.raises(StorageError, match=r"x\.npz.*alive holds a byte that is no truth value"):
        store.read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize("order", "<>")
def test_a_number_that_is_no_character_is_refused(tmp_path, order):
    content = npy(np.array("sign", dtype=f"{order}U4"))
    write_members(tmp_path / "x.npz", {"rule": content[:-4] + struct.pack(f"{order}I", 0x110000)})
    with pytest.raises(StorageError, match=r"rule holds .* a number that is no character"):
        store.read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(tmp_path, method):
    write_members(tmp_path / "x.npz", {"a": npy(np.arange(3))}, method)
    with pytest.raises(StorageError, match="a method that numpy does not use"):
        store.read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "text", ["(" * 3000, "-" * 6000, "[" * 9000, "{'descr': '|O', 'fortran_order': False, 'shape': ()}"]
)
def test_a_header_that_python_cannot_parse_is_refused(tmp_path, text):
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy: this file is not a matrix"):
        store.read_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("compressed", [False, True])
def test_flipped_bits_are_found_by_the_checksum(tmp_path, compressed):
    path = tmp_path / "x.npz"
    (np.savez_compressed if compressed else np.savez)(path, a=np.random.default_rng(0).random(1000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"x\.npz"):
        store.read_arrays(path)


@pytest.mark.parametrize(
    ("arguments", "limits", "why"),
    [
        (("i", (None,)), {}, "a is float64 of shape .* expected whole numbers of shape"),
        (("f", (3,)), {}, r"shape \(4,\), expected floating-point numbers of shape \(3,\)"),
        (("f", (None, 2)), {}, r"shape \('any', 2\)"),
        (("f", (4,)), {"low": 1}, "holds values from 0.0 to 3.0, expected at least 1"),
        (("f", (4,)), {"low": 0, "high": 2}, "at least 0 and at most 2"),
    ],
)
def test_an_array_of_another_type_is_named(tmp_path, arguments, limits, why):
    store.write_arrays(tmp_path / "x.npz", {"a": np.arange(4.0)})
    with pytest.raises(StorageError, match=rf"x\.npz.*{why}"):
        store.read_array(tmp_path / "x.npz", "a", *arguments, **limits)


def test_an_array_that_is_not_finite_is_named_and_a_right_one_comes_back(tmp_path):
    store.write_arrays(tmp_path / "x.npz", {"a": np.array([1, np.nan]), "b": np.arange(4, dtype=">i4")})
    with pytest.raises(StorageError, match="a holds a value that is not a finite number"):
        store.read_array(tmp_path / "x.npz", "a", "f", (2,))
    b = store.read_array(tmp_path / "x.npz", "b", "i", (None,), low=0, high=3)
    assert b.dtype == np.dtype(np.int32)  # in this machine's byte order
    assert b.tolist() == [0, 1, 2, 3]
