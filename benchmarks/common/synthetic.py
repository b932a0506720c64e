"""Generate data with the shape of Amazon-670K: 136,000 features, 75 of them per row, 5.45 labels per row."""

from __future__ import annotations

from dataclasses import replace

from scipy.sparse import csr_matrix

from xmckit import Context, Split
from xmckit.data.model import Matrix

ROWS, TEST_ROWS, LABELS = 490_000, 150_000, 670_000
SHAPE = {"features": 136_000, "labels_per_row": 5.45, "words_per_row": 75}


def amazon(rows: int, test_rows: int, labels: int, context: Context) -> tuple[Split, Matrix, csr_matrix]:
    """Return (training rows, features of test rows, labels of test rows). Rows have unit length."""
    sizes = {"rows": rows, "test_rows": test_rows, "labels": labels, "topics": max(50, labels // 100)}
    data = context.build("dataset", {"use": "synthetic", **sizes, **SHAPE}).read(context=context)
    featurizer = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    featurizer.fit(data.train, context=context)
    train = replace(data.train, X=featurizer.transform(data.train, context=context))
    return train, featurizer.transform(data.test, context=context), data.test.Y
