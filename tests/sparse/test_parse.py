"""The text kernel: numbers against Python's float, rows with any chunks, tables of integers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit.sparse import parse_kernels as kernels
from xmckit.sparse.parse import Grammar, TextError, WrongRows, parse_integers, parse_rows


def bytes_of(text):
    return np.frombuffer(text, dtype=np.uint8)


def parsed_values(numbers):
    """The numbers as the kernel reads them, one a row."""
    text = "".join(f"0:{number}\n" for number in numbers).encode()
    return parse_rows(bytes_of(text), 0, Grammar(has_labels=False, features=1)).values


def expected_values(numbers):
    return np.array([np.float32(float(number)) for number in numbers], dtype=np.float32)


digits = st.text("0123456789", max_size=30)
decimals = st.builds(
    lambda sign, whole, point, fraction, exponent: sign + (whole or ("" if point and fraction else "0"))
    + (point + fraction if point else "") + exponent,
    st.sampled_from(["", "-", "+"]), digits, st.sampled_from(["", "."]), digits,
    st.just("") | st.builds(lambda e, s, n: f"{e}{s}{n}", st.sampled_from("eE"), st.sampled_from(["", "-", "+"]),
                            st.integers(0, 30)),
)  # fmt: skip


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(decimals, min_size=1, max_size=30))
def test_decimals_are_what_float_gives(numbers):
    numbers = [number for number in numbers if abs(float(number)) < 3e38]
    assert np.array_equal(parsed_values(numbers), expected_values(numbers))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_shortest_and_longest_spellings_of_float32(floats):
    for spell in (repr, "{:.9g}".format, "{:.17g}".format, "{:.60f}".format):
        numbers = [spell(number) for number in floats]
        assert np.array_equal(parsed_values(numbers), np.array(floats, dtype=np.float32))


def test_numbers_at_the_middle_between_two_float32():
    """Where one decimal more or less decides, and where the first rounding, to double, already has."""
    rng = np.random.default_rng(0)
    floats = rng.integers(1, 0x7F7FFFFF, 500, dtype=np.uint32).view(np.float32)
    numbers = []
    for number in floats:
        middle = (float(number) + float(np.nextafter(number, np.float32(np.inf)))) / 2
        exact = f"{middle:.200f}" if middle < 1 else f"{middle:.160f}"
        numbers += [repr(middle), exact, exact[:-1] + "1", repr(np.nextafter(middle, 0).item())]
        numbers += [f"{middle:.17g}", f"{middle:.18g}", f"{middle:.25e}"]
    numbers = [number for number in numbers if float(number) < 3e38]
    assert np.array_equal(parsed_values(numbers), expected_values(numbers))


def test_extreme_exponents():
    numbers = [
        "1e-45", "7e-46", "7.1e-46", "1e-60", "1e-400", "0e999999999999999999999", "3.4028235e38",
        "0." + "0" * 400 + "1e400", "1" + "0" * 400 + "e-400", "9007199254740993", "1e22", "1e23", "123456789e-23",
    ]  # fmt: skip
    assert np.array_equal(parsed_values(numbers), expected_values(numbers))


@pytest.mark.parametrize("number", ["3.4028236e38", "1e39", "-1e39", "1e400", "nan", "-NaN", "inf", "Infinity"])
def test_what_float32_cannot_hold(number):
    with pytest.raises(TextError) as caught:
        parsed_values(["1", number])
    assert caught.value.code == kernels.NOT_FINITE
    assert caught.value.position == len("0:1\n0:")


ROWS = b"3,1 5:1 2:2 9:3\r\n 1:.5\n\n7:7\n0\n8,2,5\t1:1  \n1 1:12345678901234567890"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 5, 7, 13, 20, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_and_threads_do_not_matter(chunk_bytes, threads):
    with ThreadPoolExecutor(threads) as pool:
        rows = parse_rows(
            bytes_of(ROWS), 0, Grammar(), chunk_bytes=chunk_bytes, spread=lambda f, items: list(pool.map(f, items))
        )
    assert rows.label_ends.tolist() == [0, 2, 2, 2, 2, 3, 6, 7]
    assert rows.label_indices.tolist() == [1, 3, 0, 2, 5, 8, 1]
    assert rows.feature_ends.tolist() == [0, 3, 4, 4, 5, 5, 6, 7]
    assert rows.feature_indices.tolist() == [2, 5, 9, 1, 7, 1, 1]
    assert np.array_equal(rows.values, np.float32([2, 1, 3, 0.5, 7, 1, 12345678901234567890]))
    assert (rows.labels_seen, rows.features_seen) == (9, 10)


def test_long_unsorted_rows_are_sorted_with_their_values():
    order = np.random.default_rng(0).permutation(5000)
    text = " ".join(f"{index}:{index / 8}" for index in order).encode()
    rows = parse_rows(bytes_of(b" " + text), 0, Grammar())
    assert np.array_equal(rows.feature_indices, np.arange(5000))
    assert np.array_equal(rows.values, np.arange(5000, dtype=np.float32) / 8)


def test_undecided_values_of_unsorted_rows_stay_with_their_index():
    halfway = f"{(1 + 2.0**-24):.60f}"
    text = f"0 9:{halfway} 3:1e-300 1:2\n".encode()
    rows = parse_rows(bytes_of(text), 0, Grammar())
    assert rows.feature_indices.tolist() == [1, 3, 9]
    assert np.array_equal(rows.values, expected_values(["2", "1e-300", halfway]))


def test_the_first_error_of_a_file_is_reported_with_any_chunks():
    text = b"0 1:1\n0 1:x\n0 1:1\n0 y\n"
    for chunk_bytes in (1, 8, 100):
        with pytest.raises(TextError) as caught:
            parse_rows(bytes_of(text), 0, Grammar(), chunk_bytes=chunk_bytes)
        assert (caught.value.code, caught.value.position) == (kernels.BAD_VALUE, text.index(b"x"))


def test_comments_and_blank_lines_are_no_rows_when_annotated():
    text = b"# 1:1,2\n1 2:3 # 4:5\n\n  \n#\n4:1\n2 #"
    rows = parse_rows(bytes_of(text), 0, Grammar(annotated=True, first_feature=1), chunk_bytes=3)
    assert rows.label_ends.tolist() == [0, 1, 1, 2]
    assert rows.feature_indices.tolist() == [1, 3]
    assert rows.feature_ends.tolist() == [0, 1, 2, 2]


def test_the_number_of_rows_is_checked_first():
    with pytest.raises(WrongRows) as caught:
        parse_rows(bytes_of(b"garbage\n\n"), 0, Grammar(), rows=10**15)
    assert caught.value.rows == 2


def test_zeros_are_not_stored():
    X = parse_rows(bytes_of(b" 0:0 1:1 2:-0.0 3:1e-99\n"), 0, Grammar()).features(4)
    assert X.nnz == 1
    assert X.toarray().tolist() == [[0, 1, 0, 0]]


def test_integer_tables():
    assert parse_integers(bytes_of(b"1 2\r\n\n 30\t4 \n5 6")).tolist() == [[1, 2], [30, 4], [5, 6]]
    assert parse_integers(bytes_of(b""), 2).shape == (0, 2)
    for text, code, position in (
        (b"1 2\n3\n", kernels.COLUMNS, 5),
        (b"1 2\n3", kernels.COLUMNS, 5),
        (b"1 -2\n", kernels.BAD_INTEGER, 2),
        (b"1 2.0\n", kernels.BAD_INTEGER, 2),
        (b"1\n2 3", kernels.COLUMNS, 5),
    ):
        with pytest.raises(TextError) as caught:
            parse_integers(bytes_of(text))
        assert (caught.value.code, caught.value.position) == (code, position)
