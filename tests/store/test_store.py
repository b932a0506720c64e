"""What is stored comes back exactly, appears whole or not at all, and damage is named."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import random as random_sparse

from xmckit import store
from xmckit.errors import StorageError, UsageError
from xmckit.store import files


@settings(deadline=None, max_examples=50, derandomize=True)
@given(strings=st.lists(st.text(alphabet=st.characters(exclude_categories=[]), max_size=20), max_size=20))
def test_strings_come_back(tmp_path_factory, strings):
    path = tmp_path_factory.mktemp("strings") / "s.npz"
    store.write_strings(path, strings)
    assert store.read_strings(path) == strings


def test_csr_comes_back(tmp_path):
    matrix = random_sparse(20, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)
    store.write_csr(tmp_path / "m.npz", matrix)
    back = store.read_csr(tmp_path / "m.npz")
    assert back.shape == matrix.shape
    assert back.dtype == np.float32
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(back, name), getattr(matrix, name))


def test_tensors_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor([1], dtype=torch.int64)}
    store.write_tensors(tmp_path / "t.safetensors", tensors)
    back = store.read_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_an_inconsistent_csr_is_refused(tmp_path):
    store.write_arrays(
        tmp_path / "m.npz",
        {"data": np.ones(1), "indices": np.array([7]), "indptr": np.array([0, 1]), "shape": np.array([1, 3])},
    )
    with pytest.raises(StorageError, match=r"m\.npz.*damaged"):
        store.read_csr(tmp_path / "m.npz")


def failure_of(read):
    try:
        read()
    except StorageError as error:
        return error
    return None


@pytest.mark.parametrize("name", ["x.npz", "x.json", "x.safetensors"])
@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_damaged_files_name_themselves(tmp_path_factory, name, data):
    """Cut or changed bytes give the stored value back or StorageError, never anything else."""
    folder = tmp_path_factory.mktemp("damage")
    path = folder / name
    write = {
        "x.npz": lambda: store.write_arrays(path, {"a": np.arange(5)}),
        "x.json": lambda: store.write_json(path, {"a": [1, 2, 3]}),
        "x.safetensors": lambda: store.write_tensors(path, {"a": __import__("torch").arange(5)}),
    }
    read = {
        "x.npz": lambda: store.read_arrays(path, "a"),
        "x.json": lambda: store.read_json(path),
        "x.safetensors": lambda: store.read_tensors(path),
    }
    write[name]()
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    failure = failure_of(read[name])
    assert failure is None or name in str(failure)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "value.json"
    store.write_json(path, 1)
    with pytest.raises(ZeroDivisionError), store.atomic_file(path) as stream:
        stream.write(b"half" * (1 // 0))
    assert store.read_json(path) == 1
    assert os.listdir(tmp_path) == ["value.json"]


def test_a_failed_folder_does_not_appear(tmp_path):
    with pytest.raises(ZeroDivisionError), store.atomic_folder(tmp_path / "stage") as folder:
        (folder / "half").write_bytes(bytes((folder / "other").write_text("x") // 0))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_somebody_else_completed_first_stays(tmp_path):
    with store.atomic_folder(tmp_path / "stage") as mine:
        (mine / "content").write_text("mine")
        with store.atomic_folder(tmp_path / "stage") as theirs:
            (theirs / "content").write_text("theirs")
    assert (tmp_path / "stage" / "content").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["stage"]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / f"{store.TEMPORARY}{files._HOST}-{int(dead.stdout)}-ab-stage").mkdir()
    (tmp_path / f"{store.TEMPORARY}{files._HOST}-{int(dead.stdout)}-cd-file.json").write_text("")
    (tmp_path / f"{store.TEMPORARY}{files._HOST}-{os.getpid()}-ef-stage").mkdir()
    (tmp_path / f"{store.TEMPORARY}elsewhere-{int(dead.stdout)}-ab-stage").mkdir()
    store.remove_stale(tmp_path)
    (tmp_path / f"{store.TEMPORARY}elsewhere-{int(dead.stdout)}-ab-stage").rmdir()
    assert os.listdir(tmp_path) == [f"{store.TEMPORARY}{files._HOST}-{os.getpid()}-ef-stage"]


def test_no_space_left_leaves_nothing_behind(tmp_path):
    """The kernel refuses to let the file grow, as a full disk would."""
    code = f"""
