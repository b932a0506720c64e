from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError
from scipy.sparse import csc_matrix, csr_array, csr_matrix, issparse

from xmckit import store
from xmckit.components import featurizers as features
from xmckit.components.featurizers import Blocks, Tfidf
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import DataError, StorageError, UsageError
from xmckit.protocols import Featurizer
from xmckit.sparse import text

CONTEXT = Context()
TEXTS = [
    "The cat sat on the mat",
    "the dog ate the cat's food",
    "",
    "Zwölf Katzen, zwölf Hunde; name_read name_read x",
    "dog dog dog name_read zwölf",
    "a b c !",
]


def split_of(X=None, texts=None, labels: int = 2) -> Split:
    rows = (
        len(texts) if texts is not None else features._named_blocks(Split(X, csr_matrix((0, 0)))).popitem()[1].shape[0]
    )
    return Split(X=X, Y=csr_matrix((rows, labels), dtype=np.float32), texts=texts)


def fitted(featurizer, train: Split):
    featurizer.fit(train, context=CONTEXT)
    return featurizer


def reloaded(featurizer, folder):
    folder.mkdir()
    featurizer.save(folder)
    return type(featurizer).load(folder, context=CONTEXT)


def dense(matrix) -> np.ndarray:
    return matrix.toarray() if issparse(matrix) else matrix


def assert_same_bits(a, b) -> None:
    assert (type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape)
    if issparse(a):
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
    else:
        np.testing.assert_array_equal(a, b)


def random_csr(rows: int = 7, columns: int = 5, seed: int = 0, dtype=np.float32) -> csr_matrix:
    rng = np.random.default_rng(seed)
    return csr_matrix((rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)).astype(dtype))


@pytest.mark.parametrize("featurizer", [Blocks(), Tfidf()])
def test_both_keep_the_contract(featurizer):
    assert isinstance(featurizer, Featurizer)
    with pytest.raises(UsageError, match="before fit"):
        featurizer.transform(split_of(random_csr(), texts=["x"] * 7), context=CONTEXT)


# --- blocks

finite = st.floats(-(2.0**100), 2.0**100, width=32)


@st.composite
def three_blocks(draw):
    rows = draw(st.integers(1, 6))
    width = st.integers(1, 4)
    arrays = [
        draw(hnp.arrays(np.float32, (rows, draw(width)), elements=st.one_of(st.just(0.0), finite))) for _ in range(3)
    ]
    return {"tfidf": csr_matrix(arrays[0]), "dense": arrays[1], "more": csc_matrix(arrays[2])}


def reference(block: np.ndarray, *, idf: bool, unit: bool, weight: float) -> np.ndarray:
    values = block.astype(np.float64)
    if idf:
        seen = (block != 0).sum(axis=0)
        values = values * (np.log((1 + len(block)) / (1 + seen)) + 1)
    if unit:
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        values = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    return values * weight


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    X=three_blocks(),
    normalise=st.sampled_from(["none", "l2"]),
    own=st.sampled_from([None, "none", "l2"]),
    idf=st.booleans(),
    weight=st.floats(0.125, 8),
)
def test_blocks_against_dense_arithmetic(X, normalise, own, idf, weight):
    before = {name: dense(block).copy() for name, block in X.items()}
    blocks = Blocks(
        normalise=normalise, idf=idf, blocks={"dense": {"normalise": own, "weight": weight}, "more": {"idf": False}}
    )
    result = fitted(blocks, split_of(X)).transform(split_of(X), context=CONTEXT)
    expected = np.hstack(
        [
            reference(before["tfidf"], idf=idf, unit=normalise == "l2", weight=1),
            reference(before["dense"], idf=False, unit=(own or normalise) == "l2", weight=weight),
            reference(before["more"], idf=False, unit=normalise == "l2", weight=1),
        ]
    )
    assert isinstance(result, csr_matrix)
    assert result.dtype == np.float32
    assert result.has_canonical_format
    np.testing.assert_allclose(result.toarray(), expected, rtol=1e-6, atol=1e-37)
    for name, block in X.items():
        np.testing.assert_array_equal(dense(block), before[name])


