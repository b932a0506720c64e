"""Terms and their weights against scikit-learn, and what a word is in other scripts."""

from __future__ import annotations

import itertools
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

from xmckit.context import map_on_threads
from xmckit.sparse import text
from xmckit.sparse import text_kernels as kernels
from xmckit.sparse.text import Terms, Vocabulary, count_terms, learn_terms

ASCII = st.text(st.sampled_from("abAB zZ\t\n._,-09'\0\x1c\r"), max_size=60)
WORDS = st.lists(st.sampled_from(["the", "The", "cat", "a", "internationalisation", "x1", "_y", "..."]), max_size=12)
DOCUMENTS = st.lists(st.one_of(ASCII, WORDS.map(" ".join)), min_size=1, max_size=8)
TERMS = st.sampled_from(
    [
        Terms(),
        Terms(lowercase=False),
        Terms(longest=3),
        Terms(shortest=2, longest=2),
        Terms(stop_words=("the", "CAT", "internationalisation"), longest=2),
        Terms(characters=True, shortest=1, longest=1),
        Terms(characters=True, shortest=2, longest=5),
        Terms(characters=True, shortest=8, longest=12, lowercase=False),
    ]
)


def scikit_learn(terms, cls=TfidfVectorizer, **options):
    return cls(
        analyzer="char_wb" if terms.characters else "word",
        ngram_range=(terms.shortest, terms.longest),
        lowercase=terms.lowercase,
        stop_words=[word.lower() for word in terms.stop_words] or None,
        **options,
    )


def tfidf(texts, terms, *, sublinear, **options):
    vocabulary, counted = learn_terms(texts, terms, **options)
    idf = np.log((1 + len(texts)) / (1 + counted.documents())) + 1
    return vocabulary, idf, counted.weighted(idf, sublinear=sublinear)


def assert_same(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.has_canonical_format
    assert ours.dtype == np.float32
    theirs = theirs.tocsr()
    theirs.sort_indices()
    np.testing.assert_array_equal(ours.indptr, theirs.indptr)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-6)


@given(DOCUMENTS, TERMS, st.booleans(), st.integers(1, 3), st.sampled_from([0.4, 0.7, 1.0]))
@settings(deadline=None, max_examples=300, derandomize=True)
def test_ascii_gives_scikit_learns_matrix(texts, terms, sublinear, least, share):
    other = scikit_learn(terms, min_df=least, max_df=share, sublinear_tf=sublinear)
    try:
        theirs = other.fit_transform(texts)
    except ValueError:  # scikit-learn has no empty vocabulary, or min_df is above max_df
        vocabulary, _ = learn_terms(texts, terms, min_documents=least, max_documents=share * len(texts))
        assert len(vocabulary) == 0
        return
    vocabulary, idf, ours = tfidf(
        texts, terms, sublinear=sublinear, min_documents=least, max_documents=share * len(texts)
    )
    assert vocabulary.terms() == other.get_feature_names_out().tolist()
    assert_same(ours, theirs)
    unseen = ["the unseen cat", "", *texts[::-1]]
    assert_same(count_terms(unseen, terms, vocabulary).weighted(idf, sublinear=sublinear), other.transform(unseen))


@given(DOCUMENTS, TERMS, st.sampled_from([1, 7, 1 << 18]))
@settings(deadline=None, max_examples=150, derandomize=True)
def test_hashed_columns_are_scikit_learns(texts, terms, buckets):
    other = scikit_learn(terms, HashingVectorizer, n_features=buckets, alternate_sign=False, norm="l2")
    counted = count_terms(texts, terms, buckets)
    theirs = other.transform(texts)
    assert_same(counted.weighted(np.ones(buckets), sublinear=False), theirs)
    np.testing.assert_array_equal(counted.documents(), np.bincount(theirs.indices, minlength=buckets))