import resource, sys
from pathlib import Path
import numpy as np
from xmckit import store
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    store.write_arrays(Path({str(tmp_path)!r}) / "big.npz", {{"a": np.zeros(100_000)}})
except OSError as error:
    sys.exit(0)
sys.exit("it was written")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert os.listdir(tmp_path) == []


def test_canonical_checksum_does_not_depend_on_order():
    assert store.canonical_sha256({"a": 1, "b": [1.5, None]}) == store.canonical_sha256({"b": [1.5, None], "a": 1})
    assert store.canonical_sha256({"a": 1}) != store.canonical_sha256({"a": 1.0})


def test_linked_trees_share_content_but_not_changes(tmp_path):
    (tmp_path / "one" / "deep").mkdir(parents=True)
    store.write_text(tmp_path / "one" / "deep" / "file", "first")
    store.link_tree(tmp_path / "one", tmp_path / "two")
    store.write_text(tmp_path / "two" / "deep" / "file", "second")
    assert (tmp_path / "one" / "deep" / "file").read_text() == "first"


def test_a_folder_replaces_an_older_one_only_when_it_is_complete(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "old.txt").write_text("old")

    def fail() -> None:
        with store.atomic_folder(target, replace=True) as fresh:
            (fresh / "new.txt").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in target.iterdir()] == ["old.txt"]
    with store.atomic_folder(target, replace=True) as fresh:
        (fresh / "new.txt").write_text("new")
    assert [path.name for path in target.iterdir()] == ["new.txt"]
    store.remove_folder(target)
    store.remove_folder(target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(errno.ENOLCK, "no locks available")])
def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, error):
    def fail(self):
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    with pytest.raises(StorageError, match=r"no file locks.*local disk"), store.locked(tmp_path / ".lock", "busy"):
        pass


@pytest.mark.skipif(os.name != "posix", reason="Windows locks files by another call")
def test_nothing_takes_the_place_of_locks_that_the_system_does_not_have(tmp_path, monkeypatch):
    """A file that only stands for a lock would outlive a process that is killed."""
    import fcntl

    def fail(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorageError, match="no file locks"), store.locked(tmp_path / ".lock", "busy"):
        pass
    (tmp_path / ".lock").unlink()
    with store.turn(tmp_path / "a.lock", None) as first, store.turn(tmp_path / "a.lock", None) as second:
        assert first
        assert second
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Windows does not remove open files")
def test_a_lock_file_may_be_removed_before_it_is_locked_and_made_again_before_the_release(tmp_path, monkeypatch):
    """Older versions of filelock keep the lock of a file that is gone, and remove the file of the next process."""
    import fcntl

    path, lock, unlink, calls = tmp_path / "a.lock", fcntl.flock, Path.unlink, []

    def lock_too_late(descriptor, operation):
        calls.append(operation)
        if len(calls) == 1:
            unlink(path)  # its holder, which ends at this moment
        lock(descriptor, operation)

    def unlink_and_lose(self, missing_ok=False):
        unlink(self, missing_ok)
        self.write_text("of the next process")

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    with store.turn(path, contextlib.nullcontext) as mine:
        assert mine
        assert path.is_file()
        with store.turn(path, None) as also:
            assert not also
        monkeypatch.setattr(Path, "unlink", unlink_and_lose)
    assert path.read_text() == "of the next process"


def test_other_errors_of_a_lock_file_stay_as_they_are(tmp_path):
    lock = tmp_path / ".lock"
    with (
        store.locked(lock, ""),
        pytest.raises(UsageError, match="somebody is here"),
        store.locked(lock, "somebody is here"),
    ):
        pass
    with pytest.raises(OSError, match="Is a directory"), store.locked(tmp_path, "busy"):
        pass


def test_a_new_folder_must_be_possible(tmp_path):
    store.check_new_folder(tmp_path / "a" / "b")
    with pytest.raises(UsageError, match="exists already"):
        store.check_new_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is in its way"):
        store.check_new_folder(tmp_path / "file" / "folder")
