"""Texts to weighted term counts, by numba kernels over UTF-8 bytes: what scikit-learn's TfidfVectorizer gives, faster.

Terms are words, sequences of words, or character n-grams within stretches without spaces (scikit-learn's `char_wb`).

What a word is, in any script: two or more word characters (letters, digits and underscores, by Python's `\\w`) in a
row, exactly as with scikit-learn, but for two things:
- A combining mark (Unicode's Mn and Mc: vowel signs of Hindi or Arabic, for instance) belongs to the word that it is
  in, where Python's `\\w` would end the word. Marks do not count as characters.
- Scripts that are written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) give every two neighbouring
  characters as a word, and a character that stands alone as one. Korean has spaces, so that its words are words.
Emoji and other symbols are no word characters; they do count as characters of character n-grams. Texts are brought to
Unicode's form NFC, in which an é is one character however it was typed.

Documents are worked on in chunks that depend on nothing but their lengths, so neither does the result on the number
of workers. A vocabulary's terms are in the order of their bytes, which is that of Python's strings.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.sparse import text_kernels as kernels
from xmckit.sparse.csr import row_pointers, sorted_csr

CHUNK_CHARACTERS = 1 << 21

Spread = Callable[[Callable[[Any], Any], list], list]

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

    `stop_words` are left out before words are put together; they are given as texts are, and brought to lower case
    where the texts are.
    """

    characters: bool = False
    shortest: int = 1
    longest: int = 1
    lowercase: bool = True
    stop_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """Different terms as slices of one UTF-8 buffer, in order. The buffer has a few bytes more behind them."""

    utf8: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, terms: Sequence[str]) -> Vocabulary:
        return cls(*_as_arrays([term.encode("utf-8", "surrogatepass") for term in terms]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def terms(self) -> list[str]:
        return [term.decode("utf-8", "surrogatepass") for term in _slices(self.utf8, self.offsets)]

    @functools.cached_property
    def table(self) -> np.ndarray:
        return _table(self.utf8, self.offsets)


@dataclass(frozen=True)
class Counted:
    """The terms of documents, chunk by chunk: (entries of each document, their terms, their counts), and the column of
    each of the chunk's terms, or −1.
    """

    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    column_of: Sequence[np.ndarray]
    columns: int
    spread: Spread

    def documents(self) -> np.ndarray:
        """In how many documents each column is."""
        sums = np.zeros(self.columns, np.int64)
        for (_, entries, counts), column_of in zip(self.parts, self.column_of, strict=True):
            known = column_of >= 0
            sums[column_of[known]] += kernels.totals(entries, counts, len(column_of))[0][known]
        return sums

    def weighted(self, weights: np.ndarray, *, sublinear: bool, unit: bool = True) -> csr_matrix:
        """Documents × columns: a term that occurs n times counts as n, or 1 + ln n if `sublinear`, times its weight.

        With `unit`, rows have length 1. Documents without a term that has a column are rows of zeros. float32.
        """
        numbers = list(range(len(self.parts)))
        weights = np.asarray(weights, dtype=np.float64)
        sizes = self.spread(
            lambda nth: kernels.kept_sizes(self.parts[nth][0], self.parts[nth][1], self.column_of[nth]), numbers
        )
        pointers = row_pointers(np.concatenate([np.zeros(0, np.int64), *sizes]))
        indices, values = np.empty(pointers[-1], np.int32), np.empty(pointers[-1], np.float32)
        bounds = np.cumsum([0, *map(len, sizes)])

        def fill(nth: int) -> None:
            here = pointers[bounds[nth] : bounds[nth + 1] + 1].astype(np.int64)
            part = slice(here[0], here[-1])
            kernels.weigh(
                *self.parts[nth], self.column_of[nth], weights, sublinear, unit, here, indices[part], values[part]
            )

        self.spread(fill, numbers)
        return sorted_csr(values, indices, pointers, self.columns)


def serially(function: Callable[[Any], Any], items: list) -> list:
    return [function(item) for item in items]


def learn_terms(
    texts: Sequence[str],
    terms: Terms,
    *,
    min_documents: int = 1,
    max_documents: float = np.inf,
    max_terms: int | None = None,
    spread: Spread = serially,
) -> tuple[Vocabulary, Counted]:
    """The terms that are in so many documents (with `max_terms`, those of them that occur most often), and the counts.

    Of terms that occur equally often the first in order stay. A vocabulary may come out empty.
    """
    run = _Run(terms)

    def count(chunk: slice) -> tuple[np.ndarray, ...]:
        *found, utf8, offsets = run.count(texts[chunk], None)
        return *found, utf8, offsets, *kernels.totals(found[1], found[2], len(offsets) - 1)

    results = spread(count, text_chunks(texts))
    utf8, offsets, documents, occurrences = _side_by_side([result[3:] for result in results])
    firsts = np.empty(len(offsets) - 1, np.int64)
    kernels.table_of(utf8, offsets, firsts)
    documents, occurrences = (np.bincount(firsts, numbers).astype(np.int64) for numbers in (documents, occurrences))
    kept = np.flatnonzero((documents >= min_documents) & (documents <= max_documents) & (documents > 0))
    kept = kept[_order(utf8, offsets, kept)]
    if max_terms is not None:
        kept = kept[np.sort(np.argsort(-occurrences[kept], kind="stable")[:max_terms])]
    column_of = np.full(len(firsts), -1, dtype=np.int32)
    column_of[kept] = np.arange(len(kept))
    ends = np.cumsum([len(result[4]) - 1 for result in results])
    columns = np.split(column_of[firsts], ends[:-1])
    vocabulary = Vocabulary(*kernels.gathered(utf8, offsets, kept))
    return vocabulary, Counted([result[:3] for result in results], columns, len(kept), spread)


def count_terms(texts: Sequence[str], terms: Terms, known: Vocabulary | int, *, spread: Spread = serially) -> Counted:
    """The terms of a vocabulary; others do not count. With a number instead, all terms: the hash of a term gives its
    column, one of so many (those of scikit-learn's HashingVectorizer without signs), which it may share with others.
    """
    run = _Run(terms)
    columns = known if isinstance(known, int) else len(known)
    parts = spread(lambda chunk: run.count(texts[chunk], known)[:3], text_chunks(texts))
    return Counted(parts, [np.arange(columns, dtype=np.int32)] * len(parts), columns, spread)


class _Run:
    """What the kernels take besides texts, made once for all chunks."""

    def __init__(self, terms: Terms):
        self.terms = terms
        self.cases = np.arange(256, dtype=np.uint8)
        if terms.lowercase:
            self.cases[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
        # what becomes of a byte that is a word character by itself; 0 for the others
        self.plain = np.zeros(256, dtype=np.uint8)
        self.plain[:128] = np.where(_ascii_kinds() == kernels.WORD, self.cases[:128], 0)
        stop = [_encoded(word, terms.lowercase).translate(self.cases.tobytes()) for word in terms.stop_words]
        utf8, offsets = _as_arrays(stop)
        self.stopping = _table(utf8, offsets), utf8, offsets

    def count(self, texts: Sequence[str], known: Vocabulary | int | None) -> tuple[np.ndarray, ...]:
        """(entries of each document, their terms, their counts, utf8, offsets), the last two of what is learnt."""
        text, bounds = _as_arrays([_encoded(text, self.terms.lowercase) for text in texts])
        kinds = _ascii_kinds() if all(map(str.isascii, texts)) else character_kinds()
        terms = self.terms
        fixed = (
            text, bounds, kinds, self.cases, self.plain, terms.characters, terms.shortest, terms.longest,
            *self.stopping, np.zeros(3 * kernels.longest_of(bounds) + 4 + kernels.PADDING, np.uint8),
        )  # fmt: skip
        buckets = known if isinstance(known, int) else 0
        if isinstance(known, Vocabulary):
            table, utf8, offsets = known.table, known.utf8, known.offsets
        else:
            table, utf8 = np.zeros((1 << 13, 2), np.uint64), np.zeros(1 << 15, np.uint8)
            offsets = np.zeros(1 << 12, np.int64)
        place_of = np.full(max(buckets, len(offsets)), -1, np.int64)
        sizes = np.zeros(len(texts), np.int64)
        entries, counts = np.empty(len(text) // 2, np.int32), np.empty(len(text) // 2, np.int32)
        state = np.zeros(7, np.int64)
        state[kernels.LENGTH] = terms.shortest
        while True:
            kernels.count(*fixed, state, table, utf8, offsets, place_of, known is None, buckets, sizes, entries, counts)
            if state[kernels.LACKING] == kernels.ENTRIES:
                entries, counts = _doubled(entries), _doubled(counts)
            elif state[kernels.LACKING] == kernels.NEW_TERMS:
                table, offsets, place_of = kernels.doubled(table), _doubled(offsets), _doubled(place_of, -1)
            elif state[kernels.LACKING] == kernels.NEW_BYTES:
                utf8 = _doubled(utf8)
            else:
                break
        size, learnt = state[kernels.SIZE], state[kernels.TERMS]
        return sizes, entries[:size].copy(), counts[:size].copy(), utf8[: offsets[learnt]], offsets[: learnt + 1]


def _doubled(array: np.ndarray, filler: int | None = None) -> np.ndarray:
    larger = np.empty(2 * len(array), array.dtype)
    larger[: len(array)] = array
    if filler is not None:
        larger[len(array) :] = filler
    return larger


def _table(utf8: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return kernels.table_of(utf8, offsets, np.empty(len(offsets) - 1, np.int64))


def text_chunks(texts: Sequence[str]) -> list[slice]:
    """The texts in parts of about `CHUNK_CHARACTERS`."""
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    chunks, start = [], 0
    while start < len(texts):
        so_far = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, so_far + CHUNK_CHARACTERS, side="right")))
        chunks.append(slice(start, stop))
        start = stop
    return chunks


def _encoded(text: str, lowercase: bool) -> bytes:
    """UTF-8; kernels bring ASCII to lower case themselves."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.lower() if lowercase else text)
    return text.encode("utf-8", "surrogatepass")


def _as_arrays(encoded: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(all bytes and a few more, offsets)."""
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
    # a bytearray, since kernels are compiled for arrays that may be written
    return np.frombuffer(bytearray().join([*encoded, bytes(kernels.PADDING)]), dtype=np.uint8), offsets


def _slices(utf8: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    content = utf8.tobytes()
    return [content[start:end] for start, end in itertools.pairwise(offsets.tolist())]


def _order(utf8: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The order of some terms by their bytes: by the first ones as numbers and, where these are equal, by all."""
    words = kernels.leading_words(utf8, offsets, places, 3)
    order = np.lexsort(words[::-1])
    same = (words[:, order[1:]] == words[:, order[:-1]]).all(axis=0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    # a group is as many as follow each other with nothing but equal ones in between
    group = np.cumsum(~np.append(False, same))[tied].tolist()
    terms = _slices(*kernels.gathered(utf8, offsets, places[order[tied]]))
    order[tied] = order[tied][sorted(range(len(tied)), key=lambda nth: (group[nth], terms[nth]))]
    return order


def _side_by_side(parts: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """(utf8, offsets, documents, occurrences) of all chunks as one, in which terms come again."""
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
    """What each of Unicode's code points is to a word, by the tables of the running Python."""
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
