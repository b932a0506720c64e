"""Wrappers around faiss for threads, GPUs and stored indexes.

faiss does not detect damaged files, so `read` compares a checksum first, and `structure` checks what was read. Without
a GPU, `index_cpu_to_all_gpus` silently returns an empty index; `on_all_gpus` must be called only if there is a GPU, and
checks the number of vectors.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import PluginError, StorageError, store

# The types that come with faiss are incomplete.
faiss: Any = importlib.import_module("faiss")

ON_GPU = frozenset({"flat", "ivf"})  # kinds that faiss can copy to GPUs
DEEPEST_ON_GPU = 2048  # most neighbours that a GPU returns
BLOCK = 256  # queries that a thread searches at once
BATCH = 8  # fewest queries for which a matrix product is faster; the default of faiss is 128,000 numbers


def gpus() -> int:
    return int(faiss.get_num_gpus())


def on_all_gpus(index: Any) -> Any:
    """Copy `index` to every GPU; raise PluginError if the copy is incomplete."""
    copied = faiss.index_cpu_to_all_gpus(index)
    if copied.ntotal != index.ntotal:
        raise PluginError(
            f"faiss put {copied.ntotal:,} of {index.ntotal:,} label embeddings on {gpus()} GPUs: this faiss cannot use "
            'them. Install the form of faiss that is made for GPUs (`pip install "xmckit[gpu]"`, after '
            "`pip uninstall faiss-cpu`), or hide the GPUs from this process with CUDA_VISIBLE_DEVICES="
        )
    return copied


def search(index: Any, queries: np.ndarray, k: int, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores, positions) of the `k` best of each query, padded with position −1.

    Blocks of queries go to threads of this process, with one faiss thread each: faiss's own threads spin while they
    wait, so that on a busy machine two of them take longer than one. Blocks do not depend on the number of threads, so
    results have the same bits.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    faiss.cvar.distance_compute_blas_threshold = BATCH * index.d
    blocks = [queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK)]
    with ThreadPoolExecutor(
        max(1, min(workers, len(blocks))), initializer=faiss.omp_set_num_threads, initargs=(1,)
    ) as pool:
        results = list(pool.map(lambda block: index.search(block, k), blocks))
    scores = np.concatenate([np.empty((0, k), np.float32), *(scores for scores, _ in results)])
    return scores, np.concatenate([np.empty((0, k), np.int64), *(positions for _, positions in results)])


def write(path: Path, index: Any) -> dict[str, Any]:
    """Store `index` in faiss's format. Return the record that `read` needs."""
    content = faiss.serialize_index(index)
    with store.atomic_file(path) as stream:
        stream.write(content.data)
    return {"sha256": store.file_sha256(path), "faiss": faiss.__version__}


def read(path: Path, about: dict[str, Any]) -> Any:
    """Read the index that `write` stored, or raise StorageError."""
    if not path.is_file():
        raise StorageError(f"{path}: no such file")
    if store.file_sha256(path) != about.get("sha256"):
        raise store.damaged(path, "its checksum is not the one that was stored with it")
    content = np.fromfile(path, dtype=np.uint8)
    try:
        with _limits(len(content)):
            return faiss.deserialize_index(content)
    except MemoryError:
        raise store.damaged(path, "it claims more embeddings than fit into memory") from None
    except RuntimeError as error:
        raise StorageError(
            f"{path} was written by faiss {about.get('faiss')} and this is faiss {faiss.__version__}, which cannot "
            f"read it ({_reason(error)}). Install that version, or run the recipe again."
        ) from None


@contextlib.contextmanager
def _limits(size: int) -> Iterator[None]:
    """Let faiss allocate no vector, and run no loop, that is larger than the `size` bytes it reads, if it can."""
    names = [f"deserialization_{what}_limit" for what in ("vector_byte", "loop")]
    before = {name: getattr(faiss, f"get_{name}")() for name in names if hasattr(faiss, f"set_{name}")}
    try:
        for name in before:
            getattr(faiss, f"set_{name}")(size)
        yield
    finally:
        for name, limit in before.items():
            getattr(faiss, f"set_{name}")(limit)


def call(action: Callable[[], Any], what: str) -> Any:
    """Run `action`; turn the RuntimeError of faiss, which quotes source lines, into a PluginError."""
    try:
        return action()
    except RuntimeError as error:
        raise PluginError(f"faiss failed while {what}: {_reason(error)}") from error


def _reason(error: RuntimeError) -> str:
    """Return the last part of faiss's message, without the location in its source."""
    return str(error).rsplit(": ", 1)[-1].strip()
