"""Check what components return, so that an error names the plugin at fault, not the next one."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.data.model import Dataset, Matrix, Split, as_csr
from xmckit.errors import DataError, PluginError
from xmckit.records import Evaluation, TopK
from xmckit.store.npy import DAMAGE, read_npz


def checked_dataset(dataset: Any, use: str) -> Dataset:
    """Return `dataset` checked: PluginError if it is not a Dataset, DataError if its content is wrong."""
    if not isinstance(dataset, Dataset):
        raise PluginError(f"dataset {use} gave a {type(dataset).__name__}, expected a Dataset")
    dataset.check()
    return dataset


def checked_fingerprint(prints: Any, use: str) -> dict[str, str]:
    """Return a data set's fingerprint checked: PluginError if it does not map texts to texts."""
    if not isinstance(prints, Mapping) or not all(isinstance(text, str) for pair in prints.items() for text in pair):
        raise PluginError(f"fingerprint() of dataset {use} gave {prints!r}, expected texts by name")
    return dict(prints)


def checked_features(X: Any, split: Split, use: str) -> Matrix:
    """Return the features of `split` checked: PluginError if they are no finite float32 matrix with its rows."""
    sparse = issparse(X) and X.format == "csr"
    if not sparse and not isinstance(X, np.ndarray):
        raise PluginError(f"featurizer {use} gave a {type(X).__name__}, expected a CSR matrix or an array")
    if X.ndim != 2 or X.shape[0] != split.rows or X.dtype != np.float32:
        raise PluginError(f"featurizer {use} gave {X.dtype} of size {X.shape}, expected float32 and {split.rows} rows")
    if not np.isfinite(X.data if sparse else X).all():
        raise PluginError(f"featurizer {use} gave a value that is not a finite number")
    return X


def checked_labels(before: Split, after: Any, use: str) -> Split:
    """Return `before` with the labels, weights and groups of `after`: all that a label stage may change."""
    if not isinstance(after, Split):
        raise PluginError(f"label preprocessor {use} gave a {type(after).__name__}, expected a Split")
    if after.rows != before.rows or after.labels != before.labels:
        raise PluginError(
            f"label preprocessor {use} changed the number of rows or labels from {before.Y.shape} to {after.Y.shape}"
        )
    for what, matrix in (("labels", after.Y), ("weights", after.weights)):
        try:
            if matrix is not None:
                store.check_matrix(matrix, f"{what} of label preprocessor {use}")
        except DataError as error:
            raise PluginError(str(error)) from None
    weights = None if after.weights is None else csr_matrix(after.weights, dtype=np.float32).sorted_indices()
    changed = replace(before, Y=as_csr(after.Y), weights=weights, groups=after.groups)
    for what, matrix in (("label", changed.Y), ("weight", weights)):
        if matrix is not None and not np.isfinite(matrix.data).all():
            raise PluginError(f"label preprocessor {use} gave a {what} that is not a finite number")
    try:
        changed.check(f"after label preprocessor {use}: train")
    except DataError as error:
        raise PluginError(str(error)) from None
    return changed


def checked_ranking(topk: Any, rows: int, k: int, head: str) -> TopK:
    """Return a ranking checked: PluginError if its type or shape is wrong; metrics check the labels."""
    if not isinstance(topk, TopK):
        raise PluginError(f"head {head} predicted a {type(topk).__name__}, expected a TopK")
    for name, array, dtype in (("indices", topk.indices, np.int32), ("scores", topk.scores, np.float32)):
        actual = (getattr(array, "dtype", type(array).__name__), getattr(array, "shape", ()))
        if actual != (dtype, (rows, k)):
            raise PluginError(
                f"head {head} predicted {name} of {actual[0]} and size {actual[1]}, "
                f"expected {np.dtype(dtype)} and {(rows, k)}, padded if there are fewer labels"
            )
    if np.isnan(topk.scores).any():
        row = int(np.isnan(topk.scores).any(axis=1).argmax())
        raise PluginError(f"head {head} predicted a score that is not a number, the first in row {row} of {rows}")
    return topk


def checked_sets(sets: Any, rows: int, labels: int, head: str) -> csr_matrix:
    """Return label sets checked: PluginError if they are no CSR matrix of that size."""
    if not issparse(sets) or sets.format != "csr":
        raise PluginError(f"labels() of head {head} gave a {type(sets).__name__}, expected a CSR matrix")
    if sets.shape != (rows, labels):
        raise PluginError(f"labels() of head {head} gave {sets.shape[0]} × {sets.shape[1]}, expected {rows} × {labels}")
    return sets


def checked_facts(facts: Any, who: str) -> dict[str, Any]:
    """Return a component's facts checked: PluginError if they cannot be stored as JSON."""
    if not isinstance(facts, Mapping):
        raise PluginError(f"facts() of {who} gave a {type(facts).__name__}, expected facts by name")
    try:
        json.dumps(dict(facts), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PluginError(f"facts() of {who} gave values that cannot be stored: {error}") from None
    return dict(facts)


@contextlib.contextmanager
def check_unchanged(who: str, given: Split | Evaluation | Mapping[str, Any]) -> Iterator[None]:
    """Raise PluginError if the body, the work of `who`, changes its input `given`."""
    before = _checksums(given)
    yield
    after = _checksums(given)
    changed = [name for name in before if after.get(name) != before[name]]
    if changed:
        raise PluginError(f"{who} changed the {' and the '.join(changed)} that it was given: it has to work on a copy")


def _checksums(given: Split | Evaluation | Mapping[str, Any]) -> dict[str, int]:
    if isinstance(given, Split):
        given = _parts_of_rows(given)
    elif isinstance(given, Evaluation):
        given = {
            "ranking": given.topk.indices,
            "scores": given.topk.scores,
            "true labels": given.truth,
            "label sets": given.sets,
            "filtered pairs": given.filtered,
            "labels' frequencies": given.train_counts,
        }
    return {name: _checksum(matrix) for name, matrix in given.items() if matrix is not None}


def _parts_of_rows(split: Split) -> dict[str, Any]:
    groups = split.groups
    return {
        **{"features" if len(split.blocks) == 1 else f"features {name}": X for name, X in split.blocks.items()},
        "labels": split.Y,
        "weights": split.weights,
        "members of groups": groups and groups.membership,
        "labels of groups": groups and groups.labels,
    }


def _checksum(matrix: Any) -> int:
    arrays: list[Any] = [matrix.data, matrix.indices, matrix.indptr] if issparse(matrix) else [matrix]
    value = 0
    for array in arrays:
        contiguous: Any = np.ascontiguousarray(array)
        value = zlib.crc32(contiguous, value)
    return value


def check_saved(folder: Path, who: str) -> None:
    """Raise PluginError if a file that `who` saved holds a NaN or needs pickle to be read."""
    for file in sorted(folder.rglob("*.npz")):
        try:
            arrays = read_npz(file)
        except DAMAGE as error:
            raise PluginError(f"{who} saved {file.name}, which cannot be read: {error}") from None
        for name, array in arrays.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise PluginError(f"{who} saved {file.name} with a value in {name} that is not a number")
    for file in sorted(folder.rglob("*.safetensors")):
        for name, tensor in store.read_tensors(file).items():
            if tensor.is_floating_point() and bool(tensor.isnan().any()):
                raise PluginError(f"{who} saved {file.name} with a value in {name} that is not a number")