def test_weighting_does_not_depend_on_how_many_rows_are_done_at_once(monkeypatch):
    X = {"s": random_csr(), "d": np.random.default_rng(1).normal(size=(7, 3))}
    blocks = fitted(Blocks(normalise="l2", idf=True, blocks={"d": {"weight": 3}}), split_of(X))
    whole = blocks.transform(split_of(X), context=CONTEXT)
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 2)
    assert_same_bits(blocks.transform(split_of(X), context=CONTEXT), whole)


@pytest.mark.parametrize(
    "X",
    [
        random_csr(),
        np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
        csr_matrix((3, 0), dtype=np.float32),
    ],
)
def test_nothing_to_change_is_the_same_object(X):
    assert fitted(Blocks(), split_of(X)).transform(split_of(X), context=CONTEXT) is X
    assert fitted(Blocks(), split_of({"only": X})).transform(split_of({"only": X}), context=CONTEXT) is X


def test_all_dense_blocks_stay_dense():
    X = {"a": np.eye(3), "b": np.ones((3, 2), dtype=np.float16)}
    result = fitted(Blocks(blocks={"b": {"normalise": "l2"}}), split_of(X)).transform(split_of(X), context=CONTEXT)
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.hstack([np.eye(3), np.full((3, 2), 0.5**0.5)]), rtol=1e-6)


def test_any_sparse_input_becomes_canonical_csr_and_is_not_changed():
    messy = csr_matrix((np.array([1.0, 2.0, 0.0, 4.0]), np.array([2, 0, 1, 2]), np.array([0, 4])), shape=(1, 3))
    result = fitted(Blocks(), split_of(messy)).transform(split_of(messy), context=CONTEXT)
    assert result.indices.tolist() == [0, 2]
    assert result.data.tolist() == [2, 5]
    assert messy.indices.tolist() == [2, 0, 1, 2]
    for X in (csr_array(random_csr()), csc_matrix(random_csr()), random_csr(dtype=np.float64)):
        result = fitted(Blocks(), split_of(X)).transform(split_of(X), context=CONTEXT)
        assert type(result) is csr_matrix
        np.testing.assert_array_equal(result.toarray(), X.toarray().astype(np.float32))


def test_idf_comes_from_train_and_counts_no_stored_zeros():
    train = csr_matrix((np.array([1.0, 0.0, 5.0]), np.array([0, 1, 1]), np.array([0, 2, 3])), shape=(2, 3))
    test = csr_matrix(np.ones((1, 3), dtype=np.float32))
    result = fitted(Blocks(idf=True), split_of(train)).transform(split_of(test), context=CONTEXT)
    np.testing.assert_allclose(result.toarray()[0], [np.log(3 / 2) + 1, np.log(3 / 2) + 1, np.log(3) + 1], rtol=1e-6)


def test_blocks_are_put_in_the_order_that_was_fitted():
    X = {"a": np.ones((2, 1)), "b": np.zeros((2, 2))}
    blocks = fitted(Blocks(), split_of(X))
    np.testing.assert_array_equal(
        blocks.transform(split_of(dict(reversed(X.items()))), context=CONTEXT), [[1, 0, 0], [1, 0, 0]]
    )


@pytest.mark.parametrize("name", ["sparse", "file", "a/b"])
def test_blocks_saved_and_loaded_give_the_same_bits(tmp_path, name):
    X = {"dense": np.random.default_rng(3).normal(size=(7, 3)), name: random_csr()}
    blocks = fitted(Blocks(normalise="l2", idf=True, blocks={"dense": {"weight": 0.3}}), split_of(X))
    again = reloaded(blocks, tmp_path / "saved")
    assert again.params == blocks.params
    assert_same_bits(again.transform(split_of(X), context=CONTEXT), blocks.transform(split_of(X), context=CONTEXT))


