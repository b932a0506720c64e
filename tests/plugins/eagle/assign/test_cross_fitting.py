from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from xmckit_eagle.assign.candidates import CandidateRows
from xmckit_eagle.assign.choice import assign
from xmckit_eagle.assign.cross_fitting import head_scorer
from xmckit_eagle.grouping import group_labels, membership_matrix
from xmckit_eagle.preprocessor import Eagle

import xmckit
from xmckit.testing import parametrize_with_checks

ID, STEP = 0, 1000  # this feature of a row, as often, is its number, from 1


def numbers(X):
    return set(np.rint(STEP * X[:, ID]).astype(int) - 1)


class LeastSquares:
    """Ridge regression that records its training rows and the rows it scores."""

    needs = frozenset()
    shift = 0.0
    shown: list[tuple[set[int], set[int]]] = []
    given: list[csr_matrix] = []

    def __init__(self, **options):
        self.options = options

    def fit(self, train, *, indexes=(), context):
        X = train.X.toarray()
        self.trained = numbers(X)
        self.given.append(train.Y)
        self.centre = X[:, 1:].mean(axis=0)
        rows = X[:, 1:] - self.centre
        self.W = (np.linalg.solve(rows.T @ rows + np.eye(rows.shape[1]), rows.T @ train.Y.toarray())).T
        self.known = np.asarray(train.Y.sum(axis=0)).ravel() > 0

    def predict(self, X, k, *, groups=None):
        rows = X.toarray()
        self.shown.append((self.trained, numbers(rows)))
        scores = (rows[:, 1:] - self.centre) @ self.W.T + self.shift
        scores = np.where(self.known, scores, -np.inf).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, order, axis=1)
        return xmckit.TopK(np.where(best > -np.inf, order, -1).astype(np.int32), best)


class SaysNothing(LeastSquares):
    """A head with the same scores for all training data."""

    def fit(self, train, *, indexes=(), context):
        super().fit(train, context=context)
        rng = np.random.default_rng(0)
        self.centre, self.W = 0.0, rng.standard_normal((train.labels, train.X.shape[1] - 1))
        self.known[:] = True


class NeedsAnIndex(LeastSquares):
    needs = frozenset({"shortlist"})


