"""Featurizers: what a split brings, texts or feature blocks, becomes the one float32 matrix that the rest sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field
from scipy import sparse
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import ONLY_BLOCK, Matrix, Split, as_csr
from xmckit.errors import DataError, UsageError, nearest
from xmckit.params import Configured, Params

Normalise: TypeAlias = Literal["none", "l2"]

ROWS_AT_ONCE = 1 << 15
TEXTS_AT_ONCE = 1 << 12
# Words of two or more letters, digits or underscores.
WORD = r"(?u)\b\w\w+\b"


class BlockParams(Params):
    """How one block differs from the others; what is left out is as for all blocks."""

    normalise: Normalise | None = Field(default=None, description='Scale its rows to length 1 ("l2") or not ("none").')
    weight: float = Field(default=1.0, gt=0, description="Factor of the block, after normalisation.")
    idf: bool | None = Field(default=None, description="Weight its columns by inverse document frequency, if sparse.")


class BlocksParams(Params):
    normalise: Normalise = Field("none", description='Scale each row of each block to length 1 ("l2") or not ("none").')
    idf: bool = Field(False, description="Weight the columns of sparse blocks by inverse document frequency first.")
    blocks: dict[str, BlockParams] = Field(
        {}, description=f"Settings of single blocks by name; a matrix without a name is called {ONLY_BLOCK}."
    )


class Blocks(Configured):
    """Feature blocks side by side, in their order, each weighted and normalised; dense only if all of them are.

    A matrix that needs no change comes back as it is. Rows without features stay so.
    """

    Params: ClassVar[type[Params]] = BlocksParams

    def __init__(self, **params: Any):
        super().__init__(**params)
        self._widths: dict[str, int] | None = None
        self._idf: dict[str, np.ndarray] = {}

    def fit(self, train: Split, *, context: Context) -> None:
        blocks = _named_blocks(train)
        self._check_names(blocks)
        self._widths = _widths(blocks)
        self._idf = {
            name: inverse_document_frequency(as_csr(block))
            for name, block in blocks.items()
            if self._wants_idf(name, block)
        }

    def transform(self, split: Split, *, context: Context) -> Matrix:
        if self._widths is None:
            raise UsageError("blocks: transform was called before fit")
        blocks = _fitting_blocks(split, self._widths)
        return side_by_side([self._transform_block(name, block, context) for name, block in blocks.items()])

    def save(self, folder: Path) -> None:
        super().save(folder)
        store.write_json(folder / "blocks.json", self._widths)
        store.write_arrays(folder / "idf.npz", {_idf_key(name, self._widths): idf for name, idf in self._idf.items()})

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Blocks:
        blocks = super().load(folder, context=context)
        blocks._widths = _read_widths(folder / "blocks.json")
        arrays = store.read_arrays(folder / "idf.npz")
        keys = {name: _idf_key(name, blocks._widths) for name in blocks._widths or {}}
        blocks._idf = {name: arrays[key] for name, key in keys.items() if key in arrays}
        return blocks

    def _transform_block(self, name: str, block: Matrix, context: Context) -> Matrix:
        own = self.params.blocks.get(name, BlockParams())
        unit = (own.normalise or self.params.normalise) == "l2"
        matrix = _float32(block, name)
        if not unit and own.weight == 1 and name not in self._idf:
            return matrix
        result = matrix.copy()
        with context.progress(f"weighting features {name}", total=matrix.shape[0]) as bar:
            for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
                rows = slice(start, min(start + ROWS_AT_ONCE, matrix.shape[0]))
                if issparse(result):
                    _weight_sparse_rows(result, rows, self._idf.get(name), unit, own.weight)
                else:
                    result[rows] = _weighted_dense(result[rows], unit, own.weight)
                bar.advance(rows.stop - rows.start)
        _check_finite(result, name)
        return result

    def _check_names(self, blocks: Mapping[str, Matrix]) -> None:
        for name in self.params.blocks:
            if name not in blocks:
                there_are = ", ".join(blocks) + nearest(name, blocks)
                raise DataError(f"features.blocks names the block '{name}', but the data has {there_are}")

    def _wants_idf(self, name: str, block: Matrix) -> bool:
        own = self.params.blocks.get(name, BlockParams())
        if own.idf and not issparse(block):
            raise DataError(f"features.blocks.{name} asks for idf, but this block is dense: idf is for sparse blocks")
        return issparse(block) and (self.params.idf if own.idf is None else own.idf)


class TfidfParams(Params):
    min_count: int = Field(2, ge=1, description="Words in fewer training texts than this are ignored.")
    max_features: int | None = Field(None, ge=1, description="Keep only this many words, the most frequent ones.")
    sublinear: bool = Field(True, description="Count a word that occurs n times as 1 + ln n.")
    ngrams: int = Field(1, ge=1, description="Also take sequences of up to this many words as features.")
    lowercase: bool = Field(True, description="Treat upper and lower case as equal.")
    with_blocks: bool = Field(False, description="Put the feature blocks of the data, as they come, beside the words.")


class Tfidf(Configured):
    """Words of two or more letters, digits or underscores, weighted by tf-idf; rows have length 1."""

    Params: ClassVar[type[Params]] = TfidfParams

    def __init__(self, **params: Any):
        super().__init__(**params)
        self._words: list[str] = []
        self._idf: np.ndarray | None = None
        self._widths: dict[str, int] | None = None
        self._vectorizer: Any = None

    def fit(self, train: Split, *, context: Context) -> None:
        texts = _texts(train)
        if train.X is not None and not self.params.with_blocks:
            context.log("tfidf: the data also has feature blocks; they are not used (with_blocks = false)")
        self._widths = _widths(_named_blocks(train)) if self.params.with_blocks else None
        learner = self._make_vectorizer(min_df=self.params.min_count, max_features=self.params.max_features)
        too_few = f"no word occurs in at least {self.params.min_count} of the {len(texts)} training texts"
        if len(texts) < self.params.min_count:
            raise DataError(f"{too_few}: lower features.min_count")
        try:
            learner.fit(_with_progress(texts, "collecting words", context))
        except ValueError as error:
            raise DataError(f"{too_few}: lower features.min_count or check the texts ({error})") from None
        self._restore(learner.get_feature_names_out().tolist(), learner.idf_)

    def transform(self, split: Split, *, context: Context) -> Matrix:
        if self._vectorizer is None:
            raise UsageError("tfidf: transform was called before fit")
        words = self._transform_texts(_texts(split), context)
        if self._widths is None:
            return words
        blocks = _fitting_blocks(split, self._widths)
        return side_by_side([words, *(_float32(block, name) for name, block in blocks.items())])

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self._idf is None:
            raise UsageError("tfidf: save was called before fit")
        store.write_strings(folder / "words.npz", self._words)
        store.write_arrays(folder / "idf.npz", {"idf": self._idf})
        store.write_json(folder / "blocks.json", self._widths)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Tfidf:
        tfidf = super().load(folder, context=context)
        words = store.read_strings(folder / "words.npz")
        idf = store.read_arrays(folder / "idf.npz", "idf")["idf"]
        if not words or len(set(words)) != len(words) or idf.shape != (len(words),):
            raise store.damaged(folder / "idf.npz", f"{len(words)} words, but weights of shape {idf.shape}")
        tfidf._widths = _read_widths(folder / "blocks.json")
        tfidf._restore(words, idf)
        return tfidf

    def _make_vectorizer(self, **options: Any) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        return TfidfVectorizer(
            ngram_range=(1, self.params.ngrams),
            lowercase=self.params.lowercase,
            sublinear_tf=self.params.sublinear,
            token_pattern=WORD,
            dtype=np.float32,
            **options,
        )

    def _restore(self, words: list[str], idf: np.ndarray) -> None:
        """Fitting ends here as loading does: both transform through the same object, so with the same bits."""
        self._words, self._idf = words, idf
        self._vectorizer = self._make_vectorizer(vocabulary={word: column for column, word in enumerate(words)})
        self._vectorizer.idf_ = idf

    def _transform_texts(self, texts: Sequence[str], context: Context) -> csr_matrix:
        if not len(texts):
            return csr_matrix((0, len(self._words)), dtype=np.float32)
        parts = []
        with context.progress("weighting words", total=len(texts)) as bar:
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                part = texts[start : start + TEXTS_AT_ONCE]
                parts.append(as_csr(self._vectorizer.transform(part)))
                bar.advance(len(part))
        return parts[0] if len(parts) == 1 else sparse.vstack(parts, format="csr")


def inverse_document_frequency(matrix: csr_matrix) -> np.ndarray:
    """ln((1 + rows) / (1 + rows with the column)) + 1 for each column: never 0, and finite for unseen columns."""
    seen = np.bincount(matrix.indices, minlength=matrix.shape[1])
    return np.log((1 + matrix.shape[0]) / (1 + seen)) + 1


def side_by_side(blocks: Sequence[Matrix]) -> Matrix:
    """One matrix: sparse if any block is, and the block itself if there is only one."""
    if len(blocks) == 1:
        return blocks[0]
    if any(issparse(block) for block in blocks):
        return as_csr(sparse.hstack([csr_matrix(block) for block in blocks], format="csr"))
    return np.hstack(blocks)


def _weight_sparse_rows(matrix: csr_matrix, rows: slice, idf: np.ndarray | None, unit: bool, weight: float) -> None:
    """Weight some rows in place. In float64, because squares of float32 leave its range."""
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    part = slice(indptr[0], indptr[-1])
    values = matrix.data[part].astype(np.float64)
    if idf is not None:
        values *= idf[matrix.indices[part]]
    if unit:
        row_of = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values /= np.sqrt(np.bincount(row_of, weights=values**2))[row_of]
    with np.errstate(over="ignore"):
        matrix.data[part] = values * weight


def _weighted_dense(rows: np.ndarray, unit: bool, weight: float) -> np.ndarray:
    values = rows.astype(np.float64)
    if unit:
        lengths = np.sqrt((values**2).sum(axis=1, keepdims=True))
        values /= np.where(lengths > 0, lengths, 1)
    with np.errstate(over="ignore"):
        return (values * weight).astype(np.float32)


def _float32(block: Matrix, name: str) -> Matrix:
    """The block in float32, sparse ones in canonical form; the same object if it already is like that."""
    if isinstance(block, csr_matrix) and block.dtype == np.float32 and block.has_canonical_format and block.data.all():
        return block
    with np.errstate(over="ignore"):
        result: Matrix = as_csr(block) if issparse(block) else np.asarray(block, dtype=np.float32)
    if result is not block:
        _check_finite(result, name)
    return result


def _check_finite(matrix: Any, name: str) -> None:
    bad = np.argwhere(~np.isfinite(matrix.data if issparse(matrix) else matrix))
    if len(bad):
        place = int(bad[0][0])
        row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1 if issparse(matrix) else place
        raise DataError(f"features {name} have a value that is not finite or too large for 32-bit floats", row=row)


def _named_blocks(split: Split) -> dict[str, Matrix]:
    if split.blocks:
        return dict(split.blocks)
    if split.texts is not None:
        raise DataError('these rows have texts but no feature matrix: add `[features] use = "tfidf"` to the recipe')
    raise DataError("these rows have neither features nor texts")


def _texts(split: Split) -> Sequence[str]:
    if split.texts is None:
        raise DataError(
            "tfidf needs texts, but these rows have none: give the data with texts, or take its feature matrix with "
            '`[features] use = "blocks"`'
        )
    return split.texts


def _fitting_blocks(split: Split, fitted: Mapping[str, int]) -> dict[str, Matrix]:
    """The blocks in the order that was fitted, if they are the same."""
    blocks = _named_blocks(split)
    if _widths(blocks) != fitted:
        raise DataError(
            f"the features were fitted on {_described(fitted)}, but these rows have {_described(_widths(blocks))}"
        )
    return {name: blocks[name] for name in fitted}


def _widths(blocks: Mapping[str, Matrix]) -> dict[str, int]:
    return {name: int(block.shape[1]) for name, block in blocks.items()}


def _described(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} with {width} columns" for name, width in widths.items())


def _read_widths(path: Path) -> dict[str, int] | None:
    widths = store.read_json(path)
    if widths is None:
        return None
    if not isinstance(widths, dict) or not all(isinstance(width, int) for width in widths.values()):
        raise store.damaged(path, "expected the widths of the feature blocks")
    return widths


def _idf_key(name: str, widths: Mapping[str, int] | None) -> str:
    """A block's name may be anything, so its arrays are stored under its position."""
    return f"block{list(widths or ()).index(name)}"


def _with_progress(texts: Sequence[str], what: str, context: Context) -> Iterator[str]:
    with context.progress(what, total=len(texts)) as bar:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            yield from part
            bar.advance(len(part))
