"""The one place that knows faiss's quirks: threads, GPUs, stored indexes.

faiss reads a damaged file without defending itself, so a file is compared with its checksum before faiss sees it. And
`index_cpu_to_all_gpus` gives an index without any vector where there is no GPU, silently; it is asked only where there
is one, and what it gives is counted.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from xmckit import PluginError, StorageError, store

# not all of what faiss offers is in the types that it comes with
faiss: Any = importlib.import_module("faiss")

ON_GPU = frozenset({"flat", "ivf"})  # kinds that faiss can copy to GPUs
DEEPEST_ON_GPU = 2048  # neighbours that a GPU gives, at most
BLOCK = 256  # queries that a thread searches at once
BATCH = 8  # queries from which on a matrix product is faster than comparisons; faiss waits for 128,000 numbers


@contextlib.contextmanager
def threads(workers: int) -> Iterator[None]:
    """Let faiss and its BLAS library use so many threads for the time of a `with` block."""
    with threadpool_limits(workers):
        yield


def gpus() -> int:
    return int(faiss.get_num_gpus())


def on_all_gpus(index: Any) -> Any:
    """A copy of `index` on every GPU. PluginError if the copy does not hold what the index does."""
    copied = faiss.index_cpu_to_all_gpus(index)
    if copied.ntotal != index.ntotal:
        raise PluginError(
            f"faiss put {copied.ntotal:,} of {index.ntotal:,} label embeddings on {gpus()} GPUs: this faiss cannot use "
            'them. Install the form of faiss that is made for GPUs (`pip install "xmckit[gpu]"`, after '
            "`pip uninstall faiss-cpu`), or hide the GPUs from this process with CUDA_VISIBLE_DEVICES="
        )
    return copied


def search(index: Any, queries: np.ndarray, k: int, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """(scores, positions) of the `k` best of each query, position −1 where there are fewer.

    Blocks of queries go to threads of this process, in each of which faiss has one: its own wait for each other by
    spinning, and beside other work two of them take longer than one. Blocks are the same whatever the number of
    threads, and so is every bit of a matrix product.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    faiss.cvar.distance_compute_blas_threshold = BATCH * index.d
    blocks = [queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK)]
    with ThreadPoolExecutor(
        max(1, min(workers, len(blocks))), initializer=faiss.omp_set_num_threads, initargs=(1,)
    ) as pool:
        found = list(pool.map(lambda block: index.search(block, k), blocks))
    scores = np.concatenate([np.empty((0, k), np.float32), *(scores for scores, _ in found)])
    return scores, np.concatenate([np.empty((0, k), np.int64), *(positions for _, positions in found)])


def search_on_gpus(index: Any, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """`search` on a copy that `on_all_gpus` made."""
    scores, positions = index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
    return scores, positions


def write(path: Path, index: Any) -> dict[str, Any]:
    """Store `index` in faiss's own format; what `read` needs to trust it."""
    content = faiss.serialize_index(index)
    with store.atomic_file(path) as stream:
        stream.write(content.data)
    return {"sha256": store.file_sha256(path), "faiss": faiss.__version__}


def read(path: Path, about: dict[str, Any]) -> Any:
    """The index that `write` stored, or StorageError."""
    if not path.is_file():
        raise StorageError(f"{path}: no such file")
    if store.file_sha256(path) != about.get("sha256"):
        raise store.damaged(path, "its checksum is not the one that was stored with it")
    try:
        return faiss.deserialize_index(np.fromfile(path, dtype=np.uint8))
    except RuntimeError as error:
        raise StorageError(
            f"{path} was written by faiss {about.get('faiss')} and this is faiss {faiss.__version__}, which cannot "
            f"read it ({_reason(error)}). Install that version, or run the recipe again."
        ) from None


def explained(action: Callable[[], Any], what: str) -> Any:
    """The result of `action`; what faiss raises, a RuntimeError with its source lines, becomes a PluginError."""
    try:
        return action()
    except RuntimeError as error:
        raise PluginError(f"faiss failed while {what}: {_reason(error)}") from error


def _reason(error: RuntimeError) -> str:
    """The last part of faiss's message, behind the place in its source."""
    return str(error).rsplit(": ", 1)[-1].strip()
