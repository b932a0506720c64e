"""Compare this package's reader of XMC text with scikit-learn's, one thread each, on the same rows.

    python -m benchmarks.speed.parse_text [--mb 200] [--json]

The text is synthetic (seeded), is written to a temporary folder and is read once beforehand, so that it is in memory
for all readers. scikit-learn gets a copy without the header line, which it cannot read. Times are the best of
`--repeats`, taken in turns, without compilation; "memory" is the time to sum up the bytes of the mapped file, the
lower bound for every reader. Processor time is reported too, because a busy machine stretches wall time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file
from threadpoolctl import threadpool_limits

from xmckit.context import Context
from xmckit.data.xmc_text import read_data_rows

FEATURES, LABELS = 200_000, 50_000
WORDS_PER_ROW, LABELS_PER_ROW = 60, 5


def write_synthetic(path: Path, bare: Path, megabytes: float, seed: int) -> None:
    """Write about `megabytes` of rows with Zipf-like features, with a header to `path` and without to `bare`."""
    rng = np.random.default_rng(seed)
    rows = 0
    with open(bare, "wb") as stream:
        while stream.tell() < megabytes * 1e6:
            lines = [_line(rng) for _ in range(500)]
            rows += len(lines)
            stream.write("".join(lines).encode("ascii"))
    with open(path, "wb") as stream, open(bare, "rb") as body:
        stream.write(f"{rows} {FEATURES} {LABELS}\n".encode("ascii"))
        while block := body.read(1 << 24):
            stream.write(block)


def _line(rng: np.random.Generator) -> str:
    columns = np.unique((FEATURES * rng.random(1 + rng.poisson(WORDS_PER_ROW)) ** 2).astype(np.int64)).tolist()
    labels = np.unique((LABELS * rng.random(1 + rng.poisson(LABELS_PER_ROW)) ** 3).astype(np.int64)).tolist()
    values = (rng.random(len(columns)) + 1e-6).tolist()
    features = " ".join(f"{column}:{value:.6f}" for column, value in zip(columns, values, strict=True))
    return f"{','.join(map(str, labels))} {features}\n"


def best_of(
    repeats: int, functions: dict[str, Callable[[], Any]]
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Return the least wall and processor seconds of each function, run in turns, and its last result."""
    seconds = {name: {"wall": float("inf"), "processor": float("inf")} for name in functions}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, function in functions.items():
            results[name] = None
            wall, processor = time.perf_counter(), time.process_time()
            results[name] = function()
            spent = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
            seconds[name] = {clock: min(spent[clock], seconds[name][clock]) for clock in spent}
    return seconds, results


def read_with_sklearn(path: Path) -> tuple[csr_matrix, list[tuple[float, ...]]]:
    return load_svmlight_file(str(path), multilabel=True, zero_based=True, n_features=FEATURES, dtype=np.float32)


def label_matrix(rows: list[tuple[float, ...]]) -> csr_matrix:
    ends = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=ends[1:])
    indices = np.fromiter((int(label) for row in rows for label in row), dtype=np.int32, count=int(ends[-1]))
    return csr_matrix((np.ones(len(indices), dtype=np.float32), indices, ends), shape=(len(rows), LABELS))


def identical(one: csr_matrix, other: csr_matrix) -> bool:
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.data.view(np.uint32), other.data.view(np.uint32))
    )


def touch_every_byte(path: Path) -> int:
    content = np.memmap(path, dtype=np.uint8, mode="r")
    return int(content[: len(content) // 8 * 8].view(np.uint64).sum())


def measure(folder: Path, megabytes: float, seed: int, repeats: int) -> dict[str, Any]:
    path, bare, tiny = folder / "data.txt", folder / "bare.txt", folder / "tiny.txt"
    write_synthetic(path, bare, megabytes, seed)
    tiny.write_bytes(b"1 2 2\n1,0 1:0.5 0:1\n")
    context = Context(workers=1)
    start = time.perf_counter()
    read_data_rows(tiny, context)
    compilation = time.perf_counter() - start
    seconds, results = best_of(
        repeats,
        {
            "memory": lambda: touch_every_byte(path),
            "xmckit": lambda: read_data_rows(path, context),
            "sklearn": lambda: read_with_sklearn(bare),
        },
    )
    (X, Y), (sklearn_X, sklearn_labels) = results["xmckit"], results["sklearn"]
    size = path.stat().st_size / 1e6
    return {
        "megabytes": size,
        "rows": int(X.shape[0]),
        "nonzeros": int(X.nnz),
        "identical": identical(X, csr_matrix(sklearn_X)) and identical(Y, label_matrix(sklearn_labels)),
        "compilation_or_cache_seconds": compilation,
        "seconds": seconds,
        "megabytes_per_second": {name: size / spent["wall"] for name, spent in seconds.items()},
        "times_faster_than_sklearn": _ratio(seconds, "sklearn", "xmckit"),
        "times_slower_than_memory": _ratio(seconds, "xmckit", "memory"),
    }


def _ratio(seconds: dict[str, dict[str, float]], slow: str, fast: str) -> dict[str, float]:
    return {clock: seconds[slow][clock] / seconds[fast][clock] for clock in seconds[slow]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=200, help="size of the text in megabytes")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the text")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each reader")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        result = measure(Path(folder), options.mb, options.seed, options.repeats)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for reader, speed in result["megabytes_per_second"].items():
        spent = result["seconds"][reader]
        print(f"{reader:8} {spent['wall']:8.3f} s  {spent['processor']:8.3f} s of processor  {speed:8.1f} MB/s")
    faster, slower = result["times_faster_than_sklearn"], result["times_slower_than_memory"]
    print(f"{faster['wall']:.1f} × scikit-learn ({faster['processor']:.1f} × by processor time)")
    print(f"{slower['wall']:.1f} × the time to read the bytes ({slower['processor']:.1f} × by processor time)")
    print(f"identical matrices: {result['identical']}")


if __name__ == "__main__":
    main()