@given(DOCUMENTS, TERMS, st.integers(1, 6))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_most_frequent_terms_stay(texts, terms, most):
    whole, counted = learn_terms(texts, terms)
    occurrences = np.asarray(counted.weighted(np.ones(len(whole)), sublinear=False, unit=False).sum(axis=0)).ravel()
    best = sorted(range(len(whole)), key=lambda term: (-occurrences[term], term))[:most]
    vocabulary, _ = learn_terms(texts, terms, max_terms=most)
    assert vocabulary.terms() == [whole.terms()[term] for term in sorted(best)]


# Latin, Greek, Cyrillic, Hebrew, Arabic, Korean, emoji, symbols and spaces: words are scikit-learn's.
SPACED = st.text(st.sampled_from("aÉßñ Σσς дЯ שλ كتاب 한국 🙂👩‍💻 ½²€…\u00a0\u2003_9"), max_size=40)


@given(st.lists(SPACED, min_size=1, max_size=5), TERMS)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_scripts_with_spaces_give_scikit_learns_matrix(texts, terms):
    texts = [unicodedata.normalize("NFC", each) for each in texts]
    other = scikit_learn(terms, sublinear_tf=True)
    try:
        theirs = other.fit_transform(texts)
    except ValueError:
        assert len(learn_terms(texts, terms)[0]) == 0
        return
    vocabulary, _, ours = tfidf(texts, terms, sublinear=True)
    assert vocabulary.terms() == other.get_feature_names_out().tolist()
    assert_same(ours, theirs)


def words_of(document, **options):
    vocabulary, counted = learn_terms([document], Terms(**options))
    counts = counted.weighted(np.ones(len(vocabulary)), sublinear=False, unit=False).toarray()[0]
    return {word: int(count) for word, count in zip(vocabulary.terms(), counts, strict=True)}


def test_words_in_other_scripts():
    assert words_of("我们学习中文，中文 好。") == {"我们": 1, "们学": 1, "学习": 1, "习中": 1, "中文": 2, "好": 1}
    assert words_of("Python入門2024年") == {"python": 1, "入門": 1, "2024": 1, "年": 1}
    assert words_of("لغةٌ عربيّة") == {"لغةٌ": 1, "عربيّة": 1}
    assert words_of("हिन्दी भाषा") == {"हिन्दी": 1, "भाषा": 1}
    assert words_of("ภาษาไทย") == {"ภา": 1, "าษ": 1, "ษา": 1, "าไ": 1, "ไท": 1, "ทย": 1}
    assert words_of("ที่นี่") == {"ที่นี่": 1}  # two characters, each with its marks
    assert words_of("한국어 문서") == {"한국어": 1, "문서": 1}
    assert words_of("🙂 👩‍💻 ok🙂ay a🙂") == {"ok": 1, "ay": 1}
    assert words_of("ok🙂", characters=True, shortest=3, longest=3) == {" ok": 1, "ok🙂": 1, "k🙂 ": 1}


def test_a_letter_with_a_mark_is_one_character_however_it_was_typed():
    assert words_of("cafe\u0301 CAFÉ café") == {"café": 3}
    assert words_of("e\u0301 \u0301x") == {}  # one character, and a mark without a letter
    assert words_of("q\u0301q") == {"q\u0301q": 1}


def test_stop_words_of_scripts_without_spaces():
    assert words_of("我们学习", stop_words=("们学",)) == {"我们": 1, "学习": 1}


def reference_words(document):
    """The rule as it is written down, by regular expressions over one letter per character."""
    document = unicodedata.normalize("NFC", document.lower())
    kinds = "".join("owmus"[kind_of(character)] for character in document)
    words = []
    for run in re.finditer(r"(?:wm*)+|(?:um*)+", kinds):
        characters = [document[run.start() + c.start() : run.start() + c.end()] for c in re.finditer(r"[wu]m*", run[0])]
        if run[0][0] == "w":
            words += ["".join(characters)] if len(characters) > 1 else []
        else:
            words += ["".join(pair) for pair in itertools.pairwise(characters)] or characters
    return sorted(words)


def kind_of(character):
    return int(text.character_kinds()[ord(character)])


@given(st.text(max_size=30) | st.text(st.sampled_from("ab 中文字ไทยที่\u0301\u0e34नि🙂_1"), max_size=30))
@settings(deadline=None, max_examples=300, derandomize=True)
def test_any_text_is_cut_by_the_rule(document):
    found = words_of(document)
    assert sorted(word for word, count in found.items() for _ in range(count)) == reference_words(document)


