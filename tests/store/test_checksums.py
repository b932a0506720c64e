"""Every change of a stored byte is seen when the byte is read, also in the record that holds the checksums."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random

import numpy as np
import pytest
from scipy.sparse import random as random_sparse

from xmckit import store
from xmckit.errors import StorageError
from xmckit.store import checksums


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 64)


def overwrite(path, content: bytes) -> None:
    """Change a file in place without a trace in its times, as a bad disk does."""
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def flipped(path, position: int, bit: int):
    content = path.read_bytes()
    overwrite(path, content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :])
    try:
        yield
    finally:
        overwrite(path, content)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200, 256])
def test_a_checked_file_reads_like_any_file(tmp_path, small_blocks, size):
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    store.seal(tmp_path, {"name": "stage"})
    chance, plain = random.Random(1), io.BytesIO(content)
    with store.open_checked(tmp_path / "file") as checked:
        assert isinstance(checked, checksums.CheckedFile)
        for _ in range(300):
            match chance.randrange(4):
                case 0:
                    whence = chance.choice([os.SEEK_SET, os.SEEK_END])
                    offset = chance.randrange(size + 20) * (-1 if whence == os.SEEK_END else 1)
                    if whence == os.SEEK_SET or -offset <= size:
                        assert checked.seek(offset, whence) == plain.seek(offset, whence)
                case 1:
                    count = chance.randrange(-1, 150)
                    assert checked.read(count) == plain.read(count)
                case 2:
                    one, two = bytearray(chance.randrange(1, 150)), bytearray(150)
                    assert checked.readinto(one) == plain.readinto(memoryview(two)[: len(one)])
                    assert one == two[: len(one)]
                case _:
                    assert checked.tell() == plain.tell()


def test_only_the_blocks_that_are_read_are_compared(tmp_path, small_blocks):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    store.seal(tmp_path, {"name": "stage"})
    for damaged_block in range(4):
        with flipped(path, 64 * damaged_block + 5, 3), store.open_checked(path) as stream:
            for block in range(4):
                stream.seek(64 * block + 63)
                if block == damaged_block:
                    with pytest.raises(StorageError, match=rf"1 of 4 blocks, the first at bytes {64 * block} to"):
                        stream.read(1)
                else:
                    assert stream.read(1) == bytes([64 * block + 63])


def write_one_of_each(folder):
    store.write_arrays(folder / "arrays.npz", {"a": np.arange(5), "b": np.ones(3, dtype=np.float32)})
    store.write_csr(folder / "matrix.npz", random_sparse(5, 6, density=0.4, format="csr", random_state=0))
    store.write_strings(folder / "strings.npz", ["one", "zwei", "três"])
    store.write_json(folder / "document.json", {"a": [1, 2, 3], "b": "text", "c": 0.5})
    (folder / "deep").mkdir()
    store.write_tensors(folder / "deep" / "weights.safetensors", {"w": __import__("torch").arange(5.0)})


READERS = {
    "arrays.npz": store.read_arrays,
    "matrix.npz": store.read_csr,
    "strings.npz": store.read_strings,
    "document.json": store.read_json,
    "deep/weights.safetensors": store.read_tensors,
}


@pytest.mark.parametrize("name", READERS)
def test_flipped_bits_are_seen_by_the_reader_of_the_file(tmp_path, name):
    write_one_of_each(tmp_path)
    store.seal(tmp_path, {"name": "the stage"})
    path = tmp_path / name
    READERS[name](path)
    size = path.stat().st_size
    for position in range(0, size, 1 + size // 100):
        with flipped(path, position, position % 8), pytest.raises(StorageError, match=path.name):
            READERS[name](path)
    overwrite(path, path.read_bytes() + b"\0")
    with pytest.raises(StorageError, match=path.name):
        READERS[name](path)


def test_every_flipped_byte_of_a_record_is_seen(tmp_path):
    store.write_json(tmp_path / "document.json", 1)
    store.seal(tmp_path, {"name": "stage", "key": "k", "identity": {"kind": "head", "params": {"a": 1.5, "b": None}}})
    path = tmp_path / "stage.json"
    sound = store.read_record(path)
    unseen = 0
    for position in range(path.stat().st_size):
        for bit in (0, 5):  # 5 is the case of a letter
            # Spaces between values do not count.
            with flipped(path, position, bit), contextlib.suppress(StorageError):
                assert store.read_record(path) == sound
                unseen += 1
    assert unseen < path.stat().st_size / 5


def test_a_record_comes_back_as_json_reads_it(tmp_path):
    content = {
        "files": {},
        "by number": {10: 1, 9: (2, None)},
        "text": "é\u2028",
        "float": 0.1 + 0.2,
        "checksum": "old",
    }
    store.write_record(tmp_path / "stage.json", content)
    back = store.read_record(tmp_path / "stage.json")
    assert back["by number"] == {"10": 1, "9": [2, None]}
    assert (back["text"], back["float"]) == (content["text"], content["float"])


def test_a_file_that_the_record_does_not_list_is_refused(tmp_path):
    write_one_of_each(tmp_path)
    store.seal(tmp_path, {"name": "stage"})
    store.write_json(tmp_path / "more.json", 1)
    with pytest.raises(StorageError, match="does not list it"):
        store.read_json(tmp_path / "more.json")


def test_folders_without_checksums_are_read_as_before(tmp_path):
    write_one_of_each(tmp_path)
    store.write_json(tmp_path / "stage.json", {"name": "old", "files": {"arrays.npz": 1}})
    for name, read in READERS.items():
        read(tmp_path / name)


def test_files_that_a_component_reads_itself_are_compared(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "native.faiss").write_bytes(b"read by C++")
    (tmp_path / "index" / "own.json").write_text("[1]")
    store.seal(tmp_path, {"name": "stage"})
    loaded = []
    with store.compared(tmp_path / "index"):
        loaded.append("sound")
    with (
        flipped(tmp_path / "index" / "native.faiss", 3, 0),
        pytest.raises(StorageError, match=r"native\.faiss"),
        store.compared(tmp_path / "index"),
    ):
        loaded.append("never: native code must not see damaged bytes")
    checksums._compared.clear()
    with (
        flipped(tmp_path / "index" / "own.json", 1, 0),
        pytest.raises(StorageError, match=r"own\.json"),
        store.compared(tmp_path / "index"),
    ):
        loaded.append(json.loads((tmp_path / "index" / "own.json").read_text()))
    assert loaded == ["sound", [0]]


def test_a_stage_holds_no_links(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("/etc/passwd")
    with pytest.raises(StorageError, match="link is a symbolic link to /etc/passwd"):
        store.seal(tmp_path, {})


@pytest.mark.parametrize("large", [False, True])
def test_a_change_through_one_name_is_not_served_under_the_other(tmp_path, large):
    """Small files are copied. Large ones are linked where blocks cannot be shared: a change is seen by its time."""
    cached, run = tmp_path / "cached", tmp_path / "run"
    cached.mkdir()
    (cached / "file").write_bytes(bytes(1 << 19 if large else 10))
    store.seal(cached, {"name": "stage"})
    store.link_tree(cached, run)
    record = store.read_record(cached / "stage.json")
    assert store.folder_flaws(run, record, thorough=True) == []
    assert bool((cached / "file").stat().st_mode & 0o200) is not large
    os.chmod(run / "file", 0o644)
    with open(run / "file", "r+b") as stream:
        stream.write(b"changed")
    same_file = os.path.samefile(cached / "file", run / "file")
    assert same_file or not large or store.folder_flaws(cached, record, thorough=True) == []
    assert bool(store.folder_flaws(cached, record, thorough=False)) is same_file
    assert [flaw.file for flaw in store.folder_flaws(run, record, thorough=False)] == ["file"]
