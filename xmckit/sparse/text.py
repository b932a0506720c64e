"""Turn texts into weighted term counts by numba kernels over UTF-8 bytes: scikit-learn's TfidfVectorizer, faster.

Terms are words, sequences of words, or character n-grams within stretches without spaces (scikit-learn's `char_wb`).

A word is two or more word characters (letters, digits and underscores, as in Python's `\\w`) in a row. This is
scikit-learn's definition, with two exceptions:
- A combining mark (Unicode's Mn and Mc, for instance vowel signs of Hindi or Arabic) belongs to the word around it,
  while Python's `\\w` would end the word. Marks do not count as characters.
- In scripts that are written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) every two neighbouring
  characters are a word, and so is a character that stands alone. Korean has spaces, so its words are words.
Emoji and other symbols are not word characters, but character n-grams contain them. Texts are normalised to Unicode's
form NFC, in which an é is one character however it was typed.

Chunks of documents depend only on the lengths of the documents, so the result does not depend on the number of
workers. The terms of a vocabulary are in the order of their bytes, which is the order of Python's strings.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.sparse import text_kernels as kernels
from xmckit.sparse.csr import row_pointers, sorted_csr
from xmckit.sparse.parse import Spread as Spread
from xmckit.sparse.parse import map_serially

CHUNK_CHARACTERS = 1 << 21

_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x3029),  # Han marks and numerals
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31BF),  # Bopomofo
    (0x31F0, 0x31FF),  # Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),  # Han
    (0xA9E0, 0xA9FF),  # Burmese
    (0xAA60, 0xAA7F),  # Burmese
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # Katakana
    (0x1AFF0, 0x1B16F),  # Hiragana, Katakana
    (0x20000, 0x3FFFF),  # Han
)


@dataclass(frozen=True)
class Terms:
    """What is counted: sequences of `shortest` to `longest` words or, with `characters`, of characters.

    `stop_words` are removed before words are joined to sequences. With `lowercase`, they are lowered like the texts.
    """

    characters: bool = False
    shortest: int = 1
    longest: int = 1
    lowercase: bool = True
    stop_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """Distinct terms in order, as slices of one UTF-8 buffer that is padded for the kernels."""

    utf8: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_terms(cls, terms: Sequence[str]) -> Vocabulary:
        return cls(*_as_arrays([term.encode("utf-8", "surrogatepass") for term in terms]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def terms(self) -> list[str]:
        return [term.decode("utf-8", "surrogatepass") for term in _slices(self.utf8, self.offsets)]

    @functools.cached_property
    def table(self) -> kernels.TermTable:
        slots = kernels.build_table(self.utf8, self.offsets, np.empty(len(self), np.int64))
        return kernels.TermTable(slots, self.utf8, self.offsets)


@dataclass(frozen=True)
class CountedTerms:
    """The terms of documents, chunk by chunk. `column_of` holds the column of each term of a part, or −1."""

    parts: Sequence[kernels.TermCounts]
    column_of: Sequence[np.ndarray]
    columns: int
    spread: Spread

    def documents(self) -> np.ndarray:
        """Return the number of documents that have each column."""
        sums = np.zeros(self.columns, np.int64)
        for part, column_of in zip(self.parts, self.column_of, strict=True):
            known = column_of >= 0
            sums[column_of[known]] += kernels.totals(part, len(column_of))[0][known]
        return sums

    def weighted(self, weights: np.ndarray, *, sublinear: bool, unit: bool = True) -> csr_matrix:
        """Return documents × columns in float32: n, or 1 + ln n if `sublinear`, times the weight of a term that occurs
        n times.

        With `unit`, rows have length 1. A document without known terms is a row of zeros.
        """
        numbers = list(range(len(self.parts)))
        weights = np.asarray(weights, dtype=np.float64)

        def count_known(nth: int) -> np.ndarray:
            sizes, terms, _ = self.parts[nth]
            document_of = np.repeat(np.arange(len(sizes)), sizes)
            return np.bincount(document_of[self.column_of[nth][terms] >= 0], minlength=len(sizes))

        sizes = self.spread(count_known, numbers)
        pointers = row_pointers(np.concatenate([np.zeros(0, np.int64), *sizes]))
        indices, values = np.empty(pointers[-1], np.int32), np.empty(pointers[-1], np.float32)
        bounds = np.cumsum([0, *map(len, sizes)])

        def fill(nth: int) -> None:
            here = pointers[bounds[nth] : bounds[nth + 1] + 1].astype(np.int64)
            part = slice(here[0], here[-1])
            kernels.weigh(
                self.parts[nth], self.column_of[nth], weights, sublinear, unit, here, indices[part], values[part]
            )

        self.spread(fill, numbers)
        return sorted_csr(values, indices, pointers, self.columns)


def learn_terms(
    texts: Sequence[str],
    terms: Terms,
    *,
    min_documents: int = 1,
    max_documents: float = np.inf,
    max_terms: int | None = None,
    spread: Spread = map_serially,
) -> tuple[Vocabulary, CountedTerms]:
    """Return the terms that are in `min_documents` to `max_documents` documents, and their counts.

    With `max_terms`, keep the terms that occur most often; of equally frequent terms the first in order. The vocabulary
    may be empty.
    """
    counter = _TermCounter(terms)

    def count(chunk: slice) -> tuple[kernels.TermCounts, tuple[np.ndarray, ...]]:
        part, utf8, offsets = counter.count(texts[chunk], None)
        return part, (utf8, offsets, *kernels.totals(part, len(offsets) - 1))

    results = spread(count, text_chunks(texts))
    utf8, offsets, documents, occurrences = _side_by_side([terms for _, terms in results])
    firsts = np.empty(len(offsets) - 1, np.int64)
    kernels.build_table(utf8, offsets, firsts)
    documents, occurrences = (np.bincount(firsts, numbers).astype(np.int64) for numbers in (documents, occurrences))
    kept = np.flatnonzero((documents >= min_documents) & (documents <= max_documents) & (documents > 0))
    kept = kept[_order(utf8, offsets, kept)]
    if max_terms is not None:
        kept = kept[np.sort(np.argsort(-occurrences[kept], kind="stable")[:max_terms])]
    column_of = np.full(len(firsts), -1, dtype=np.int32)
    column_of[kept] = np.arange(len(kept))
    ends = np.cumsum([len(terms[1]) - 1 for _, terms in results])
    columns = np.split(column_of[firsts], ends[:-1])[: len(results)]  # without texts, numpy gives one empty part
    vocabulary = Vocabulary(*kernels.take_terms(utf8, offsets, kept))
    return vocabulary, CountedTerms([part for part, _ in results], columns, len(kept), spread)


def count_terms(
    texts: Sequence[str], terms: Terms, known: Vocabulary | int, *, spread: Spread = map_serially
) -> CountedTerms:
    """Count the terms of a vocabulary. If `known` is a number of columns, count all terms instead.

    The hash of a term then gives its column, as in scikit-learn's HashingVectorizer without signs; terms may share one.
    """
    counter = _TermCounter(terms)
    columns = known if isinstance(known, int) else len(known)
    parts = spread(lambda chunk: counter.count(texts[chunk], known)[0], text_chunks(texts))
    return CountedTerms(parts, [np.arange(columns, dtype=np.int32)] * len(parts), columns, spread)


class _TermCounter:
    """Counts terms chunk by chunk, with rules for the kernels that are made once."""

    def __init__(self, terms: Terms):
        self.terms = terms
        self.cases = np.arange(256, dtype=np.uint8)
        if terms.lowercase:
            self.cases[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
        self.plain = np.zeros(256, dtype=np.uint8)
        self.plain[:128] = np.where(_ascii_kinds() == kernels.WORD, self.cases[:128], 0)
        stop = [_encode(word, terms.lowercase).translate(self.cases.tobytes()) for word in terms.stop_words]
        self.stop_words = Vocabulary(*_as_arrays(stop)).table

    def count(
        self, texts: Sequence[str], known: Vocabulary | int | None
    ) -> tuple[kernels.TermCounts, np.ndarray, np.ndarray]:
        """Return the counts, and utf8 and offsets of the learnt terms."""
        text, bounds = _as_arrays([_encode(text, self.terms.lowercase) for text in texts])
        kinds = _ascii_kinds() if all(map(str.isascii, texts)) else character_kinds()
        terms = self.terms
        rules = kernels.ItemRules(
            kinds, self.cases, self.plain, terms.characters, terms.shortest, terms.longest, self.stop_words
        )
        buffer = np.zeros(3 * np.diff(bounds).max(initial=0) + 4 + kernels.PADDING, np.uint8)
        buckets = known if isinstance(known, int) else 0
        if isinstance(known, Vocabulary):
            table, utf8, offsets = known.table
        else:
            table, utf8 = np.zeros((1 << 13, 2), np.uint64), np.zeros(1 << 15, np.uint8)
            offsets = np.zeros(1 << 12, np.int64)
        place_of = np.full(max(buckets, len(offsets)), -1, np.int64)
        sizes = np.zeros(len(texts), np.int64)
        entries, counts = np.empty(len(text) // 2, np.int32), np.empty(len(text) // 2, np.int32)
        state = np.zeros(7, np.int64)
        state[kernels.LENGTH] = terms.shortest
        while True:
            vocabulary = kernels.TermTable(table, utf8, offsets)
            out = kernels.TermCounts(sizes, entries, counts)
            kernels.count(text, bounds, rules, buffer, state, vocabulary, known is None, buckets, out, place_of)
            if state[kernels.LACKING] == kernels.ENTRIES:
                entries, counts = _double(entries), _double(counts)
            elif state[kernels.LACKING] == kernels.NEW_TERMS:
                table, offsets, place_of = kernels.double_table(table), _double(offsets), _double(place_of, -1)
            elif state[kernels.LACKING] == kernels.NEW_BYTES:
                utf8 = _double(utf8)
            else:
                break
        size, learnt = state[kernels.SIZE], state[kernels.TERMS]
        part = kernels.TermCounts(sizes, entries[:size].copy(), counts[:size].copy())
        return part, utf8[: offsets[learnt]], offsets[: learnt + 1]


def _double(array: np.ndarray, filler: int = 0) -> np.ndarray:
    return np.pad(array, (0, len(array)), constant_values=filler)


def text_chunks(texts: Sequence[str]) -> list[slice]:
    """Cut the texts into chunks of about `CHUNK_CHARACTERS`."""
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    chunks, start = [], 0
    while start < len(texts):
        so_far = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, so_far + CHUNK_CHARACTERS, side="right")))
        chunks.append(slice(start, stop))
        start = stop
    return chunks


def _encode(text: str, lowercase: bool) -> bytes:
    """Return normalised UTF-8; the kernels lower ASCII themselves."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.lower() if lowercase else text)
    return text.encode("utf-8", "surrogatepass")