def test_block_names_and_widths_are_checked():
    X = {"words": random_csr(), "vectors": np.ones((7, 2))}
    with pytest.raises(DataError, match="'vector', but the data has words, vectors; did you mean 'vectors'"):
        Blocks(blocks={"vector": {"weight": 2}}).fit(split_of(X), context=CONTEXT)
    with pytest.raises(DataError, match="'words', but the data has X"):
        Blocks(blocks={"words": {}}).fit(split_of(random_csr()), context=CONTEXT)
    with pytest.raises(DataError, match="vectors asks for idf, but this block is dense"):
        Blocks(blocks={"vectors": {"idf": True}}).fit(split_of(X), context=CONTEXT)
    blocks = fitted(Blocks(), split_of(X))
    with pytest.raises(DataError, match=r"fitted on words with 5 columns, vectors with 2 columns, but .* words with 4"):
        blocks.transform(split_of({**X, "words": random_csr(columns=4)}), context=CONTEXT)
    with pytest.raises(DataError, match="these rows have X with 5 columns"):
        blocks.transform(split_of(random_csr()), context=CONTEXT)
    for wrong in (
        {"normalise": "l1"},
        {"blocks": {"a": {"weigth": 1}}},
        {"blocks": {"a": {"weight": 0}}},
        {"idff": True},
    ):
        with pytest.raises(ValidationError):
            Blocks(**wrong)


def test_blocks_of_texts_say_what_to_do():
    with pytest.raises(DataError, match=r'add `\[features\] use = "tfidf"`'):
        Blocks().fit(split_of(texts=TEXTS), context=CONTEXT)


@pytest.mark.parametrize("make", [csr_matrix, np.asarray])
def test_values_beyond_float32_are_refused_with_their_row(make):
    X = make(np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1e39]]))
    with pytest.raises(DataError, match="row 2: features X have a value"):
        fitted(Blocks(), split_of(X)).transform(split_of(X), context=CONTEXT)
    large = make(np.array([[1.0], [3e38]], dtype=np.float32))
    with pytest.raises(DataError, match="row 1: features X have a value"):
        fitted(Blocks(blocks={"X": {"weight": 100}}), split_of(large)).transform(split_of(large), context=CONTEXT)


# --- tfidf


def sklearn_tfidf(texts, **options):
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(dtype=np.float32, **options).fit(texts)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"min_df": 2, "sublinear_tf": True}),
        ({"min_count": 1, "sublinear": False}, {"min_df": 1}),
        ({"min_count": 1, "ngrams": 2}, {"ngram_range": (1, 2), "sublinear_tf": True}),
        ({"min_count": 1, "lowercase": False}, {"lowercase": False, "sublinear_tf": True}),
        # Two are above all others: which of equals scikit-learn keeps depends on the processor.
        ({"min_count": 1, "max_features": 2}, {"max_features": 2, "sublinear_tf": True}),
    ],
)
def test_tfidf_is_scikit_learns(ours, theirs):
    tfidf = fitted(Tfidf(**ours), split_of(texts=TEXTS))
    other = sklearn_tfidf(TEXTS, **theirs)
    for texts in (TEXTS, ["the unseen dog", "nothing known", "ZWÖLF zwölf name_read"]):
        result = tfidf.transform(split_of(texts=texts), context=CONTEXT)
        assert type(result) is csr_matrix
        assert result.dtype == np.float32
        assert result.has_sorted_indices
        np.testing.assert_allclose(result.toarray(), other.transform(texts).toarray(), rtol=1e-6)


def test_tfidf_by_hand():
    tfidf = fitted(Tfidf(min_count=1), split_of(texts=["dog dog cat", "dog name_x1 a"]))
    row = tfidf.transform(split_of(texts=["Dog dog cat"]), context=CONTEXT).toarray()[0]
    dog, cat = (1 + np.log(2)) * 1, np.log(3 / 2) + 1
    assert tfidf.words() == ["cat", "dog", "name_x1"]
    np.testing.assert_allclose(row, np.array([cat, dog, 0]) / np.hypot(cat, dog), rtol=1e-6)


def test_empty_rows_stay_empty_and_others_have_length_one():
    result = fitted(Tfidf(), split_of(texts=TEXTS)).transform(split_of(texts=TEXTS), context=CONTEXT)
    lengths = np.linalg.norm(result.toarray(), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 0, 1, 1, 0], rtol=1e-6)


