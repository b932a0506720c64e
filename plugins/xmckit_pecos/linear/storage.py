"""Write the files that PECOS's `XLinearModel.save` writes, safely, and read them with every number checked.

param.json  ranker/param.json  ranker/<level>.model/{param.json, W.npz, C.npz}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.sparse import csc_matrix

from xmckit import store

PostProcessor = Literal[
    "l1-hinge", "l2-hinge", "l3-hinge", "l4-hinge", "log-l1-hinge", "log-l2-hinge", "log-l3-hinge", "log-l4-hinge",
    "sigmoid", "log-sigmoid", "noop",
]  # fmt: skip
POST_PROCESSORS: tuple[str, ...] = get_args(PostProcessor)
LEVELS = "ranker"
LARGEST = float(np.finfo(np.float32).max)
_ABOUT = "param.json"


@dataclass(frozen=True)
class ModelLevel:
    """Linear models, one per column of W. C holds the node above each of them.

    If `bias` is above 0, the last row of W holds its weights. `predicting` are the defaults of PECOS's own `predict`.
    """

    W: csc_matrix
    C: csc_matrix
    bias: float
    predicting: Mapping[str, Any]

    @property
    def inputs(self) -> int:
        return int(self.W.shape[0]) - (1 if self.bias > 0 else 0)


def write_model(folder: Path, levels: Sequence[ModelLevel]) -> None:
    """Write PECOS's files of these levels into `folder`.

    PECOS's own writer is not used: it leaves a file open and writes in place.
    """
    chain, last = folder / LEVELS, levels[-1]
    chain.mkdir(parents=True)
    store.write_json(folder / _ABOUT, _class("xlinear.model", "XLinearModel"))
    sizes = {"nr_features": levels[0].inputs, "nr_codes": int(last.C.shape[1]), "nr_labels": int(last.W.shape[1])}
    kind = "HierarchicalMLModel"
    store.write_json(chain / _ABOUT, {**_class("base", kind), "model": kind, "depth": len(levels), **sizes})
    for number, level in enumerate(levels):
        level_folder = _level_folder(folder, number)
        level_folder.mkdir()
        about = {
            "model": "MLModel",
            "nr_labels": int(level.W.shape[1]),
            "nr_features": level.inputs,
            "nr_codes": int(level.C.shape[1]),
            "bias": level.bias,
            "pred_kwargs": {**_class("base", "MLModel.PredParams"), **level.predicting},
        }
        store.write_json(level_folder / _ABOUT, {**_class("base", "MLModel"), **about})
        for name, matrix in (("W", level.W), ("C", level.C)):
            matrix.sort_indices()
            shape = np.asarray(matrix.shape, dtype=np.int64)
            arrays = {"indices": matrix.indices, "indptr": matrix.indptr, "format": np.asarray(b"csc"), "shape": shape}
            store.write_arrays(level_folder / f"{name}.npz", {**arrays, "data": matrix.data})


def _class(module: str, name: str) -> dict[str, Any]:
    """Return the description that PECOS stores for its classes."""
    return {"__meta__": {"class_fullname": f"pecos.xmc.{module}###{name}"}}


def _level_folder(folder: Path, level: int) -> Path:
    return folder / LEVELS / f"{level}.model"


def read_model(folder: Path) -> list[ModelLevel]:
    """Read the levels of a stored model, and check that they fit together. StorageError names the wrong file."""
    if "__meta__" not in _read_object(folder / _ABOUT):
        raise store.damaged(folder / _ABOUT, "expected the description of an XLinearModel")
    chain = folder / LEVELS / _ABOUT
    about = _read_object(chain)
    if about.get("model") != "HierarchicalMLModel" or about.get("is_mmap"):
        raise store.damaged(chain, "expected a HierarchicalMLModel in npz files")
    levels: list[ModelLevel] = []
    for number in range(_read_count(chain, about, "depth")):
        level_folder = _level_folder(folder, number)
        level = _read_level(level_folder)
        nodes = levels[-1].W.shape[1] if levels else 1
        if levels and level.inputs != levels[0].inputs:
            problem = f"weights over {level.inputs} features, the first level has {levels[0].inputs}"
            raise store.damaged(level_folder / "W.npz", problem)
        if level.C.shape[1] != nodes:
            raise store.damaged(level_folder / "C.npz", f"{level.C.shape[1]} clusters below {nodes} nodes")
        levels.append(level)
    _expect(chain, about, {"nr_features": levels[0].inputs, "nr_labels": int(levels[-1].W.shape[1])})
    return levels


def _read_level(folder: Path) -> ModelLevel:
    about = _read_object(folder / _ABOUT)
    bias, predicting = about.get("bias"), about.get("pred_kwargs")
    if about.get("model") != "MLModel" or about.get("is_mmap"):
        raise store.damaged(folder / _ABOUT, "expected an MLModel in npz files")
    if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not abs(bias) <= LARGEST:
        raise store.damaged(folder / _ABOUT, "expected a bias that is a finite number in float32")
    if not isinstance(predicting, dict) or predicting.get("post_processor") not in POST_PROCESSORS:
        raise store.damaged(folder / _ABOUT, f"expected a post-processor, one of {', '.join(POST_PROCESSORS)}")
    kept = _read_count(folder / _ABOUT, predicting, "only_topk")
    W, C = _read_csc(folder / "W.npz"), _read_csc(folder / "C.npz")
    if C.shape[0] != W.shape[1]:
        raise store.damaged(folder / "C.npz", f"clusters of {C.shape[0]} labels, W has {W.shape[1]}")
    if C.nnz and np.bincount(C.indices, minlength=C.shape[0]).max() > 1:
        raise store.damaged(folder / "C.npz", "a label is in several clusters, for which PECOS frees memory twice")
    level = ModelLevel(W, C, bias, {"only_topk": kept, "post_processor": predicting["post_processor"]})
    expected = {"nr_labels": W.shape[1], "nr_features": level.inputs, "nr_codes": C.shape[1]}
    _expect(folder / _ABOUT, about, expected)
    return level


def _read_object(path: Path) -> dict[str, Any]:
    value = store.read_json(path)
    if not isinstance(value, dict):
        raise store.damaged(path, f"expected a JSON object, found {json.dumps(value)[:40]}")
    return value


def _read_count(path: Path, about: Mapping[str, Any], name: str) -> int:
    value = about.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise store.damaged(path, f"expected {name}, a number above 0")
    return value


def _expect(path: Path, about: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if about.get(name) != size:
            raise store.damaged(path, f"{name} is {about.get(name)}, the matrices have {size}")


def _read_csc(path: Path) -> csc_matrix:
    """Read a float32 CSC matrix with sorted columns, and check every number of it."""
    arrays = store.read_arrays(path, "data", "indices", "indptr", "shape", "format")
    signed = all(arrays[name].dtype in (np.int32, np.int64) for name in ("indices", "indptr"))
    if arrays["format"].tobytes() != b"csc" or arrays["data"].dtype != np.float32 or not signed:
        raise store.damaged(path, "expected a matrix of float32 with int32 or int64 indices in the format csc")
    try:
        matrix = store.make_csc(*(arrays[name] for name in ("data", "indices", "indptr", "shape")))
    except ValueError as error:
        raise store.damaged(path, f"not a CSC matrix: {error}") from None
    if 0 in matrix.shape:
        raise store.damaged(path, f"expected rows and columns, found {matrix.shape}")
    if not _columns_rise(matrix.indices, matrix.indptr):
        raise store.damaged(path, "the indices of a column do not rise")
    if not np.isfinite(matrix.data).all():
        raise store.damaged(path, "a value is not a finite number")
    return matrix


def _columns_rise(indices: np.ndarray, indptr: np.ndarray) -> bool:
    """Check whether the indices of every column rise strictly."""
    rising = np.diff(indices) > 0
    starts = indptr[(indptr > 0) & (indptr < len(indices))]
    rising[starts - 1] = True
    return bool(rising.all())