def planted(seed=0, groups=60, size=4, labels=8, shared=3.0):
    """One weak feature per label below strong ones that all rows may have and that say nothing."""
    rng = np.random.default_rng(seed)
    rows = groups * size
    truth = np.zeros((rows, labels), dtype=np.float32)
    truth[np.arange(rows), rng.integers(labels, size=rows)] = 1
    truth[np.arange(rows), rng.integers(labels, size=rows)] = 1
    noise = shared * (rng.random((rows, 20)) < 0.5)
    X = np.concatenate([np.arange(1, rows + 1)[:, None] / STEP, truth, noise], axis=1).astype(np.float32)
    membership = membership_matrix(np.arange(rows) // size)
    Y = csr_matrix(truth)
    return xmckit.Split(csr_matrix(X), Y, groups=xmckit.Groups(membership, group_labels(membership, Y)))


def context_with(head, seed=0):
    head.shown, head.given = [], []
    return xmckit.make_context(seed=seed).using(resolve=lambda kind, name: head)


def ranked(train):
    X = train.X[:, 1:]
    everything = assign(X, train.groups.membership, train.groups.labels, iterations=0, capacity=10**9)
    return CandidateRows.from_ranking(everything, train.groups.labels)


def held_out_scores(train, head=LeastSquares, **changes):
    candidates = ranked(train)
    scorer = head_scorer(
        train,
        candidates,
        xmckit.Spec(use="squares"),
        context=context_with(head).using(**changes),
        advance=lambda done: None,
    )
    return candidates, scorer(candidates.best(candidates.times))


def applied(train, head=None, **params):
    context = context_with(head or LeastSquares)
    eagle = Eagle(**params, **({"head": {"use": "any"}} if head else {}))
    return eagle, eagle.apply(train, context=context)


def test_groups_are_scored_by_a_head_that_has_seen_none_of_their_rows():
    train = planted(groups=23)
    _, held_out = held_out_scores(train)
    assert len(LeastSquares.shown) == 5
    for trained, asked in LeastSquares.shown:
        assert not trained & asked
        assert trained | asked == set(range(train.rows))
        assert {row // 4 for row in asked}.isdisjoint(row // 4 for row in trained)
    assert sorted(row for _, asked in LeastSquares.shown for row in asked) == list(range(train.rows))
    assert not np.isnan(held_out.margins).any()
    assert 0 < held_out.wins <= held_out.matches <= train.groups.labels.nnz


def test_margins_are_the_heads_scores():
    train = planted(groups=10)
    candidates, held_out = held_out_scores(train)
    labels = np.repeat(candidates.labels, np.diff(candidates.start))
    for (trained, asked), Y in zip(LeastSquares.shown, list(LeastSquares.given), strict=True):
        head = LeastSquares()
        head.fit(xmckit.Split(train.X[sorted(trained)], Y), context=None)
        scores = (train.X[:, 1:].toarray() - head.centre) @ head.W.T
        here = np.isin(candidates.rows, list(asked))
        listed = here & head.known[labels]
        assert np.allclose(held_out.margins[listed], scores[candidates.rows[listed], labels[listed]], atol=1e-5)
        unlisted = held_out.margins[here & ~head.known[labels]]
        assert (unlisted < held_out.margins[listed].min() - 0.5).all()


def test_unlisted_labels_rank_below_listed_ones(monkeypatch):
    from xmckit_eagle.assign import cross_fitting

    monkeypatch.setattr(cross_fitting, "LISTED", 2)
    monkeypatch.setattr(cross_fitting, "ROWS_AT_ONCE", 48)  # the rows of a fold, so that `shown` has one entry per fold
    candidates, held_out = held_out_scores(planted())
    for rows in (asked for _, asked in LeastSquares.shown):
        margins = held_out.margins[np.isin(candidates.rows, list(rows))]
        least = np.sort(np.unique(margins))[:2]
        assert (margins == least[0]).mean() > 0.2  # not listed
        assert least[1] - least[0] >= 1 - 1e-6


def test_a_shift_of_the_scores_changes_only_the_margins(monkeypatch):
    from xmckit_eagle.assign import cross_fitting

    monkeypatch.setattr(cross_fitting, "LISTED", 2)
    _, held_out = held_out_scores(planted())
    monkeypatch.setattr(LeastSquares, "shift", 100.0)
    _, shifted = held_out_scores(planted())
    assert np.allclose(shifted.margins, held_out.margins + 100, atol=1e-4)


def test_a_label_of_one_group_is_not_scored_and_rows_in_no_group_are_learned_from():
    train = planted(groups=20)
    membership = train.groups.membership.tolil()
    membership[:8] = 0  # the rows of two groups are in none and keep their labels
    given = train.groups.labels.tolil()
    given[:2] = 0
    given[3:, 5] = 0
    given[2, 5] = 1
    train = replace(train, groups=xmckit.Groups(csr_matrix(membership), csr_matrix(given)))
    candidates, held_out = held_out_scores(train)
    only = np.repeat(candidates.labels == 5, np.diff(candidates.start))
    assert only.sum() == 4
    assert np.array_equal(np.isnan(held_out.margins), only)
    for (trained, _), Y in zip(LeastSquares.shown, LeastSquares.given, strict=True):
        assert set(range(8)) <= trained
        assert (Y[:8] != train.Y[:8]).nnz == 0


def test_a_row_in_several_groups_is_not_learned_from_where_one_of_them_is_held_out():
    train = planted(groups=20)
    membership = train.groups.membership.tolil()
    membership[0, :] = 1
    held_out_scores(replace(train, groups=replace(train.groups, membership=csr_matrix(membership))))
    assert len(LeastSquares.shown) == 5
    for trained, asked in LeastSquares.shown:
        assert 0 not in trained
        assert 0 in asked


def test_with_one_group_the_head_cannot_be_trained():
    train = planted(groups=1)
    eagle, after = applied(train, LeastSquares)
    assert eagle.facts()["round_with_head_kept"] is False
    assert (after.Y != applied(train)[1].Y).nnz == 0


def test_a_head_that_distinguishes_rows_helps():
    train = planted(3)
    eagle, after = applied(train, LeastSquares, refine=0, normalise="unit")
    _, before = applied(train, refine=0, normalise="unit")
    facts = eagle.facts()
    assert facts["round_with_head_kept"] is True
    first, second = facts["held_out_groups_recognised_by_head"]
    assert second > first
    right = [split.Y.multiply(train.Y).nnz / split.Y.nnz for split in (before, after)]
    assert right[1] > right[0] + 0.03


@pytest.mark.parametrize("params", [{}, {"refine": 0}, {"refine": 0, "cover": False}])
def test_a_round_that_does_not_help_changes_nothing(params):
    train = planted(4, groups=30)
    eagle, after = applied(train, SaysNothing, **params)
    plain, before = applied(train, **params)
    first, second = eagle.facts()["held_out_groups_recognised_by_head"]
    assert first == second
    assert eagle.facts()["round_with_head_kept"] is False
    assert (after.Y != before.Y).nnz == 0
    assert np.allclose(after.weights.data, before.weights.data, rtol=1e-6)
    assert np.array_equal(eagle.choice.rows, plain.choice.rows)


def test_rows_are_asked_about_block_by_block(monkeypatch):
    from xmckit_eagle.assign import cross_fitting

    train = planted(1, groups=30)
    _, whole = held_out_scores(train)
    monkeypatch.setattr(cross_fitting, "ROWS_AT_ONCE", 7)
    _, blocks = held_out_scores(train)
    assert len(LeastSquares.shown) > 5
    assert np.array_equal(whole.margins, blocks.margins)
    assert whole[1:] == blocks[1:]


def test_it_is_the_same_every_time_and_another_with_another_seed(tmp_path):
    train = planted(5, groups=30)
    one, two = (held_out_scores(train, folder=folder)[1] for folder in (None, tmp_path))
    assert np.array_equal(one.margins, two.margins)
    assert one[1:] == two[1:]
    assert list(tmp_path.iterdir()) == []
    other = held_out_scores(train, seed=1)[1]
    assert not np.array_equal(one.margins, other.margins)


def test_a_head_that_needs_an_index_is_refused():
    with pytest.raises(xmckit.UsageError, match="head 'any' needs an index with shortlist"):
        applied(planted(groups=5), NeedsAnIndex)


def test_a_head_is_not_the_papers_and_has_no_cosines():
    with pytest.raises(ValueError, match="paper = true means head = None"):
        Eagle(paper=True, head={"use": "bsl"})
    with pytest.raises(ValueError, match="no head"):
        Eagle(capacity="threshold", refine=0, head={"use": "bsl"})


def test_mistakes_in_the_head_are_mistakes_of_the_recipe(tmp_path):
    recipe = tmp_path / "mine.toml"
    for head, wrong in (
        ('use = "blsl"', "labels.head.use: no head named 'blsl'; did you mean 'bsl'?"),
        ('use = "bsl"\nepoch = 3', "labels.head.epoch: unknown key; did you mean 'epochs'?"),
    ):
        recipe.write_text(f'extends = "groups"\n[[labels]]\nuse = "eagle"\n[labels.head]\n{head}\n', "utf-8")
        with pytest.raises(xmckit.RecipeError) as raised:
            xmckit.load_recipe(recipe)
        assert wrong in str(raised.value)
        assert f"mine.toml:{4 + len(head.splitlines())}:" in str(raised.value)


@parametrize_with_checks([("label-preprocessor", "eagle", {"head": {"use": "bsl", "epochs": 1, "dim": 4}})])
def test_with_a_head_it_keeps_its_contract(check):
    check()
