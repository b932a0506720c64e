"""Assertions about arrays, rankings and files that several checks share."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from xmckit.data.model import Dataset
from xmckit.errors import XmckitError, one_line
from xmckit.records import TopK

PICKLE_NAMES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # float32 sums in another order may differ by this


class NotApplicable(Exception):
    """The check does not apply to this component; the message says why."""


def require(holds: bool | np.bool_, otherwise: str) -> None:
    """Raise AssertionError unless `holds`, also under `python -O`."""
    if not holds:
        raise AssertionError(otherwise)


def require_none(what: str, wrong: Iterable[object]) -> None:
    """Raise AssertionError with `what` and the list, unless nothing is wrong."""
    names = ", ".join(dict.fromkeys(map(str, wrong)))
    require(not names, f"{what} {names}")


def skip_unless(holds: bool, otherwise: str) -> None:
    """Raise NotApplicable unless `holds`."""
    if not holds:
        raise NotApplicable(otherwise)


@contextmanager
def expect_error(
    cause: str, name: str = "", errors: type[Exception] | tuple[type[Exception], ...] = XmckitError
) -> Iterator[None]:
    """Check that the block, because of `cause`, raises one of `errors`, whose message contains `name`."""
    try:
        yield
    except errors as error:
        require(name in str(error), f"{cause}: the error does not name {name}: {error}")
    except Exception as error:
        raise AssertionError(f"{cause}: {one_line(error)}, expected an XmckitError") from error
    else:
        raise AssertionError(f"{cause}: expected an error, there was none")


def flat(value: Any, name: str = "answer") -> dict[str, np.ndarray]:
    """Return everything in `value` as arrays by name, to be stored and compared bit for bit; functions are left out."""
    if value is None or callable(value):
        return {}
    if isinstance(value, np.ndarray):
        return {name: value}
    if issparse(value):
        parts = {"data": value.data, "indices": value.indices, "indptr": value.indptr, "shape": np.array(value.shape)}
        return {f"{name}.{part}": array for part, array in parts.items()}
    if dataclasses.is_dataclass(value):
        return _flat_items({f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return _flat_items({f"{name}[{key}]": item for key, item in value.items()})
    if isinstance(value, (bool, int, float, np.generic)):
        return {name: np.asarray(value)}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if all(isinstance(item, str) for item in value):
            return {name: _utf8_bytes(json.dumps(list(value)))}
        return _flat_items({f"{name}[{place}]": item for place, item in enumerate(value)})
    return {name: _utf8_bytes(str(value))}


def _flat_items(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {key: array for name, value in values.items() for key, array in flat(value, name).items()}


def _utf8_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def differing(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names whose bits differ, or that only one of the two has."""
    names = [*one, *(name for name in other if name not in one)]
    return [name for name in names if name not in one or name not in other or not same_bits(one[name], other[name])]


@contextmanager
def as_dense(X: Any) -> Iterator[np.ndarray]:
    """Yield the rows of a sparse matrix as an array, and check that the block did not change it."""
    rows: np.ndarray = X.toarray()
    before = rows.copy()
    yield rows
    require(same_bits(rows, before), "changed the dense rows that it was given: work on a copy")


def as_topk(topk: Any) -> TopK:
    """Return a head's ranking, after checking that it holds arrays."""
    require(isinstance(topk, TopK), f"predict() is a {type(topk).__name__}, expected a TopK")
    for name in ("indices", "scores"):
        kind = type(getattr(topk, name))
        require(kind is np.ndarray, f"the {name} of predict() are a {kind.__name__}, expected a numpy array")
    return topk


def assert_ranking(topk: Any, *, rows: int, k: int, labels: int) -> None:
    indices, scores = as_topk(topk).indices, topk.scores
    require(indices.dtype == np.int32, f"indices are {indices.dtype}, expected int32")
    require(scores.dtype == np.float32, f"scores are {scores.dtype}, expected float32")
    require(indices.shape == scores.shape == (rows, k), f"{indices.shape} and {scores.shape}, expected {(rows, k)}")
    filled = indices >= 0
    require((indices[~filled] == -1).all(), "a padded place is not −1")
    require((np.diff(filled.astype(int), axis=1) <= 0).all(), "a padded place comes before a label")
    require((indices < labels).all(), f"a label beyond the {labels} that exist")
    require(np.isneginf(scores[~filled]).all(), "a padded place has a score other than −inf")
    require(np.isfinite(scores[filled]).all(), "a score is not finite")
    require((scores[:, 1:] <= scores[:, :-1]).all(), "scores rise along a row")
    ordered = np.sort(np.where(filled, indices, -1 - np.arange(k)), axis=1)
    require((np.diff(ordered, axis=1) != 0).all(), "a label twice in one row")