def test_texts_in_chunks_give_the_same_bits(monkeypatch):
    tfidf = fitted(Tfidf(), split_of(texts=TEXTS))
    whole = tfidf.transform(split_of(texts=TEXTS), context=CONTEXT)
    monkeypatch.setattr(text, "CHUNK_CHARACTERS", 20)
    assert_same_bits(tfidf.transform(split_of(texts=TEXTS), context=CONTEXT), whole)
    assert_same_bits(fitted(Tfidf(), split_of(texts=TEXTS)).transform(split_of(texts=TEXTS), context=CONTEXT), whole)


def test_raw_texts_without_labels_and_no_texts_at_all():
    tfidf = fitted(Tfidf(), split_of(texts=TEXTS))
    assert tfidf.transform(split_of(texts=("the dog",), labels=0), context=CONTEXT).nnz == 2
    assert tfidf.transform(split_of(texts=[], labels=0), context=CONTEXT).shape == (0, len(tfidf.words()))


def test_tfidf_loaded_in_a_fresh_process_gives_the_same_bits(tmp_path):
    train = split_of({"v": np.random.default_rng(0).normal(size=(6, 2))}, texts=TEXTS)
    tfidf = fitted(Tfidf(with_blocks=True, ngrams=2, min_count=1), train)
    saved = tmp_path / "saved"
    again = reloaded(tfidf, saved)
    expected = tfidf.transform(train, context=CONTEXT)
    assert_same_bits(again.transform(train, context=CONTEXT), expected)

    store.write_strings(tmp_path / "texts.npz", TEXTS)
    np.save(tmp_path / "v.npy", train.X["v"])
    script = """
        import sys
        from pathlib import Path
        import numpy as np
        from scipy.sparse import csr_matrix
        from xmckit import store
        from xmckit.context import Context
        from xmckit.data.model import Split
        from xmckit.components.featurizers import Tfidf
        folder = Path(sys.argv[1])
        texts = store.read_strings(folder / "texts.npz")
        split = Split({"v": np.load(folder / "v.npy")}, csr_matrix((len(texts), 0)), texts)
        tfidf = Tfidf.load(folder / "saved", context=Context())
        store.write_csr(folder / "result.npz", tfidf.transform(split, context=Context()))
    """
    subprocess.run([sys.executable, "-c", dedent(script), str(tmp_path)], check=True)
    assert_same_bits(store.read_csr(tmp_path / "result.npz"), expected)
    assert {path.name for path in saved.iterdir()} == {"params.json", "blocks.json", "words.npz", "idf.npz"}


def test_tfidf_with_blocks_beside_the_words():
    X = {"v": np.arange(12.0).reshape(6, 2), "s": random_csr(6)}
    words = fitted(Tfidf(), split_of(texts=TEXTS)).transform(split_of(texts=TEXTS), context=CONTEXT)
    train = split_of(X, texts=TEXTS)
    both = fitted(Tfidf(with_blocks=True), train)
    np.testing.assert_array_equal(
        both.transform(train, context=CONTEXT).toarray(), np.hstack([words.toarray(), X["v"], X["s"].toarray()])
    )
    with pytest.raises(DataError, match="texts but no feature matrix"):
        both.transform(split_of(texts=TEXTS), context=CONTEXT)
    with pytest.raises(DataError, match="fitted on v with 2 columns, s with 5"):
        both.transform(split_of({"v": X["v"]}, texts=TEXTS), context=CONTEXT)


def test_blocks_that_tfidf_leaves_out_are_mentioned():
    said = []
    Tfidf().fit(split_of(random_csr(6), texts=TEXTS), context=Context(log=said.append))
    assert len(said) == 1
    assert "with_blocks" in said[0]


@pytest.mark.parametrize("texts", [["one", "two"], ["", ""], ["a b", "a b"], ["dog"]])
def test_an_empty_vocabulary_is_an_error(texts):
    with pytest.raises(DataError, match=f"no word occurs in at least 2 of the {len(texts)} training texts"):
        Tfidf().fit(split_of(texts=texts), context=CONTEXT)


