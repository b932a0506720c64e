"""A small file cannot ask for a large machine: every claim is refused before memory is allocated for it.

All files are read in one child process that may allocate 600 MiB, so that an allocation by a claim is a MemoryError.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

if sys.platform != "linux":
    pytest.skip("needs limits on the memory of a process", allow_module_level=True)

HUGE = 2**31 - 1
EXTRA = 600 << 20
SPARSE = sp.csr_matrix(np.eye(3, 4, dtype=np.float32))


def _npy(descr: str, shape: tuple[int, ...], content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


def _npz(path: Path, **arrays: np.ndarray | bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            stream = io.BytesIO()
            if not isinstance(array, bytes):
                np.lib.format.write_array(stream, np.asarray(array))
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else stream.getvalue())


def _matrix(path: Path, form: str, shape: tuple[int, int], **changes: np.ndarray | bytes) -> None:
    matrix = SPARSE.asformat(form)
    names = ("row", "col") if form == "coo" else ("indices", "indptr")
    arrays = {name: getattr(matrix, name) for name in names}
    _npz(
        path,
        **{"data": matrix.data, "format": np.asarray(form.encode()), "shape": np.array(shape), **arrays, **changes},
    )


def _folder_of_npz(folder: Path, **changes) -> None:
    for part in ("trn", "tst"):
        _matrix(folder / f"X.{part}.npz", "csr", (3, 4))
        _matrix(folder / f"Y.{part}.npz", "csr", (3, 4))
    arguments = {"form": "csr", "shape": (3, 4), **changes}
    _matrix(folder / "X.trn.npz", **arguments)


def _zip_bomb(folder: Path) -> None:
    """Let the archive claim 3 GiB for a member of some hundred bytes."""
    _folder_of_npz(folder)
    path = folder / "X.trn.npz"
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[central + 24 : central + 28] = struct.pack("<I", 3 << 30)
    path.write_bytes(content)


def _gzip_bomb(path: Path, text: bytes) -> None:
    """Write text, and 4 GiB of spaces as members of 16 MiB."""
    path.write_bytes(gzip.compress(text) + gzip.compress(b" " * (1 << 24)) * 256)


def _pair(folder: Path, suffix: str, train: str, test: str) -> None:
    (folder / f"train.{suffix}").write_text(train)
    (folder / f"test.{suffix}").write_text(test)


def _compressed(folder: Path, suffix: str, line: str) -> None:
    _pair(folder, suffix, line, line)
    (folder / f"train.{suffix}").unlink()
    _gzip_bomb(folder / f"train.{suffix}.gz", line.encode())


def _xmc(folder: Path, header: str) -> None:
    _pair(folder, "txt", f"{header}\n0 1:1\n", "1 5 5\n0 1:1\n")


def _dense(folder: Path) -> None:
    _folder_of_npz(folder)
    (folder / "X.trn.npz").unlink()
    (folder / "X.trn.npy").write_bytes(_npy("<f4", (10**12, 0)))


# name: (what writes the files of a data set, what the error must say)
CASES = {
    "svmlight labels": (lambda f: _pair(f, "svm", f"0 1:1\n{HUGE - 1} 2:2\n", "0 1:1\n"), f"claims {HUGE:,} labels"),
    "svmlight features": (lambda f: _pair(f, "svm", f"0 {HUGE}:1\n", "0 1:1\n"), f"claims {HUGE:,} features"),
    "xmc labels": (lambda f: _xmc(f, f"1 5 {HUGE}"), f"claims {HUGE:,} labels"),
    "xmc features": (lambda f: _xmc(f, f"1 {HUGE} 5"), f"claims {HUGE:,} features"),
    "xmc rows": (lambda f: _xmc(f, f"{10**17} 5 5"), "found 1 lines"),
    "npz header": (lambda f: _folder_of_npz(f, data=_npy("<f4", (10**12,), bytes(12))), "do not make (1000000000000,)"),
    "npz header, no width": (lambda f: _folder_of_npz(f, data=_npy("<U0", (10**12,))), "expected numbers or texts"),
    "npy without columns": (_dense, f"claims {10**12:,} rows"),
    "coo rows": (lambda f: _folder_of_npz(f, form="coo", shape=(HUGE, 4)), f"claims {HUGE:,} rows"),
    "coo columns": (lambda f: _folder_of_npz(f, form="coo", shape=(3, HUGE)), f"claims {HUGE:,} columns"),
    "csr columns": (lambda f: _folder_of_npz(f, shape=(3, HUGE)), f"claims {HUGE:,} columns"),
    "csc rows": (lambda f: _folder_of_npz(f, form="csc", shape=(HUGE, 4)), f"claims {HUGE:,} rows"),
    "too many rows": (lambda f: _folder_of_npz(f, form="coo", shape=(2**31, 4)), f"at most {HUGE:,} rows"),
    "zip bomb": (_zip_bomb, "max_growth"),
    "xmc gz": (lambda f: _compressed(f, "txt", "1 5 5\n0 1:1"), "max_growth"),
    "jsonl gz": (lambda f: _compressed(f, "jsonl", '{"text": "x", "labels": ["a"]}'), "max_growth"),
}


def read_all(folder: Path) -> None:
    """Read each data set below `folder` with limited memory, and print the errors; the child calls this."""
    from memory_limit import limit_memory

    from xmckit import make_context
    from xmckit.errors import DataError

    context = make_context(seed=0, workers=1)

    def read(path: Path) -> str:
        try:
            context.build("dataset", {"use": "files", "path": path}).read(context=context)
        except (DataError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"
        return "it was read"

    for warm in ("warm-svm", "warm-npz"):  # compiles kernels
        assert read(folder / warm) == "it was read"
    limit_memory(EXTRA)
    print(json.dumps({name: read(folder / name) for name in CASES}))


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("claims")
    warm = {
        "warm-svm": (lambda f: _pair(f, "svm", "0 1:1\n", "0 1:1\n"), ""),
        "warm-npz": (_folder_of_npz, ""),
    }
    for name, (write, _) in {**CASES, **warm}.items():
        (folder / name).mkdir()
        write(folder / name)
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_claims, pathlib\n"
    code += f"test_claims.read_all(pathlib.Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_a_claim_is_refused_before_memory_is_allocated(messages, case):
    assert messages[case].startswith("DataError: ")
    assert CASES[case][1] in messages[case]
    assert f"{case}/" in messages[case]


def test_the_error_says_how_to_raise_the_limit_and_raising_it_helps(tmp_path, monkeypatch):
    from xmckit import make_context, store
    from xmckit.errors import DataError, UsageError

    context = make_context(seed=0, workers=1)
    _pair(tmp_path, "svm", "0 1:1\n10000000 2:2\n", "0 1:1\n")

    def read(**limits):
        return context.build("dataset", {"use": "files", "path": tmp_path, **limits}).read(context=context)

    with pytest.raises(DataError, match=r"max_claim = 10000001 in \[data\].*--param.*XMCKIT_MAX_CLAIM=10000001"):
        read()
    assert read(max_claim=10_000_001).labels == 10_000_001
    monkeypatch.setenv("XMCKIT_MAX_CLAIM", "10000001")
    assert read().labels == 10_000_001
    with pytest.raises(DataError, match="claims"):
        read(max_claim=10_000_000)
    monkeypatch.setenv("XMCKIT_MAX_CLAIM", "many")
    with pytest.raises(UsageError, match="XMCKIT_MAX_CLAIM must be a whole number"):
        store.current_limits()


def test_a_compressed_file_may_grow_up_to_the_limit(tmp_path, monkeypatch):
    from xmckit import store
    from xmckit.data import reading
    from xmckit.errors import DataError
    from xmckit.store import limits

    path = tmp_path / "x.gz"
    monkeypatch.setattr(limits, "UNLIMITED_GROWTH", 1000)
    path.write_bytes(gzip.compress(b"x" * 1000))
    assert len(reading.read_bytes(path)) == 1000  # any growth, up to the floor
    path.write_bytes(gzip.compress(b"x" * 10**6))
    with pytest.raises(DataError, match=r"100 times as much.*max_growth = "):
        reading.read_bytes(path)
    with store.use_limits(max_growth=1000):
        assert len(reading.read_bytes(path)) == 10**6
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(10**6)))
    assert len(reading.read_bytes(path)) == 10**6  # any size that does not come from growth


def test_a_head_does_not_allocate_the_sizes_of_a_wrong_state(tmp_path):
    from memory_limit import limit_memory

    from xmckit import make_context
    from xmckit.errors import StorageError
    from xmckit.testing.problems import small_problem

    context = make_context(seed=0, workers=1)
    head = context.build("head", {"use": "bsl", "epochs": 1, "dim": 4})
    head.fit(small_problem(), context=context)
    head.save(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    for name in ("inputs", "labels"):
        wrong = {**state, "sizes": {**state["sizes"], name: 10**8}}
        (tmp_path / "state.json").write_text(json.dumps(wrong))
        limit_memory(1 << 30)
        try:
            with pytest.raises(StorageError, match=r"state\.json.*a tensor of .* numbers is not in a file"):
                context.load("head", "bsl", tmp_path)
        finally:
            limit_memory(None)