def assert_csr(matrix: Any, shape: tuple[int, int], what: str) -> None:
    require(issparse(matrix) and matrix.format == "csr", f"{what} is a {type(matrix).__name__}, expected a CSR matrix")
    require(matrix.shape == shape, f"{what} is {matrix.shape}, expected {shape}")
    require(np.isfinite(matrix.data).all(), f"{what} has a value that is not finite")
    canonical = matrix.copy()
    canonical.sum_duplicates()
    require(canonical.nnz == matrix.nnz, f"{what} has an entry twice in one row")


def assert_same_ranking(one: TopK, other: TopK, what: str) -> None:
    """Compare up to rounding: labels may change places only with labels of the same score."""
    close = np.isclose(one.scores, other.scores, rtol=RELATIVE, atol=ABSOLUTE) | (one.scores == other.scores)
    most = np.abs(one.scores[~close] - other.scores[~close]).max(initial=0.0)
    require(close.all(), f"{what}: scores change by {most:.3g}")
    moved = one.indices != other.indices
    gaps = np.full(one.scores.shape, np.inf)
    with np.errstate(invalid="ignore"):
        between = np.abs(np.diff(one.scores, axis=1))
    gaps[:, 1:] = np.minimum(gaps[:, 1:], between)
    gaps[:, :-1] = np.minimum(gaps[:, :-1], between)
    gaps[:, -1] = 0.0  # the last place may tie with a label outside the ranking
    apart = moved & (gaps > RELATIVE * np.maximum(1.0, np.abs(one.scores)))
    require(not apart.any(), f"{what}: labels of different scores change places in {apart.any(axis=1).sum()} rows")


def assert_close(one: Any, other: Any, what: str) -> None:
    one, other = (matrix.toarray() if issparse(matrix) else np.asarray(matrix) for matrix in (one, other))
    require(one.shape == other.shape, f"{what}: {other.shape} instead of {one.shape}")
    scale = max(1.0, float(np.abs(one).max(initial=0.0)))
    close = np.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE * scale)
    most = np.abs(one[~close] - other[~close]).max(initial=0.0)
    require(close.all(), f"{what}: values change by {most:.3g}")


def assert_dataset(data: Any) -> str:
    require(isinstance(data, Dataset), f"read() is a {type(data).__name__}, expected a Dataset")
    data.check()
    for part, split in (("train", data.train), ("test", data.test)):
        assert_csr(split.Y, (split.rows, data.labels), f"{part}: Y")
        require((split.Y.data != 0).all(), f"{part}: Y stores zeros, which some take for labels")
    require(data.train.rows > 0 and data.train.Y.nnz > 0, "there is nothing to learn from")
    return f"{data.train.rows} + {data.test.rows} rows, {data.labels} labels"


def assert_no_pickle(path: Path) -> None:
    require(path.suffix not in PICKLE_NAMES, f"{path.name} has the name of a pickle")
    head = path.read_bytes()[:256]
    # protocols 2 to 5 open with \x80 and their number; a numpy header says that objects, hence pickles, follow
    opens_like_one = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    require(not opens_like_one or _is_safetensors(head), f"{path.name} is a pickle")
    require(not _holds_objects(head), f"{path.name} holds pickled objects")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                require(not name.endswith(PICKLE_NAMES), f"{path.name} contains the pickle {name}")
                with archive.open(name) as member:
                    require(not _holds_objects(member.read(256)), f"{path.name} contains pickled objects in {name}")


def _is_safetensors(start: bytes) -> bool:
    """Return whether a JSON header and its length come first: a length of 896 has a pickle's first bytes."""
    return start[2:9] == bytes(6) + b"{"


def _holds_objects(start: bytes) -> bool:
    return start.startswith(b"\x93NUMPY") and b"'|O" in start
