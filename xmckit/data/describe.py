"""Describe a data set: sizes, label frequencies, duplicates and groups, as JSON values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit.data.model import Dataset, Matrix, Split

TAIL_ROWS = 5

_DENSE_ROWS = 1 << 14

_NOTHING = np.uint64(0)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return sizes, label frequencies, the tail, empty rows, duplicates and groups.

    A label is in the tail if at most 5 train rows have it; `test_occurrences_on_tail` is the share of (test row, label)
    pairs with such labels. Two rows are duplicates if all their features are equal, or their texts if there are no
    features; empty rows are counted separately. Duplicates are found by 64-bit hashes.
    """
    train_hashes, test_hashes = (_row_hashes(split) for split in (dataset.train, dataset.test))
    train_counts = np.bincount(dataset.train.Y.indices, minlength=dataset.labels)
    return {
        "name": dataset.name,
        "labels": _describe_labels(dataset, train_counts),
        "train": _describe_split(dataset.train, train_hashes),
        "test": _describe_split(dataset.test, test_hashes),
        "duplicates": {
            "compared_by": "texts" if dataset.train.X is None else "features",
            "train_rows_seen_before_in_train": _count_repeats(train_hashes),
            "test_rows_seen_in_train": int(np.isin(test_hashes[test_hashes != _NOTHING], train_hashes).sum()),
        },
        "info": dict(dataset.info),
    }


def _describe_labels(dataset: Dataset, train_counts: np.ndarray) -> dict[str, Any]:
    in_test = np.bincount(dataset.test.Y.indices, minlength=dataset.labels)
    tail = train_counts <= TAIL_ROWS
    unseen = train_counts == 0
    return {
        "count": dataset.labels,
        "named": dataset.label_names is not None,
        "features": None if dataset.label_features is None else int(dataset.label_features.shape[1]),
        "train_rows_per_label": {
            "mean": _mean(train_counts),
            "median": float(np.median(train_counts)) if len(train_counts) else 0.0,
            "max": int(train_counts.max(initial=0)),
        },
        "without_train_row": int(unseen.sum()),
        "without_train_row_but_in_test": int((unseen & (in_test > 0)).sum()),
        "tail_means_train_rows_at_most": TAIL_ROWS,
        "tail_share": _mean(tail),
        "test_occurrences_on_tail": _share(int(in_test[tail].sum()), int(in_test.sum())),
    }


def _describe_split(split: Split, hashes: np.ndarray) -> dict[str, Any]:
    per_row = np.diff(split.Y.indptr)
    return {
        "rows": split.rows,
        "features": {name: _describe_block(block) for name, block in split.blocks.items()},
        "texts": split.texts is not None,
        "labels_per_row": {"mean": _mean(per_row), "max": int(per_row.max(initial=0))},
        "rows_without_labels": int((per_row == 0).sum()),
        "rows_without_features": int((hashes == _NOTHING).sum()),
        "filtered_pairs": 0 if split.filter is None else int(split.filter.nnz),
        "groups": _describe_groups(split),
    }


def _describe_block(block: Matrix) -> dict[str, Any]:
    filled = np.count_nonzero(block) if isinstance(block, np.ndarray) else block.nnz
    return {
        "columns": int(block.shape[1]),
        "sparse": bool(issparse(block)),
        "nonzeros_per_row": _share(int(filled), int(block.shape[0])),
    }


def _describe_groups(split: Split) -> dict[str, Any] | None:
    if split.groups is None:
        return None
    membership, labels = split.groups.membership, split.groups.labels
    sizes = np.bincount(membership.indices, minlength=membership.shape[1])
    labels_per_group = np.diff(labels.indptr)
    return {
        "count": int(membership.shape[1]),
        "rows_per_group": {"mean": _mean(sizes), "max": int(sizes.max(initial=0))},
        "labels_per_group": {"mean": _mean(labels_per_group), "max": int(labels_per_group.max(initial=0))},
        "rows_in_no_group": int((np.diff(membership.indptr) == 0).sum()),
        "rows_in_several_groups": int((np.diff(membership.indptr) > 1).sum()),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _row_hashes(split: Split) -> np.ndarray:
    """Return one uint64 per row, equal for equal rows, 0 for an empty row."""
    blocks = split.blocks
    if not blocks:
        return _text_hashes(split)
    hashes = np.zeros(split.rows, dtype=np.uint64)
    offset = 0
    for block in blocks.values():
        # Convert a dense block to sparse in pieces, because it may not fit into memory twice.
        step = _DENSE_ROWS if isinstance(block, np.ndarray) else max(1, split.rows)
        for start in range(0, split.rows, step):
            piece = block if step >= split.rows else block[start : start + step]
            matrix = csr_matrix(piece, dtype=np.float32)
            indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
            _add_row_hashes(indptr, indices, matrix.data.view(np.uint32), offset, hashes[start : start + step])
        offset += block.shape[1]
    return hashes


def _text_hashes(split: Split) -> np.ndarray:
    texts = split.texts or []
    hashes = (
        int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        if text.strip()
        else 0
        for text in texts
    )
    return np.fromiter(hashes, dtype=np.uint64, count=len(texts))


@njit(cache=True, nogil=True)
def _add_row_hashes(indptr: np.ndarray, indices: np.ndarray, bits: np.ndarray, offset: int, hashes: np.ndarray) -> None:
    """Add a mixed (splitmix64) word per non-zero; a sum, so that blocks can be added one by one."""
    for row in range(len(indptr) - 1):
        total = hashes[row]
        for entry in range(indptr[row], indptr[row + 1]):
            if bits[entry] & np.uint32(0x7FFFFFFF) == 0:
                continue
            word = (np.uint64(indices[entry] + offset) << np.uint64(32)) | np.uint64(bits[entry])
            word += np.uint64(0x9E3779B97F4A7C15)
            word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total += word ^ (word >> np.uint64(31))
        hashes[row] = total


def _count_repeats(hashes: np.ndarray) -> int:
    filled = hashes[hashes != _NOTHING]
    return int(len(filled) - len(np.unique(filled)))
