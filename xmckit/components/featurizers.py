"""Featurizers: they turn the texts or feature blocks of a split into one float32 matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field, model_validator
from scipy import sparse
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.context import Context, map_on_threads
from xmckit.data.model import ONLY_BLOCK, Matrix, Split, as_csr, check_entries, stored_values
from xmckit.errors import DataError, UsageError, nearest
from xmckit.params import Configured, Params
from xmckit.sparse.normalise import weigh_rows
from xmckit.sparse.text import CountedTerms, Spread, Terms, Vocabulary, count_terms, learn_terms

Normalise: TypeAlias = Literal["none", "l2"]

ROWS_AT_ONCE = 1 << 15


class BlockParams(Params):
    """Settings of one block; a setting that is left out is the same as for all blocks."""

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
    """Put feature blocks side by side, in their order, each weighted and normalised; dense only if all of them are.

    A matrix that needs no change is returned as it is. Rows without features stay empty.
    """

    Params: ClassVar[type[Params]] = BlocksParams

    def __init__(self, **params: Any):
        super().__init__(**params)
        self._widths: dict[str, int] | None = None
        self._idf: dict[str, np.ndarray] = {}

    def fit(self, train: Split, *, context: Context) -> None:
        blocks = _named_blocks(train)
        for name in self.params.blocks:
            if name not in blocks:
                there_are = ", ".join(blocks) + nearest(name, blocks)
                raise DataError(f"features.blocks names the block '{name}', but the data has {there_are}")
        self._widths = _widths(blocks)
        self._idf = {}
        for name, block in blocks.items():
            if self._wants_idf(name, block):
                seen = np.bincount(as_csr(block).indices, minlength=block.shape[1])
                self._idf[name] = inverse_document_frequency(seen, train.rows)

    def transform(self, split: Split, *, context: Context) -> Matrix:
        if self._widths is None:
            raise UsageError("blocks: transform was called before fit")
        blocks = _matching_blocks(split, self._widths)
        return side_by_side([self._transform_block(name, block, context) for name, block in blocks.items()])

    def save(self, folder: Path) -> None:
        super().save(folder)
        store.write_json(folder / "blocks.json", self._widths)
        # By position, because the name of a block may be any text.
        numbers = {name: number for number, name in enumerate(self._widths or ())}
        store.write_arrays(folder / "idf.npz", {f"block{numbers[name]}": idf for name, idf in self._idf.items()})

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Blocks:
        blocks = super().load(folder, context=context)
        blocks._widths = _read_widths(folder / "blocks.json")
        stored = store.read_arrays(folder / "idf.npz")
        for number, (name, width) in enumerate((blocks._widths or {}).items()):
            if (weights := stored.get(f"block{number}")) is not None:
                blocks._idf[name] = _check_weights(weights, folder / "idf.npz", width)
        return blocks

    def _transform_block(self, name: str, block: Matrix, context: Context) -> Matrix:
        own = self.params.blocks.get(name, BlockParams())
        unit = (own.normalise or self.params.normalise) == "l2"
        # Weights that were learned from sparse rows apply to dense rows too.
        matrix = _float32(csr_matrix(block) if name in self._idf else block, name)
        if not unit and own.weight == 1 and name not in self._idf:
            return matrix
        result = matrix.copy()
        if issparse(result):
            weigh_rows(result, self._idf.get(name), unit=unit, factor=own.weight, workers=context.workers)
        else:
            with context.progress(f"weighting features {name}", total=len(result)) as bar:
                for start in range(0, len(result), ROWS_AT_ONCE):
                    rows = result[start : start + ROWS_AT_ONCE]
                    rows[:] = _weigh_dense(rows, unit, own.weight)
                    bar.advance(len(rows))
        _check_finite(result, name)
        return result

    def _wants_idf(self, name: str, block: Matrix) -> bool:
        own = self.params.blocks.get(name, BlockParams())
        if own.idf and not issparse(block):
            raise DataError(f"features.blocks.{name} asks for idf, but this block is dense: idf is for sparse blocks")
        return issparse(block) and (self.params.idf if own.idf is None else own.idf)


class TfidfParams(Params):
    terms: Literal["words", "characters"] = Field(
        "words", description='What is counted: words, or with "characters" sequences of characters between spaces.'
    )
    min_count: int = Field(2, ge=1, description="Words in fewer training texts than this are ignored.")
    max_share: float = Field(
        1.0, gt=0, le=1, description="Words in more than this share of training texts are ignored."
    )
    max_features: int | None = Field(None, ge=1, description="Keep only this many words, the most frequent ones.")
    sublinear: bool = Field(True, description="Count a word that occurs n times as 1 + ln n.")
    ngrams: int = Field(1, ge=1, lt=2**31, description="Also take sequences of up to this many words as features.")
    shortest: int = Field(1, ge=1, description="Leave out sequences of fewer words, or characters, than this.")
    lowercase: bool = Field(True, description="Treat upper and lower case as equal.")
    stop_words: tuple[str, ...] = Field((), description="Words to leave out.")
    buckets: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None,
        description="Keep no words, but this many columns; the hash of a word chooses its column. "
        "min_count, max_share and max_features are then ignored.",
    )
    with_blocks: bool = Field(False, description="Put the feature blocks of the data, unchanged, beside the words.")

    @model_validator(mode="after")
    def _lengths(self) -> TfidfParams:
        if self.shortest > self.ngrams:
            raise ValueError(f"shortest is {self.shortest}, which is more than ngrams ({self.ngrams})")
        if self.terms == "characters" and self.stop_words:
            raise ValueError("stop_words are for words, not for characters")
        return self

    def term_rules(self) -> Terms:
        """Return the rules that cut a text into terms."""
        return Terms(self.terms == "characters", self.shortest, self.ngrams, self.lowercase, self.stop_words)


class Tfidf(Configured):
    """Words, or sequences of words or of characters, weighted by tf-idf; rows have length 1.

    `xmckit.sparse.text` defines words for all scripts. A text without a known word becomes a row of zeros.
    """

    Params: ClassVar[type[Params]] = TfidfParams

    _words: Vocabulary | None = None
    _idf: np.ndarray | None = None
    _widths: dict[str, int] | None = None
    _fitted_on: tuple[Sequence[str], CountedTerms] | None = None

    def fit(self, train: Split, *, context: Context) -> None:
        texts = _texts(train)
        if train.X is not None and not self.params.with_blocks:
            context.log("tfidf: the data also has feature blocks; they are not used (with_blocks = false)")
        self._widths = _widths(_named_blocks(train)) if self.params.with_blocks else None
        spread = _map_with_progress(context)
        if self.params.buckets is not None:
            counted = count_terms(texts, self.params.term_rules(), self.params.buckets, spread=spread)
        else:
            self._words, counted = learn_terms(
                texts,
                self.params.term_rules(),
                min_documents=self.params.min_count,
                max_documents=self.params.max_share * len(texts),
                max_terms=self.params.max_features,
                spread=spread,
            )
            if not len(self._words):
                raise DataError(self._no_words_message(len(texts)))
        self._idf = inverse_document_frequency(counted.documents(), len(texts))
        self._fitted_on = texts, counted

    def transform(self, split: Split, *, context: Context) -> Matrix:
        if self._idf is None:
            raise UsageError("tfidf: transform was called before fit")
        words = self._count_texts(_texts(split), context).weighted(self._idf, sublinear=self.params.sublinear)
        if self._widths is None:
            return words
        blocks = _matching_blocks(split, self._widths)
        return side_by_side([words, *(_float32(block, name) for name, block in blocks.items())])

    def words(self) -> list[str]:
        """Return the fitted words, column by column; none if they are hashed."""
        return [] if self._words is None else self._words.terms()

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self._idf is None:
            raise UsageError("tfidf: save was called before fit")
        if self._words is not None:
            store.write_strings(folder / "words.npz", self.words())
        store.write_arrays(folder / "idf.npz", {"idf": self._idf})
        store.write_json(folder / "blocks.json", self._widths)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Tfidf:
        tfidf = super().load(folder, context=context)
        columns = tfidf.params.buckets
        if columns is None:
            words = store.read_strings(folder / "words.npz")
            columns = len(words)
            if not words or len(set(words)) != columns:
                raise store.damaged(folder / "words.npz", "expected different words, and at least one")
            tfidf._words = Vocabulary.from_terms(words)
        tfidf._widths = _read_widths(folder / "blocks.json")
        weights = store.read_arrays(folder / "idf.npz", "idf")["idf"]
        tfidf._idf = _check_weights(weights, folder / "idf.npz", columns)
        return tfidf

    def _count_texts(self, texts: Sequence[str], context: Context) -> CountedTerms:
        """Count the terms of texts. `fit` keeps the counts of its texts for the first call, which usually has them."""
        if self._fitted_on is not None:
            fitted, counted = self._fitted_on
            self._fitted_on = None
            if fitted is texts:
                return counted
        known = self._words if self._words is not None else self.params.buckets
        return count_terms(texts, self.params.term_rules(), known, spread=_map_with_progress(context))

    def _no_words_message(self, texts: int) -> str:
        share = f" and in at most {self.params.max_share:.0%}" if self.params.max_share < 1 else ""
        change = "lower features.min_count, raise features.max_share" if share else "lower features.min_count"
        what = "word" if self.params.terms == "words" else "sequence of characters"
        return (
            f"no {what} occurs in at least {self.params.min_count}{share} of the {texts} training texts: "
            f"{change} or check the texts"
        )


def _map_with_progress(context: Context) -> Spread:
    """Return a map over chunks of texts on threads. Chunks fill shared arrays, so no executor can be used."""

    def spread(function: Callable[[Any], Any], items: list) -> list:
        with context.progress("counting words", total=len(items)) as bar:

            def call(item: Any) -> Any:
                result = function(item)
                bar.advance()
                return result

            return map_on_threads(call, items, workers=context.workers)

    return spread


def inverse_document_frequency(seen: np.ndarray, rows: int) -> np.ndarray:
    """Return ln((1 + rows) / (1 + rows that have the column)) + 1: never 0, and finite for columns that no row has."""
    return np.log((1 + rows) / (1 + seen)) + 1


def side_by_side(blocks: Sequence[Matrix]) -> Matrix:
    """Return one matrix: sparse if any block is, and the block itself if it is the only one."""
    if len(blocks) == 1:
        return blocks[0]
    if any(issparse(block) for block in blocks):
        return as_csr(sparse.hstack([csr_matrix(block) for block in blocks], format="csr"))
    return np.hstack(blocks)


def _weigh_dense(rows: np.ndarray, unit: bool, weight: float) -> np.ndarray:
    values = rows.astype(np.float64)
    if unit:
        lengths = np.sqrt((values**2).sum(axis=1, keepdims=True))
        values /= np.where(lengths > 0, lengths, 1)
    with np.errstate(over="ignore"):
        return (values * weight).astype(np.float32)


def _float32(block: Matrix, name: str) -> Matrix:
    """Return the block in float32, a sparse one in canonical form; the same object if nothing has to change."""
    if isinstance(block, csr_matrix) and block.dtype == np.float32 and block.has_canonical_format and block.data.all():
        return block
    with np.errstate(over="ignore"):
        result: Matrix = as_csr(block) if issparse(block) else np.asarray(block, dtype=np.float32)
    if result is not block:
        _check_finite(result, name)
    return result


def _check_finite(matrix: Matrix, name: str) -> None:
    finite = np.isfinite(stored_values(matrix))
    check_entries(matrix, finite, f"features {name} have a value that is not finite or too large for 32-bit floats")


def _named_blocks(split: Split) -> dict[str, Matrix]:
    if split.blocks:
        for name, block in split.blocks.items():
            if issparse(block):
                store.check_matrix(block, f"the feature block {name}")
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
    row = next((row for row, text in enumerate(split.texts) if not isinstance(text, str)), None)
    if row is not None:
        raise DataError(f"a text is a {type(split.texts[row]).__name__}, expected a string", row=row)
    return split.texts


def _matching_blocks(split: Split, fitted: Mapping[str, int]) -> dict[str, Matrix]:
    """Return the blocks in the fitted order; DataError if they are not those that were fitted."""
    blocks = _named_blocks(split)
    if _widths(blocks) != fitted:
        raise DataError(
            f"the features were fitted on {_describe(fitted)}, but these rows have {_describe(_widths(blocks))}"
        )
    return {name: blocks[name] for name in fitted}


def _widths(blocks: Mapping[str, Matrix]) -> dict[str, int]:
    return {name: int(block.shape[1]) for name, block in blocks.items()}


def _describe(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} with {width} columns" for name, width in widths.items())


def _read_widths(path: Path) -> dict[str, int] | None:
    widths = store.read_json(path)
    if widths is None:
        return None
    if (
        not isinstance(widths, dict)
        or not widths
        or not all(type(width) is int and width >= 0 for width in widths.values())
    ):
        raise store.damaged(path, "expected the widths of the feature blocks")
    return widths


def _check_weights(weights: np.ndarray, path: Path, columns: int) -> np.ndarray:
    """Return the weights read from `path`; StorageError if they are not one per column, which kernels do not check."""
    if weights.shape != (columns,) or weights.dtype.kind != "f":
        raise store.damaged(path, f"{columns} columns, but weights of {weights.dtype} and shape {weights.shape}")
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise store.damaged(path, "expected weights above 0")
    return weights