def test_tfidf_without_texts_says_what_to_do():
    tfidf = fitted(Tfidf(), split_of(texts=TEXTS))
    for call in (tfidf.fit, tfidf.transform):
        with pytest.raises(DataError, match='use = "blocks"'):
            call(split_of(random_csr()), context=CONTEXT)


def test_damaged_files_name_themselves(tmp_path):
    tfidf = fitted(Tfidf(), split_of(texts=TEXTS))
    folder = tmp_path / "saved"
    reloaded(tfidf, folder)
    store.write_strings(folder / "words.npz", ["too", "few"])
    with pytest.raises(StorageError, match=r"idf\.npz.*damaged"):
        Tfidf.load(folder, context=CONTEXT)
    (folder / "words.npz").write_bytes(b"PK nonsense")
    with pytest.raises(StorageError, match=r"words\.npz.*damaged"):
        Tfidf.load(folder, context=CONTEXT)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"max_share": 0.4}, {"min_df": 2, "max_df": 0.4}),
        (
            {"stop_words": ["the", "Dog"], "ngrams": 2},
            {"min_df": 2, "stop_words": ["the", "dog"], "ngram_range": (1, 2)},
        ),
        (
            {"terms": "characters", "shortest": 2, "ngrams": 4},
            {"min_df": 2, "analyzer": "char_wb", "ngram_range": (2, 4)},
        ),
    ],
)
def test_stop_words_shares_and_characters_are_scikit_learns(tmp_path, ours, theirs):
    tfidf = fitted(Tfidf(**ours), split_of(texts=TEXTS))
    other = sklearn_tfidf(TEXTS, sublinear_tf=True, **theirs)
    assert tfidf.words() == other.get_feature_names_out().tolist()
    for texts in (TEXTS, ["the unseen dog", "nothing known"]):
        expected = other.transform(texts).toarray()
        result = tfidf.transform(split_of(texts=texts), context=CONTEXT)
        np.testing.assert_allclose(result.toarray(), expected, rtol=1e-6)
    again = reloaded(tfidf, tmp_path / "saved").transform(split_of(texts=TEXTS), context=CONTEXT)
    assert_same_bits(again, tfidf.transform(split_of(texts=TEXTS), context=CONTEXT))


def test_hashed_words_have_weights_but_no_vocabulary(tmp_path):
    tfidf = fitted(Tfidf(buckets=64), split_of(texts=TEXTS))
    result = tfidf.transform(split_of(texts=TEXTS), context=CONTEXT)
    assert result.shape == (6, 64)
    np.testing.assert_allclose(np.linalg.norm(result.toarray(), axis=1), [1, 1, 0, 1, 1, 0], rtol=1e-6)
    again = reloaded(tfidf, tmp_path / "saved")
    assert_same_bits(again.transform(split_of(texts=TEXTS), context=CONTEXT), result)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"params.json", "blocks.json", "idf.npz"}
    assert tfidf.words() == []
    store.write_arrays(tmp_path / "saved" / "idf.npz", {"idf": np.ones(63)})
    with pytest.raises(StorageError, match=r"idf\.npz.*damaged"):
        Tfidf.load(tmp_path / "saved", context=CONTEXT)


def test_counts_of_the_fitted_texts_are_used_once_and_only_for_them():
    train = split_of(texts=TEXTS)
    tfidf = fitted(Tfidf(), train)
    other = tfidf.transform(split_of(texts=[*TEXTS, "dog"]), context=CONTEXT)
    first, second = (tfidf.transform(train, context=CONTEXT) for _ in range(2))
    assert_same_bits(first, second)
    assert_same_bits(other[:6], first)
    assert_same_bits(fitted(Tfidf(), train).transform(train, context=CONTEXT), first)