def _as_arrays(encoded: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return (all bytes and padding, offsets)."""
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
    # A bytearray, because the kernels are compiled for writable arrays.
    return np.frombuffer(bytearray().join([*encoded, bytes(kernels.PADDING)]), dtype=np.uint8), offsets


def _slices(utf8: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    content = utf8.tobytes()
    return [content[start:end] for start, end in itertools.pairwise(offsets.tolist())]


def _order(utf8: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the order of some terms by their bytes: by the first 24 as numbers, and ties by all bytes."""
    words = kernels.leading_words(utf8, offsets, places, 3)
    order = np.lexsort(words[::-1])
    same = (words[:, order[1:]] == words[:, order[:-1]]).all(axis=0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    # A group is a sequence of terms with the same first bytes.
    group = np.cumsum(~np.append(False, same))[tied].tolist()
    terms = _slices(*kernels.take_terms(utf8, offsets, places[order[tied]]))
    order[tied] = order[tied][sorted(range(len(tied)), key=lambda nth: (group[nth], terms[nth]))]
    return order


def _side_by_side(parts: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Join (utf8, offsets, documents, occurrences) of all chunks; a term may come once per chunk."""
    nothing = [np.zeros(0, np.int64)]
    utf8, offsets, documents, occurrences = zip(*parts, strict=True) if parts else ([], [], nothing, nothing)
    begins = np.cumsum([0, *map(len, utf8)])
    shifted = [part[:-1] + begin for part, begin in zip(offsets, begins, strict=False)]
    return (
        np.concatenate([*utf8, np.zeros(kernels.PADDING, np.uint8)]),
        np.concatenate([*shifted, begins[-1:]]),
        np.concatenate(documents),
        np.concatenate(occurrences),
    )


@functools.cache
def _ascii_kinds() -> np.ndarray:
    return np.array([_kind(chr(code)) for code in range(128)], dtype=np.uint8)


@functools.cache
def character_kinds() -> np.ndarray:
    """Return the kind of every Unicode code point, by the tables of the running Python."""
    kinds = np.array([_kind(chr(code)) for code in range(sys.maxunicode + 1)], dtype=np.uint8)
    for first, last in _UNSPACED:
        part = kinds[first : last + 1]
        part[part == kernels.WORD] = kernels.UNSPACED
    return kinds


def _kind(character: str) -> int:
    if character.isalnum() or character == "_":
        return kernels.WORD
    if character.isspace():
        return kernels.SPACE
    return kernels.MARK if unicodedata.category(character) in ("Mn", "Mc") else kernels.OTHER
