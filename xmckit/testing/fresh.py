"""Load a saved head in a process of its own and predict: `python -m xmckit.testing.fresh REQUEST.json`.

The request names the class, the saved folder and the rows; the answer is an npz with what the head says about them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.data.model import Matrix

ARRAYS = ("indices", "scores", "label_rows", "label_columns", "features")


def answers(head: Any, X: Matrix, k: int) -> dict[str, np.ndarray]:
    """Everything a head says about the rows, as arrays that can be compared bit for bit."""
    topk, sets, features = head.predict(X, k), head.labels(X).tocoo(), head.features(X)
    order = np.lexsort((sets.col, sets.row))
    return {
        "indices": topk.indices,
        "scores": topk.scores,
        "label_rows": sets.row[order].astype(np.int64),
        "label_columns": sets.col[order].astype(np.int64),
        "features": np.empty((0, 0), dtype=np.float32) if features is None else features,
    }


def answers_in_fresh_process(cls: type, folder: Path, X: Matrix, k: int, *, workers: int) -> dict[str, np.ndarray]:
    """`answers` of the head saved in `folder / "head"`, given by another process."""
    store.write_csr(folder / "X.npz", X)
    path = [entry for entry in sys.path if entry]
    request = {
        "module": cls.__module__,
        "qualname": cls.__qualname__,
        "folder": str(folder),
        "k": k,
        "workers": workers,
    }
    store.write_json(folder / "request.json", request)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", "xmckit.testing.fresh", str(folder / "request.json")]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["no message"]
        raise AssertionError(f"a fresh process could not load and predict: {lines[-1]}")
    return store.read_arrays(folder / "answers.npz", *ARRAYS)


def main(request_file: str) -> None:
    from xmckit.registry import make_context

    request = json.loads(Path(request_file).read_bytes())
    cls: Any = importlib.import_module(request["module"])
    for name in request["qualname"].split("."):
        cls = getattr(cls, name)
    folder = Path(request["folder"])
    head = cls.load(folder / "head", context=make_context(workers=request["workers"]))
    store.write_arrays(folder / "answers.npz", answers(head, store.read_csr(folder / "X.npz"), request["k"]))


if __name__ == "__main__":
    main(sys.argv[1])