def test_texts_in_other_scripts_become_rows():
    texts = ["中文文本分类", "中文文本", "كتاب جديد", "كتاب قديم", "ภาษาไทย", "ภาษา", "🙂🙂", ""]
    tfidf = fitted(Tfidf(), split_of(texts=texts))
    lengths = np.linalg.norm(tfidf.transform(split_of(texts=texts), context=CONTEXT).toarray(), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 1, 1, 1, 1, 0, 0], rtol=1e-6)
    assert {"中文", "文本", "كتاب"} <= set(tfidf.words())


def test_a_vocabulary_that_vanishes_says_what_to_change():
    texts = ["same words", "same words"]
    with pytest.raises(DataError, match=r"at least 1 and in at most 50% of the 2 .* raise features\.max_share"):
        Tfidf(min_count=1, max_share=0.5).fit(split_of(texts=texts), context=CONTEXT)
    with pytest.raises(DataError, match="no sequence of characters occurs in at least 2 of the 2"):
        Tfidf(terms="characters", ngrams=3).fit(split_of(texts=["", " "]), context=CONTEXT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shortest": 2},
        {"terms": "letters"},
        {"buckets": 0},
        {"max_share": 1.5},
        {"terms": "characters", "stop_words": ["the"]},
    ],
)
def test_wrong_tfidf_parameters_are_refused(wrong):
    with pytest.raises(ValidationError):
        Tfidf(**wrong)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes"])
def test_a_text_that_is_none_has_its_row_named(wrong):
    with pytest.raises(DataError, match=f"row 1: a text is a {type(wrong).__name__}, expected a string"):
        fitted(Tfidf(min_count=1), split_of(texts=["one two", wrong]))


def test_weights_learned_from_sparse_rows_are_for_dense_ones_too():
    X = random_csr()
    blocks = fitted(Blocks(idf=True, normalise="l2"), split_of(X))
    expected = blocks.transform(split_of(X), context=CONTEXT)
    assert_same_bits(blocks.transform(split_of(X.toarray()), context=CONTEXT), expected)


@pytest.mark.parametrize("weights", [np.ones(4), np.ones((5, 1)), np.ones(5, int), np.full(5, np.nan), np.zeros(5)])
def test_stored_weights_that_are_not_one_number_above_0_a_column(tmp_path, weights):
    fitted(Blocks(idf=True), split_of(random_csr())).save(tmp_path)
    store.write_arrays(tmp_path / "idf.npz", {"block0": weights})
    with pytest.raises(StorageError, match=r"idf.npz.*weights"):
        Blocks.load(tmp_path, context=CONTEXT)
    tfidf = fitted(Tfidf(min_count=1), split_of(texts=["aa bb cc dd ee"]))
    tfidf.save(tmp_path)
    store.write_arrays(tmp_path / "idf.npz", {"idf": weights})
    with pytest.raises(StorageError, match=r"idf.npz.*weights"):
        Tfidf.load(tmp_path, context=CONTEXT)


@pytest.mark.parametrize(
    ("utf8", "offsets"),
    [
        (b"aabb", [0.0, 2.0, 4.0]),
        (b"aabb", [[0, 2, 4]]),
        (b"aabb", np.zeros(0, np.int64)),
        (b"aabb", [0, 2, 400]),
        (b"aabb", [1, 2, 4]),
        (b"aabbc", [0, 2, 4]),
        (b"aabbcc", [0, 4, 2, 6]),
    ],
)
def test_stored_words_with_damaged_offsets(tmp_path, utf8, offsets):
    fitted(Tfidf(min_count=1), split_of(texts=["aa bb"])).save(tmp_path)
    arrays = {"utf8": np.frombuffer(utf8, np.uint8), "offsets": np.asarray(offsets)}
    store.write_arrays(tmp_path / "words.npz", arrays)
    with pytest.raises(StorageError, match=r"words.npz.*offsets"):
        Tfidf.load(tmp_path, context=CONTEXT)


def test_a_broken_matrix_is_found_before_kernels_read_it():
    for part, value in (("indices", 10**8), ("indices", -1), ("indptr", 10**6)):
        broken = random_csr().copy()
        getattr(broken, part)[1] = value
        with pytest.raises(DataError, match="feature block X is not a sound CSR matrix"):
            fitted(Blocks(idf=True), split_of(broken))
