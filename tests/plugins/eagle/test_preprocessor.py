from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xmckit_eagle
from pydantic import ValidationError
from scipy.sparse import csr_matrix
from xmckit_eagle.assign.choice import assign
from xmckit_eagle.assign.normalise import idf_rows, normalise_rows
from xmckit_eagle.preprocessor import Eagle, read_assignments

import xmckit


def planted(seed=0, groups=60, size=4, labels=8, signal=3):
    """Rows with one label each and a feature that goes with it; the labels of the groups only."""
    rng = np.random.default_rng(seed)
    rows = groups * size
    true = rng.integers(labels, size=rows)
    X = (rng.random((rows, 60)) < 0.15).astype(np.float32)
    X[:, :labels] = 0
    X[np.arange(rows), true] = signal
    truth = csr_matrix((np.ones(rows, np.float32), (np.arange(rows), true)), (rows, labels))
    membership = csr_matrix((np.ones(rows, np.float32), (np.arange(rows), np.arange(rows) // size)), (rows, groups))
    given = csr_matrix(membership.T @ truth)
    unknown = csr_matrix(truth.shape, dtype=np.float32)
    return xmckit.Split(csr_matrix(X), unknown, groups=xmckit.Groups(membership, given)), truth


PLAIN = {"refine": 0, "cover": False, "capacity": "one", "soft": False}  # scores by cosine, one row for each label


def applied(train, workers=1, seed=0, **params):
    context = xmckit.make_context(workers=workers, seed=seed)
    eagle = Eagle(**params)
    return eagle, eagle.apply(train, context=context)


def plainly_applied(train, **params):
    return applied(train, **(PLAIN | params))


def test_it_is_registered_and_names_its_parameters():
    targets = {component.name: component.target for component in xmckit_eagle.xmckit_label_preprocessors()}
    assert targets["eagle"] == f"{Eagle.__module__}:{Eagle.__name__}"
    assert all(field.description for field in Eagle.Params.model_fields.values())


@pytest.mark.parametrize(
    "option",
    [
        {"iterations": -1},
        {"step": np.nan},
        {"step": np.inf},
        {"update": "median"},
        {"capacity": 0},
        {"threshold": np.nan},
        {"threshold": np.inf},
    ],
)
def test_options_that_cannot_work_are_refused(option):
    with pytest.raises(ValidationError, match=next(iter(option))):
        Eagle(**option)


def test_by_default_every_row_gets_its_label():
    train, truth = planted()
    eagle, after = applied(train)
    after.check()
    assert after.Y.multiply(truth).nnz / truth.nnz > 0.95
    assert after.Y.multiply(truth).nnz / after.Y.nnz > 0.95
    assert (np.diff(after.Y.indptr) > 0).all()
    assert after.weights.nnz == after.Y.nnz
    assert eagle.facts()["capacity"] == "count"


def test_rows_get_the_labels_that_are_theirs():
    train, truth = planted()
    eagle, after = plainly_applied(train)
    after.check()
    right = after.Y.multiply(truth).nnz
    assert right / after.Y.nnz > 0.95
    assert eagle.facts()["placed"] == train.groups.labels.nnz == after.Y.nnz
    assert after.groups is train.groups
    assert after.weights is None


def test_every_label_of_a_group_is_given_to_a_row_of_that_group():
    train, _ = planted(1)
    plain = [{}, {"capacity": "count"}, {"capacity": "threshold"}, {"iterations": 3}]
    for params in ({}, {"cover": False}, {"capacity": "margin"}, {"paper": True}, *(PLAIN | part for part in plain)):
        _, after = applied(train, **params)
        had = csr_matrix(train.groups.membership.T @ after.Y)
        assert np.array_equal(had.toarray() > 0, train.groups.labels.toarray() > 0)


def test_repetitions_fill_as_many_rows():
    train, truth = planted(2)
    _, one = plainly_applied(train)
    eagle, several = plainly_applied(train, capacity="count")
    assert several.Y.nnz == truth.nnz > one.Y.nnz
    assert several.Y.multiply(truth).nnz / truth.nnz > 0.95
    assert eagle.facts()["repetitions"] == truth.nnz - one.Y.nnz


def test_paper_is_the_papers_algorithm():
    train, _ = planted(3)
    eagle, _ = applied(train, paper=True)
    expected = assign(idf_rows(train.X), train.groups.membership, train.groups.labels, iterations=20, step=0.1)
    assert np.array_equal(eagle.choice.rows, expected.rows)
    assert np.allclose(eagle.choice.scores, expected.scores)
    assert Eagle(paper=True).params.iterations == 20
    assert Eagle(paper=True, iterations=5).params.iterations == 5


def test_paper_in_a_recipe_is_written_out_in_full_and_reads_back():
    params = Eagle.Params.model_validate_json('{"paper": true, "step": 1}', strict=True)
    assert not params.background
    assert Eagle.Params.model_validate_json(params.model_dump_json(), strict=True) == params


@pytest.mark.parametrize(
    "option",
    [
        {"background": True}, {"leave_one_out": True}, {"capacity": "count"}, {"merge": "list"}, {"update": "mean"},
        {"soft": True}, {"normalise": "none"},
    ],
)  # fmt: skip
def test_paper_refuses_what_contradicts_it(option):
    (name,) = option
    with pytest.raises(ValidationError, match=f"paper = true means {name} = "):
        Eagle(paper=True, **option)


def test_parameters_survive_saving(tmp_path):
    train, _ = planted()
    for params in ({"paper": True}, {"capacity": "threshold", "threshold": 0.5, "refine": 0}):
        folder = tmp_path / str(len(params))
        folder.mkdir()
        eagle, _ = applied(train, **params)
        eagle.save(folder)
        assert Eagle.load(folder, context=xmckit.make_context()).params == eagle.params
        stored = read_assignments(folder)
        for name in ("groups", "labels", "rows", "scores", "margins"):
            assert np.array_equal(stored[name], getattr(eagle.choice, name))
        assert np.array_equal(stored["confidence"], eagle.confidence)


def test_the_result_does_not_depend_on_the_number_of_workers():
    train, _ = planted(4)
    results = [applied(train, workers=workers, iterations=3, soft=True)[1] for workers in (1, 3)]
    assert (results[0].Y != results[1].Y).nnz == 0
    assert np.array_equal(results[0].weights.data, results[1].weights.data)


def test_confidence_grows_with_the_margin():
    train, truth = planted(5, groups=200, signal=0.5)
    eagle, after = plainly_applied(train, soft=True)
    choice, sure = eagle.choice, eagle.confidence
    assert ((sure > 0) & (sure <= 1)).all()
    order = np.argsort(choice.margins)
    assert (np.diff(sure[order]) >= 0).all()
    right = np.asarray(truth[choice.rows, choice.labels]).ravel() > 0
    assert sure[right].mean() > sure[~right].mean()
    assert np.array_equal(np.asarray(after.weights[choice.rows, choice.labels]).ravel(), sure)


def test_confidence_of_a_tie_and_of_no_choice():
    X = csr_matrix(np.asarray([[1, 0], [1, 0], [0, 1]], dtype=np.float32))
    membership = csr_matrix(np.asarray([[1, 0], [1, 0], [0, 1]], dtype=np.float32))
    groups = xmckit.Groups(membership, csr_matrix(np.asarray([[1, 0], [0, 1]], dtype=np.float32)))
    eagle, _ = applied(xmckit.Split(X, csr_matrix((3, 2), dtype=np.float32), groups=groups))
    assert eagle.confidence.tolist() == [0.5, 1.0]


def test_a_label_of_one_group_has_the_confidence_of_a_tie():
    rng = np.random.default_rng(0)
    X = csr_matrix(rng.random((12, 5)).astype(np.float32))
    membership = csr_matrix((np.ones(12, np.float32), (np.arange(12), np.arange(12) // 4)), (12, 3))
    given = csr_matrix(np.asarray([[1, 1, 0], [1, 0, 1], [1, 0, 0]], dtype=np.float32))
    train = xmckit.Split(X, csr_matrix((12, 3), dtype=np.float32), groups=xmckit.Groups(membership, given))
    for params in ({}, {"cover": False}, PLAIN | {"soft": True}, {"paper": True}):
        eagle, after = applied(train, **params)
        alone = eagle.choice.labels > 0
        assert alone.sum() == 2
        assert eagle.confidence[alone].tolist() == [0.25, 0.25]
        assert (eagle.confidence[~alone] != 0.25).all()
        if after.weights is not None:  # it has no other rows to be learned from
            assert after.weights.toarray()[eagle.choice.rows[alone], eagle.choice.labels[alone]].tolist() == [1, 1]


def test_a_row_in_several_groups_gets_a_label_once_with_the_best_confidence():
    X = csr_matrix(np.asarray([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32))
    membership = csr_matrix(np.asarray([[1, 1], [1, 0], [0, 1]], dtype=np.float32))
    groups = xmckit.Groups(membership, csr_matrix(np.ones((2, 1), dtype=np.float32)))
    eagle, after = plainly_applied(xmckit.Split(X, csr_matrix((3, 1), dtype=np.float32), groups=groups), soft=True)
    assert eagle.choice.rows.tolist() == [0, 0]
    assert after.Y.toarray().ravel().tolist() == [1, 0, 0]
    assert after.weights.data.tolist() == [eagle.confidence.max()]
    after.check()


def test_what_cannot_be_placed_is_counted_and_said():
    train, _ = planted(6)
    membership = train.groups.membership.tolil()
    membership[:, 0] = 0
    X = train.X.tolil()
    X[4:8] = 0
    own = csr_matrix((np.ones(1, np.float32), ([1], [2])), train.Y.shape)
    groups = replace(train.groups, membership=csr_matrix(membership))
    eagle, after = plainly_applied(replace(train, X=csr_matrix(X), Y=own, groups=groups))
    facts, given = eagle.facts(), train.groups.labels
    assert facts["unplaced"] == {"group without rows": given[0].nnz, "rows without features": given[1].nnz}
    assert facts["placed"] + sum(facts["unplaced"].values()) == facts["group_labels"] == given.nnz
    assert facts["placed"] == facts["given_to_rows"] == len(eagle.choice)
    assert facts["rows_in_no_group"] == 4
    assert facts["labels_kept_by_rows_in_no_group"] == 1
    assert after.Y[1].indices.tolist() == [2]
    assert f"{given[:2].nnz} of {given.nnz} labels" in facts["warnings"][0]


def test_labels_in_no_group_are_counted():
    train, _ = planted()
    given = train.groups.labels.tolil()
    given[:, 3] = 0
    eagle, after = applied(replace(train, groups=replace(train.groups, labels=csr_matrix(given))))
    assert eagle.facts()["labels_in_no_group"] == 1
    assert eagle.facts()["labels_placed_nowhere"] == 0
    assert after.Y[:, 3].nnz == 0


def test_data_without_groups_says_what_to_do():
    train, _ = planted()
    with pytest.raises(xmckit.DataError, match="aggregate"):
        applied(replace(train, groups=None))


@pytest.mark.parametrize("part", ["membership", "labels"])
def test_groups_that_do_not_fit_are_refused(part):
    train, _ = planted()
    wrong = replace(train.groups, **{part: getattr(train.groups, part)[:-1]})
    with pytest.raises(xmckit.DataError, match="groups do not fit the data"):
        applied(replace(train, groups=wrong))


def test_groups_that_name_rows_or_labels_that_do_not_exist_are_refused():
    train, _ = planted()
    labels = train.groups.labels.copy()
    labels.indices[0] = 99
    with pytest.raises(xmckit.DataError, match="groups' labels is not a sound CSR matrix"):
        applied(replace(train, groups=replace(train.groups, labels=labels)))


def test_features_that_are_not_numbers_are_refused():
    train, _ = planted()
    X = train.X.copy()
    X.data[X.indptr[5]] = np.nan
    for matrix in (X, X.toarray()):
        with pytest.raises(xmckit.DataError, match=r"row 5: .*not a finite number"):
            applied(replace(train, X=matrix))


def test_negative_features_and_dense_rows_are_as_good_as_any():
    train, truth = planted(7)
    centred = train.X.toarray() - np.asarray(train.X.mean(axis=0))
    eagle, after = applied(replace(train, X=centred.astype(np.float32)))
    assert eagle.facts()["normalised"] == "unit"
    assert after.Y.multiply(truth).nnz / after.Y.nnz > 0.9


def test_normalising():
    X = csr_matrix(np.asarray([[2, 0, 1], [0, 3, 1], [0, 0, 1], [0, 0, 0]], dtype=np.float32))
    weighted, done = normalise_rows(X, "auto")
    assert done == "idf"
    idf = np.log(4 / np.asarray([1, 1, 3]))
    expected = X.toarray() * idf
    expected[:3] /= np.sqrt((expected[:3] ** 2).sum(axis=1, keepdims=True))
    assert np.allclose(weighted.toarray(), expected)
    assert normalise_rows(weighted, "auto")[1] == "none"
    unit, _ = normalise_rows(X, "unit")
    dense, done = normalise_rows(X.toarray(), "idf")
    assert done == "unit"
    assert np.allclose(unit.toarray(), dense)
    assert X.data.tolist() == [2, 1, 3, 1, 1]
