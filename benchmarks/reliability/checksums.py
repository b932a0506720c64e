"""Measure what checksums cost when stored files are read, and how many flipped bits they find.

    python -m benchmarks.reliability.checksums

The same file is read from a folder without a record, as all folders were before, and from one with checksums, in turns:
a CSR matrix of ten million entries, and 200 MB of weights, which are checked for finite numbers and copied into a
network as heads do it. The files are in the page cache, where reading is cheapest and a checksum shows most.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from benchmarks.common import paths
from benchmarks.common.timing import best_of
from xmckit import store
from xmckit.errors import StorageError
from xmckit.runs.provenance import library_versions, machine

RESULTS = paths.RESULTS / "reliability_checksums.json"
ENTRIES, TENSORS, SHAPE = 10_000_000, 10, (1000, 5000)
ROUNDS, FLIPS = 25, 1000


def write_matrix(path: Path) -> None:
    chance = np.random.default_rng(0)
    data = chance.random(ENTRIES, dtype=np.float32)
    indices = chance.integers(0, 1_000_000, ENTRIES).astype(np.int32)
    starts = np.arange(0, ENTRIES + 1, 10)
    store.write_csr(path, csr_matrix((data, indices, starts), shape=(ENTRIES // 10, 1_000_000)))


def write_weights(path: Path) -> None:
    store.write_tensors(path, {f"w{number}": torch.rand(*SHAPE) for number in range(TENSORS)})


def read_weights(path: Path) -> None:
    for tensor in store.read_tensors(path).values():
        if not bool(tensor.isfinite().all()):
            raise ValueError("not finite")
        torch.empty(*SHAPE).copy_(tensor)


FILES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "matrix.npz": (write_matrix, store.read_csr),
    "weights.safetensors": (write_weights, read_weights),
}


def costs(folder: Path) -> dict[str, Any]:
    found = {}
    for name, (write, read) in FILES.items():
        plain, checked = folder / "plain" / name, folder / "checked" / name
        for path in (plain, checked):
            path.parent.mkdir(exist_ok=True)
            write(path)
        store.seal(checked.parent, {"name": "benchmark"})
        times = best_of({"plain": lambda: read(plain), "checked": lambda: read(checked)}, ROUNDS)  # noqa: B023
        plain_time, checked_time = times["plain"], times["checked"]
        found[name] = {
            "bytes": checked.stat().st_size,
            "milliseconds_without": round(1000 * plain_time.wall, 1),
            "milliseconds_with": round(1000 * checked_time.wall, 1),
            "change_percent": round(100 * (checked_time.wall / plain_time.wall - 1), 1),
            "processor_change_percent": round(100 * (checked_time.processor / plain_time.processor - 1), 1),
        }
    return found


def flips(folder: Path) -> dict[str, int]:
    """Flip one random bit of each file in turn; count the flips, and those that its reader does not see."""
    (folder / "small").mkdir()
    readers = {
        "matrix.npz": store.read_csr,
        "strings.npz": store.read_strings,
        "weights.safetensors": store.read_tensors,
        "document.json": store.read_json,
    }
    store.write_csr(folder / "small" / "matrix.npz", csr_matrix(np.eye(50, dtype=np.float32)))
    store.write_strings(folder / "small" / "strings.npz", [f"label {number}" for number in range(100)])
    store.write_tensors(folder / "small" / "weights.safetensors", {"w": torch.rand(20, 20)})
    store.write_json(folder / "small" / "document.json", {f"name {number}": number / 7 for number in range(100)})
    store.seal(folder / "small", {"name": "benchmark"})
    chance, unseen = random.Random(0), 0
    for name, read in readers.items():
        path = folder / "small" / name
        sound, times = path.read_bytes(), path.stat()
        for _ in range(FLIPS):
            content = bytearray(sound)
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the damage of a disk leaves no trace
            try:
                read(path)
                unseen += 1
            except StorageError:
                pass
        path.write_bytes(sound)
    return {"flips": FLIPS * len(readers), "unseen": unseen}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        counts = {"reading": costs(Path(folder)), "damage": flips(Path(folder))}
    print(json.dumps(counts, indent=2))
    facts = {"machine": machine(), "versions": library_versions(), **counts}
    RESULTS.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
