"""Rankings and label sets combined, against brute force and against PECOS."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit.components.ensembles import BLOCK, combine_rankings, combine_sets
from xmckit.errors import DataError
from xmckit.records import TopK

RULES = ("average", "rank", "softmax")
LABELS = 9


@st.composite
def rankings(draw, most_members=4):
    """Lists of different lengths, of which some are empty."""
    rows = draw(st.integers(1, 3))
    return [_ranking(draw, rows, draw(st.integers(1, 6))) for _ in range(draw(st.integers(1, most_members)))]


def _ranking(draw, rows, k):
    lists = []
    for _ in range(rows):
        labels = draw(st.lists(st.integers(0, LABELS - 1), max_size=k, unique=True))
        scores = draw(st.lists(st.integers(-40, 40), min_size=len(labels), max_size=len(labels)))
        lists.append(list(zip(sorted((score / 4 for score in scores), reverse=True), labels, strict=True)))
    return topk(lists, k)


def topk(lists, k):
    indices, scores = np.full((len(lists), k), -1, np.int32), np.full((len(lists), k), -np.inf, np.float32)
    for row, found in enumerate(lists):
        for place, (score, label) in enumerate(found):
            indices[row, place], scores[row, place] = label, score
    return TopK(indices, scores)


def listed(ranking, row):
    return {
        int(label): (place, float(score))
        for place, (label, score) in enumerate(zip(ranking.indices[row], ranking.scores[row], strict=True), start=1)
        if label >= 0
    }


def said(rule, lists, label):
    """What one member says for a label, and against it."""
    if rule == "rank":
        return lists[label][0] if label in lists else len(lists) + 1, 0.0
    if label not in lists:
        return 0.0, 1.0
    score = lists[label][1]
    if rule == "average":
        return 1 / (1 + math.exp(-score)), 1 / (1 + math.exp(score))
    shares = {other: math.exp(its - score) for other, (_, its) in lists.items()}
    total = math.fsum(shares.values())
    return 1 / total, math.fsum(share for other, share in shares.items() if other != label) / total


def by_hand(members, row, rule):
    """(score, label) of all candidates, best first."""
    lists = [listed(ranking, row) for ranking in members]
    found = []
    for label in sorted({label for one in lists for label in one}):
        votes, against = (math.fsum(sums) for sums in zip(*(said(rule, one, label) for one in lists), strict=True))
        odds = math.log(votes) - math.log(max(against, sys.float_info.min))
        score = -votes / len(lists) if rule == "rank" else odds
        found.append((score, max(one[label][1] for one in lists if label in one), label))
    return found


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=150, deadline=None)
@given(members=rankings(), k=st.integers(1, 12))
def test_the_ensemble_is_the_mean_over_its_members(rule, members, k):
    combined = combine_rankings(members, k, rule)
    for row in range(members[0].rows):
        expected = {label: (score, highest) for score, highest, label in by_hand(members, row, rule)}
        found = listed(combined, row)
        assert len(found) == min(k, len(expected))
        for label, (_, score) in found.items():
            assert score == pytest.approx(expected[label][0], rel=1e-5, abs=1e-5)
        scores = [expected[label][0] for label in found]
        assert all(first >= second - 1e-9 for first, second in pairwise(scores))
        left_out = [score for label, (score, _) in expected.items() if label not in found]
        assert not left_out or min(scores) >= max(left_out) - 1e-9


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=50, deadline=None)
@given(members=rankings(most_members=1))
def test_an_ensemble_of_one_keeps_its_order(rule, members):
    combined = combine_rankings(members, members[0].k, rule)
    for row in range(members[0].rows):
        mine, of_one = listed(combined, row), listed(members[0], row)
        assert sorted(mine) == sorted(of_one)
        assert [of_one[label][1] for label in mine] == sorted((score for _, score in of_one.values()), reverse=True)
        if rule == "average":
            assert [score for _, score in mine.values()] == pytest.approx([of_one[label][1] for label in mine])


@settings(max_examples=50, deadline=None)
@given(data=st.data(), rule=st.sampled_from(RULES))
def test_as_pecos_combines_lists_of_one_length(data, rule):
    smat_util = pytest.importorskip("pecos.utils.smat_util")
    members = [
        topk(
            [
                list(
                    zip(
                        sorted(data.draw(st.lists(st.integers(1, 40), min_size=4, max_size=4, unique=True)))[::-1],
                        data.draw(st.permutations(range(LABELS)))[:4],
                        strict=True,
                    )
                )
            ],
            4,
        )
        for _ in range(3)
    ]
    matrices = [csr_matrix((one.scores.ravel(), one.indices.ravel(), [0, 4]), shape=(1, LABELS)) for one in members]
    name = {"average": "sigmoid_average", "rank": "rank_average", "softmax": "softmax_average"}[rule]
    theirs = getattr(smat_util.CsrEnsembler, name)(*matrices).toarray()[0]
    combined = combine_rankings(members, LABELS, rule)
    mine = {label: score for label, (_, score) in listed(combined, 0).items()}
    for label, score in mine.items():
        expected = theirs[label] - 5 if rule == "rank" else theirs[label]
        assert (score if rule == "rank" else 1 / (1 + math.exp(-score))) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_unlisted_labels_rank_behind_the_last_place_of_a_member():
    short, long = topk([[(1.0, 0)]], 1), topk([[(2.0, 3), (1.0, 2), (0.0, 1), (-1.0, 0)]], 4)
    combined = combine_rankings([short, long], 4, "rank")
    # places 2 and 1, 2 and 2, 1 and 4 (0 has the higher score of the two with mean 2.5), 2 and 3
    assert combined.indices.tolist() == [[3, 2, 0, 1]]
    assert combined.scores.tolist() == [[-1.5, -2.0, -2.5, -2.5]]


def test_scores_far_apart_keep_their_order_and_stay_numbers():
    sure = topk([[(900.0, 4), (800.0, 2), (-800.0, 1), (-900.0, 3)], [(np.inf, 5), (np.inf, 6)]], 4)
    for rule in RULES:
        combined = combine_rankings([sure, sure], 4, rule)
        assert combined.indices.tolist() == [[4, 2, 1, 3], [5, 6, -1, -1]]
        assert np.isfinite(combined.scores[combined.indices >= 0]).all()


def test_rows_do_not_depend_on_their_block():
    rng = np.random.default_rng(0)
    rows = BLOCK + 3
    labels = np.argsort(rng.random((rows, LABELS)), axis=1)[:, :4].astype(np.int32)
    one = TopK(labels, -np.sort(-rng.normal(size=(rows, 4)).astype(np.float32), axis=1))
    other = TopK(labels[::-1].copy(), one.scores[::-1].copy())
    whole = combine_rankings([one, other], 5, "softmax")
    last = [TopK(ranking.indices[-5:], ranking.scores[-5:]) for ranking in (one, other)]
    assert np.array_equal(combine_rankings(last, 5, "softmax").scores, whole.scores[-5:])
    assert np.array_equal(combine_rankings(last, 5, "softmax").indices, whole.indices[-5:])


def test_rankings_that_do_not_fit_are_errors():
    one = topk([[(1.0, 0)]], 1)
    with pytest.raises(DataError, match="of 1 and of 2 rows"):
        combine_rankings([one, topk([[(1.0, 0)], []], 1)], 1)
    with pytest.raises(DataError, match=r"row 0: .*NaN"):
        combine_rankings([one, TopK(one.indices, np.full((1, 1), np.nan, np.float32))], 1)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), members=st.integers(1, 5))
def test_sets_are_by_majority(data, members):
    dense = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=members, max_size=members))
    )
    combined = combine_sets([csr_matrix(one.reshape(2, 3).astype(np.float32)) for one in dense])
    assert np.array_equal(combined.toarray() > 0, (2 * dense.sum(axis=0) > members).reshape(2, 3))
