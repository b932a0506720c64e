from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from xmckit_heads.dft.ordering import (
    cooccurrence_order,
    cyclic_arcs,
    label_order,
    label_pairs,
    read_order,
    sign_rank_bound,
)

import xmckit

quick = settings(deadline=None, max_examples=60, derandomize=True)


@st.composite
def label_matrices(draw):
    rows, labels = draw(st.integers(0, 12)), draw(st.integers(1, 14))
    density = draw(st.sampled_from([0.05, 0.3, 0.6, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return csr_matrix((rng.random((rows, labels)) < density).astype(np.float32))


def brute_force_arcs(Y, position):
    circle = np.zeros(Y.shape)
    circle[:, position] = Y.toarray() != 0
    starts = (circle == 1) & (np.roll(circle, 1, axis=1) == 0)
    return starts.sum(axis=1)


def overlapping_topics(seed=0, rows=400, labels=120, topics=30):
    """Every topic is a set of labels; a row takes most labels of one topic. Label ids say nothing about topics."""
    rng = np.random.default_rng(seed)
    members = [rng.choice(labels - 10, size=8, replace=False) for _ in range(topics)]
    Y = np.zeros((rows, labels), dtype=np.float32)
    for row in range(rows):
        chosen = members[rng.integers(topics)]
        Y[row, chosen[rng.random(len(chosen)) < 0.8]] = 1
    return csr_matrix(Y)


@quick
@given(label_matrices(), st.integers(0, 2**32 - 1))
def test_arcs_equal_those_counted_on_the_circle(Y, seed):
    position = np.random.default_rng(seed).permutation(Y.shape[1])
    arcs = cyclic_arcs(Y, position)
    assert arcs.dtype == np.int64
    np.testing.assert_array_equal(arcs, brute_force_arcs(Y, position))


@quick
@given(label_matrices())
def test_orders_are_permutations_with_unseen_labels_last(Y):
    position = label_order(Y)
    assert position.dtype == np.int64
    np.testing.assert_array_equal(np.sort(position), np.arange(Y.shape[1]))
    seen = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
    assert set(position[seen]) == set(range(len(seen)))
    sizes, labels = np.diff(Y.indptr), Y.shape[1]
    arcs = cyclic_arcs(Y, position)
    assert (arcs <= np.minimum(sizes, labels // 2)).all()
    assert ((arcs > 0) == ((sizes > 0) & (sizes < labels))).all()


@quick
@given(label_matrices())
def test_an_order_depends_on_the_pattern_alone(Y):
    twice = csr_matrix((np.repeat(Y.data, 2), np.repeat(Y.indices, 2), 2 * Y.indptr), shape=Y.shape)
    np.testing.assert_array_equal(label_order(Y), label_order(Y))
    np.testing.assert_array_equal(label_order(Y), label_order(3 * Y))
    np.testing.assert_array_equal(label_order(Y), label_order(twice))
    assert (np.diff(twice.indptr) == 2 * np.diff(Y.indptr)).all()  # the argument stays as it was
    np.testing.assert_array_equal(cyclic_arcs(Y, label_order(Y)), cyclic_arcs(twice, label_order(Y)))


def test_stored_zeros_are_no_labels():
    Y = csr_matrix((np.array([1.0, 0.0, 1.0]), np.array([0, 1, 2]), np.array([0, 3])), shape=(1, 6))
    assert cyclic_arcs(Y, np.arange(6)).tolist() == [2]
    assert label_order(Y)[[0, 2]].max() == 1


def test_all_or_none_active_is_no_arc():
    assert cyclic_arcs(csr_matrix(np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1]])), np.arange(3)).tolist() == [0, 0, 1]


def test_hand_counted_rows_of_a_long_circle():
    Y = np.zeros((3, 1000), dtype=np.float32)
    Y[0, ::2] = 1
    Y[1, [999, 0, 1, 500]] = 1
    Y[2, 10:900] = 1
    assert cyclic_arcs(csr_matrix(Y), np.arange(1000)).tolist() == [500, 2, 1]


@pytest.mark.parametrize("shape", [(0, 5), (3, 5), (3, 1), (0, 0), (2, 0)])
def test_without_any_label_in_a_row_positions_are_ids(shape):
    Y = csr_matrix(shape, dtype=np.float32)
    np.testing.assert_array_equal(label_order(Y), np.arange(shape[1]))
    np.testing.assert_array_equal(cyclic_arcs(Y, np.arange(shape[1])), np.zeros(shape[0]))
    assert sign_rank_bound(Y, np.arange(shape[1])) == 1


def test_one_label():
    Y = csr_matrix(np.array([[1.0], [0.0]]))
    assert label_order(Y).tolist() == [0]
    assert cyclic_arcs(Y, np.array([0])).tolist() == [0, 0]


def test_given_is_the_identity_and_other_names_are_refused():
    Y = overlapping_topics()
    np.testing.assert_array_equal(label_order(Y, "given"), np.arange(Y.shape[1]))
    with pytest.raises(xmckit.UsageError, match=r"'alphabet'.*cooccurrence"):
        label_order(Y, "alphabet")


def test_blocks_of_labels_become_one_arc_each():
    rng = np.random.default_rng(3)
    blocks = rng.permutation(60).reshape(12, 5)
    Y = np.zeros((12, 60), dtype=np.float32)
    Y[np.arange(12)[:, None], blocks] = 1
    assert cyclic_arcs(csr_matrix(Y), label_order(csr_matrix(Y))).tolist() == [1] * 12


def test_intervals_of_a_hidden_path_are_found():
    """Pairs of neighbours on a path, many times over: the path itself leaves one arc everywhere."""
    hidden = np.random.default_rng(5).permutation(40)
    Y = np.zeros((39, 50), dtype=np.float32)
    for row in range(39):
        Y[row, hidden[row : row + 2]] = 1
    assert cyclic_arcs(csr_matrix(Y), label_order(csr_matrix(Y))).max() == 1


@pytest.mark.parametrize("seed", range(4))
def test_it_beats_the_given_and_random_orders_where_labels_go_together(seed):
    Y = overlapping_topics(seed)
    arcs = cyclic_arcs(Y, label_order(Y))
    for other in (np.arange(Y.shape[1]), np.random.default_rng(seed).permutation(Y.shape[1])):
        others = cyclic_arcs(Y, other)
        assert arcs.mean() < 0.75 * others.mean()
        assert arcs.max() < others.max()


def test_weighting_rows_lowers_the_largest_number_of_arcs():
    """One row spans many topics: to the mean it is nothing, to the degree it is everything."""
    Y = overlapping_topics().toarray()
    Y[0] = 0
    Y[0, np.random.default_rng(1).choice(110, size=30, replace=False)] = 1
    Y = csr_matrix(Y)
    unweighted = cyclic_arcs(Y, cooccurrence_order(Y, rounds=0))
    assert cyclic_arcs(Y, label_order(Y)).max() < unweighted.max()


def test_small_sets_come_close_to_the_best_of_all_orders():
    rng = np.random.default_rng(0)
    largest = []
    for _ in range(10):
        Y = csr_matrix((rng.random((8, 6)) < 0.45).astype(np.float32))
        orders = [np.array((0, *rest)) for rest in itertools.permutations(range(1, 6))]
        best = min(int(cyclic_arcs(Y, order).max()) for order in orders)
        found = int(cyclic_arcs(Y, label_order(Y)).max())
        assert found <= best + 1
        largest.append(found == best)
    assert sum(largest) >= 7


@quick
@given(label_matrices())
def test_pairs_are_those_of_the_co_occurrence_matrix(Y):
    pairs = label_pairs(sorted_rows(Y), most=10_000)
    found = np.zeros((Y.shape[1], Y.shape[1]))
    np.add.at(found, (pairs.first[pairs.pair_of], pairs.second[pairs.pair_of]), 1)
    np.testing.assert_array_equal(found, np.triu((Y.T @ Y).toarray(), 1))
    assert pairs.starts[-1] == len(pairs.pair_of)


def test_rows_with_very_many_labels_give_a_bounded_number_of_pairs():
    Y = sorted_rows(csr_matrix(np.ones((3, 2000), dtype=np.float32)))
    pairs = label_pairs(Y, most=50_000)
    assert len(pairs.pair_of) <= 50_000
    assert len(np.unique(np.concatenate([pairs.first, pairs.second]))) == 2000
    least = label_pairs(Y, most=1)
    assert (least.second - least.first == 1).all()


def sorted_rows(Y):
    rows = Y.copy()
    rows.sort_indices()
    rows.indptr, rows.indices = rows.indptr.astype(np.int64), rows.indices.astype(np.int32)
    return rows


def test_an_order_from_part_of_the_pairs_still_helps():
    Y = overlapping_topics()
    assert (
        cyclic_arcs(Y, cooccurrence_order(Y, most_pairs=2000)).mean()
        < 0.9 * cyclic_arcs(Y, np.arange(Y.shape[1])).mean()
    )


def test_the_sign_rank_bound_is_reached_by_trigonometric_polynomials():
    """A polynomial of degree k that changes sign around the arcs has the row's signs, for rows of at most k arcs."""
    Y = overlapping_topics(rows=40, labels=60, topics=12)
    position = label_order(Y)
    bound = sign_rank_bound(Y, position)
    most = int(cyclic_arcs(Y, position).max())
    assert bound == 2 * most + 1
    angles = 2 * np.pi * np.arange(60) / 60
    signs = np.zeros(Y.shape)
    signs[:, position] = np.where(Y.toarray() > 0, 1, -1)
    values = np.array([polynomial_with_signs(row, angles) for row in signs])
    assert (np.sign(values) == signs).all()
    spectrum = np.abs(np.fft.rfft(values / np.abs(values).max(axis=1, keepdims=True), axis=1))
    assert spectrum[:, most + 1 :].max() < 1e-9
    assert np.count_nonzero(spectrum.max(axis=0) > 1e-9) <= most + 1


def polynomial_with_signs(row, angles):
    """Π sin((t − z)/2) over the sign changes z: an even number of them, so a polynomial of half that degree."""
    half = np.pi / len(angles)
    changes = angles[np.flatnonzero(row != np.roll(row, -1))] + half
    values = np.prod(np.sin((angles[:, None] - changes) / 2), axis=1)
    return values * row[0] * np.sign(values[0])


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (np.arange(4), r"5 labels.*shape \(4,\)"),
        (np.arange(6), r"5 labels.*shape \(6,\)"),
        (np.arange(5.0), "whole number.*float64"),
        (np.array([0, 1, 2, 3, 3]), "labels 3 and 4 both have position 3"),
        (np.array([0, 1, 2, 3, 5]), "label 4 has position 5, expected 0 to 4"),
        (np.array([-1, 1, 2, 3, 4]), "label 0 has position -1"),
        (np.arange(10).reshape(5, 2), "shape"),
    ],
)
def test_a_position_that_is_no_permutation_is_refused(position, message):
    with pytest.raises(xmckit.DataError, match=message):
        cyclic_arcs(csr_matrix(np.eye(5)), position)


def test_an_order_is_read_from_a_file(tmp_path):
    path = tmp_path / "order.txt"
    path.write_text("2\n0\n 1\n")
    np.testing.assert_array_equal(read_order(path, 3), [1, 2, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n1\n", "found 2 of 3 labels, label 2 is missing"),
        ("0\n1\n1\n", "line 3: label 1 is already in line 2"),
        ("0\n3\n1\n", "line 2: found '3', expected a label id from 0 to 2"),
        ("0\n-1\n1\n", "line 2: found '-1'"),
        ("0\n\n1\n", "line 2: found ''"),
        ("", "found 0 of 3 labels"),
        ("\xff\n", "line 1"),
        ("9" * 5000, "line 1: found '999"),
    ],
)
def test_a_damaged_order_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "order.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(xmckit.DataError, match=message) as error:
        read_order(path, 3)
    assert str(path) in str(error.value)


def test_an_order_file_that_is_missing_or_no_text_is_named(tmp_path):
    with pytest.raises(xmckit.DataError, match=r"order\.txt"):
        read_order(tmp_path / "order.txt", 3)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(xmckit.DataError, match="binary"):
        read_order(tmp_path / "binary", 3)