def test_kinds_are_those_of_python():
    kinds = text.character_kinds()
    word = re.compile(r"\w")
    for code in [*range(0x3000), 0x4E00, 0x1F642, 0x10FFFF, 0xD800]:
        assert (kinds[code] in (1, 3)) == bool(word.match(chr(code)))
        assert (kinds[code] == 4) == chr(code).isspace()


def test_neither_chunks_nor_workers_change_a_bit(monkeypatch):
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in 300 * rng.random(rng.integers(0, 60)) ** 3 // 1) for _ in range(200)]
    texts[7] = texts[7] + " 中文字"
    whole = tfidf(texts, Terms(longest=2), sublinear=True, min_documents=2)
    monkeypatch.setattr(text, "CHUNK_CHARACTERS", 500)
    for workers in (1, 3):
        parts = tfidf(
            texts,
            Terms(longest=2),
            sublinear=True,
            min_documents=2,
            spread=lambda function, items, workers=workers: map_on_threads(function, items, workers=workers),
        )
        assert parts[0].terms() == whole[0].terms()
        np.testing.assert_array_equal(parts[1], whole[1])
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(parts[2], part), getattr(whole[2], part))


def test_room_grows_within_a_document():
    document = " ".join(f"word{number:06d}" for number in range(20_000))
    vocabulary, counted = learn_terms([document, "word000001"], Terms(longest=2))
    assert len(vocabulary) == 39_999
    assert counted.documents()[vocabulary.terms().index("word000001")] == 2


def test_terms_with_equal_keys_are_told_apart():
    vocabulary = Vocabulary.from_terms(["internationally", "international-1"])
    utf8, offsets = vocabulary.utf8, vocabulary.offsets
    table = np.zeros((8, 2), np.uint64)
    key, mask = np.uint64(12345), np.uint64(7)

    def find(term):
        begin, end = (int(utf8.ctypes.data + offset) for offset in offsets[term : term + 2])
        return int(kernels._find(begin, end, key, table.ctypes.data, mask, utf8.ctypes.data, offsets.ctypes.data))

    slot = find(0)
    table[slot] = key, np.uint64(15 << 32 | 1)
    assert find(0) == slot
    assert find(1) == (slot + 1) % 8
    table[find(1)] = key, np.uint64(15 << 32 | 2)
    assert find(1) == (slot + 1) % 8


def test_no_texts_and_empty_texts():
    for texts in ([], [""], ["", " . "]):
        vocabulary, counted = learn_terms(texts, Terms())
        assert len(vocabulary) == 0
        assert counted.weighted(np.ones(0), sublinear=True).shape == (len(texts), 0)
    known = Vocabulary.from_terms(["cat", "dog"])
    assert count_terms(["", "none"], Terms(), known).weighted(np.ones(2), sublinear=True).nnz == 0


@pytest.mark.parametrize("broken", ["\ud800abc def", "abc\udfffdef"])
def test_lone_surrogates_are_no_word_characters(broken):
    assert set(words_of(broken)) == {"abc", "def"}


@pytest.mark.parametrize("characters", [False, True])
def test_terms_longer_than_any_text_cost_nothing(characters):
    texts, whole = ["one two  three", "four"], Terms(characters=characters, longest=20)
    vocabulary, _ = learn_terms(texts, Terms(characters=characters, longest=2**31 - 1))
    assert vocabulary.terms() == learn_terms(texts, whole)[0].terms()
    vocabulary, _ = learn_terms(texts, Terms(characters=characters, shortest=10**6, longest=2**31 - 1))
    assert vocabulary.terms() == ([" four ", " one ", " three ", " two "] if characters else [])


def test_no_texts_have_no_terms():
    vocabulary, counted = learn_terms([], Terms())
    assert (len(vocabulary), counted.documents().tolist()) == (0, [])
    assert counted.weighted(np.ones(0), sublinear=True).shape == (0, 0)
