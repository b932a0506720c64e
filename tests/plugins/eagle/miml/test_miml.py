"""The multi-instance head: its network against plain arithmetic, its bags, and what it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr
from scipy.special import softmax
from xmckit_eagle.miml import head as miml
from xmckit_eagle.miml.head import MIMLHead, label_embeddings, unit_rows
from xmckit_eagle.miml.network import (
    Bags,
    ConceptLayer,
    FixedEmbeddings,
    LabelledBags,
    TrainedEmbeddings,
    attention_mask,
)

import xmckit
from xmckit import DataError, Groups, Split, UsageError
from xmckit.data.model import as_csr, carve_validation
from xmckit.nn.batches import as_batch
from xmckit.nn.threads import Threads
from xmckit.testing import Case, parametrize_with_checks
from xmckit.testing.problems import small_problem

QUICK = {"epochs": 3, "encoder": {"use": "sparse-linear", "width": 24}, "dim": 16, "concepts": 2, "iterations": 2}
DEEP = {"tau": 0.0, "direct": 0.0}


@parametrize_with_checks(
    [
        Case("head", MIMLHead, {**QUICK, "alone": True}),
        Case("head", MIMLHead, {**QUICK, "alone": True, "embeddings": "trained", "loss": "softmax", "direct": 1.0}),
    ]
)
def test_conformance(check):
    check()


@pytest.fixture
def context():
    return xmckit.make_context(workers=1)


def grouped(split: Split, size: int, seed: int = 0) -> Split:
    """The rows in random groups, of which only the merged list of labels is known."""
    order = np.random.default_rng(seed).permutation(split.rows)
    group = np.empty(split.rows, dtype=np.int64)
    group[order] = np.arange(split.rows) // size
    ones = np.ones(split.rows, dtype=np.float32)
    membership = csr_matrix((ones, (np.arange(split.rows), group)))
    labels = as_csr(membership.T @ split.Y)
    return replace(split, Y=csr_matrix(split.Y.shape, dtype=np.float32), groups=Groups(membership, labels))


@st.composite
def memberships(draw):
    rows, groups = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.booleans(), min_size=rows * groups, max_size=rows * groups))
    return csr_matrix(np.array(cells, dtype=np.float32).reshape(rows, groups))


@given(memberships(), st.randoms(use_true_random=False), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_bags_are_the_groups_with_rows(membership, random, most):
    bags, kept = Bags.from_membership(membership)
    dense = membership.toarray()
    assert kept.tolist() == np.flatnonzero(dense.any(axis=0)).tolist()
    chosen = np.array(random.sample(range(len(bags)), random.randint(0, len(bags))), dtype=np.int64)
    some = bags.take(chosen)
    for place, bag in enumerate(chosen):
        expected = np.flatnonzero(dense[:, kept[bag]])
        assert some.rows[some.starts[place] : some.starts[place + 1]].tolist() == expected.tolist()
    covered = [bag for block in bags.blocks(most) for bag in range(block.start, block.stop)]
    assert covered == list(range(len(bags)))
    for block in bags.blocks(most):
        assert block.stop - block.start == 1 or bags.sizes[block].sum() <= most


def plain_logits(layer: ConceptLayer, x: np.ndarray, affinity: np.ndarray | None, sizes: list[int]) -> np.ndarray:
    """The network bag by bag, as section 6 writes it."""
    W, c, b = (part.detach().double().numpy() for part in (layer.W, layer.c, layer.b))
    result, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        V1 = np.maximum(np.maximum(x[rows], 0) @ W.T + c, 0).reshape(size, layer.concepts, layer.labels)
        V2 = V1.max(axis=1)
        mask, near = 1.0, 0.0
        if affinity is not None:
            mask, near = size * softmax(layer.tau * affinity[rows], axis=0), np.maximum(affinity[rows], 0)
        result.append((mask * (V2 + layer.alpha.item() * near)).max(axis=0) + b)
        start += size
    return np.array(result)


def random_layer(tau: float, seed: int = 0, direct: float = 0.0) -> ConceptLayer:
    layer = ConceptLayer(5, 7, 3, tau=tau, direct=direct)
    layer.begin(np.linspace(-1, 1, 5), torch.Generator().manual_seed(seed))
    return layer


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    tau=st.floats(0, 50),
    direct=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_logits_are_those_of_the_paper(sizes, tau, direct, seed):
    rng = np.random.default_rng(seed)
    x, affinity = rng.standard_normal((sum(sizes), 7)), rng.uniform(-1, 1, (sum(sizes), 5))
    layer = random_layer(tau, seed, direct)
    tensors = [torch.from_numpy(part.astype(np.float32)) for part in (x, affinity)]
    found = layer(*tensors, torch.tensor(sizes), Threads())
    np.testing.assert_allclose(found.detach(), plain_logits(layer, x, affinity, sizes), rtol=1e-4, atol=1e-4)


def test_without_sharpness_or_company_the_mask_is_one():
    affinity = torch.rand(6, 4)
    assert torch.allclose(attention_mask(affinity, torch.tensor([2, 4]), 0.0), torch.ones(6, 4))
    assert torch.equal(attention_mask(1e4 * affinity, torch.ones(6, dtype=torch.int64), 30.0), torch.ones(6, 4))
    sharp = attention_mask(1e4 * affinity, torch.tensor([2, 4]), 30.0)
    assert torch.allclose(sharp[:2].amax(0), torch.full((4,), 2.0)), "all of a bag of two goes to one row"
    assert torch.allclose(sharp[2:].mean(0), torch.ones(4))


def test_gradients_of_the_whole_network():
    """Autograd through segments against differences, embeddings included."""
    layer, sizes = random_layer(3.0, direct=2.0).double(), torch.tensor([2, 1, 3])
    x = torch.rand(6, 7, dtype=torch.float64, requires_grad=True)
    affinity = torch.rand(6, 5, dtype=torch.float64, requires_grad=True)

    def logits(x, affinity):
        return layer(x, affinity, sizes, Threads())

    assert torch.autograd.gradcheck(logits, (x, affinity))
    logits(x, affinity).sum().backward()
    assert layer.alpha.grad.item() > 0


def test_large_inputs_are_scored_in_parts(monkeypatch):
    layer, x = random_layer(0.0), torch.rand(9, 7)
    with torch.no_grad():
        whole = layer.instances(x, Threads())
        monkeypatch.setattr("xmckit_eagle.miml.network.CONCEPTS_AT_ONCE", 2 * 15)
        assert torch.allclose(layer.instances(x, Threads()), whole)


def test_shares_compare_a_label_with_an_even_share():
    layer = ConceptLayer(4, 2, 1, shares=True)
    layer.begin(np.log([0.7, 0.1, 0.1, 0.1]), torch.Generator())
    found = layer(torch.zeros(1, 2), None, torch.ones(1, dtype=torch.int64), Threads())
    assert torch.allclose(found, torch.tensor([[0.7, 0.1, 0.1, 0.1]]).mul(4).log())


@pytest.mark.parametrize("sparse", [True, False])
def test_fixed_and_trained_embeddings_start_alike(sparse):
    rng = np.random.default_rng(0)
    X = as_csr(random_csr(9, 12, 0.4, random_state=rng))
    X.data[:] = rng.random(X.nnz)
    X = csr_matrix(X.toarray() * (np.arange(9) != 3)[:, None], dtype=np.float32)  # a row of zeros
    L, mean = unit_rows(as_csr(random_csr(4, 12, 0.5, random_state=rng))), miml.mean_direction(unit_rows(X))
    x, e = X.toarray(), L.toarray()
    expected = (x @ e.T - np.outer(x @ mean, e @ mean)) / np.maximum(np.linalg.norm(x, axis=1), 1e-30)[:, None]
    rows = X if sparse else x
    for kind in (FixedEmbeddings, TrainedEmbeddings):
        embeddings = kind(4, 12, L.nnz)
        embeddings.start(L, mean)
        np.testing.assert_allclose(embeddings.affinity(rows, as_batch(rows)).detach(), expected, atol=1e-6)


def planted(groups: int = 60, size: int = 3, seed: int = 0) -> tuple[Split, np.ndarray]:
    """Rows near one of four directions that are not orthogonal, in groups; and which direction each row has."""
    rng = np.random.default_rng(seed)
    directions = np.eye(4, 8) + 0.4
    kinds = rng.integers(0, 4, groups * size)
    X = (directions[kinds] + 0.1 * rng.standard_normal((len(kinds), 8))).astype(np.float32)
    split = grouped(Split(X, csr_matrix(np.eye(4, dtype=np.float32)[kinds])), size, seed + 1)
    return split, kinds


def test_embeddings_point_at_the_label_s_rows():
    """With what all rows share removed, the sum of a label's bags and the sum of the chosen rows are near the truth."""
    split, kinds = planted()
    unit = unit_rows(split.X)
    bags, _ = Bags.from_membership(split.groups.membership)
    centres = np.array([unit[kinds == label].sum(axis=0) for label in range(4)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    cosines = []
    for iterations in (0, 20):
        found = label_embeddings(
            unit, bags, split.groups.labels, iterations=iterations, background=True, seed=0, workers=1
        ).toarray()
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
        cosines.append((found * centres).sum(axis=1))
    brute = np.zeros((4, 8))
    for group in range(split.groups.membership.shape[1]):
        rows = np.flatnonzero(split.groups.membership[:, [group]].toarray())
        brute += np.outer(split.groups.labels[group].toarray().ravel(), unit[rows].sum(axis=0))
    brute /= np.linalg.norm(brute, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines[0], (brute * centres).sum(axis=1), rtol=1e-5)
    assert (cosines[1] > 0.99).all()
    assert (cosines[1] > cosines[0]).all()


@pytest.mark.parametrize(
    "changes",
    [DEEP, {}, {"embeddings": "trained"}, {"loss": "softmax"}, {"tau": 0.0, "direct": 1.0, "bias": False}],
    ids=str,
)
def test_learns_rows_from_bags(context, changes):
    """Only bags have labels, yet rows and new bags are ranked rightly."""
    split, _ = planted(groups=150)
    test, kinds = planted(groups=40, seed=7)
    head = MIMLHead(**{"epochs": 25, "dim": 32, "learning_rate": 0.02, "dropout": 0.0, **changes})
    head.fit(split, context=context)
    assert (head.predict(test.X, 1).indices.ravel() == kinds).mean() > 0.95
    ranked = head.predict(test.X, 4, groups=test.groups)
    truth = test.groups.labels.toarray() > 0
    first = np.take_along_axis(truth, ranked.indices, axis=1)
    wanted = truth.sum(axis=1)
    assert np.mean([row[:count].all() for row, count in zip(first, wanted, strict=True)]) > 0.9
    assert head.decision() is None
    assert head.features(test.X) is None
    assert (head.embeddings() is None) == (changes == DEEP)


def test_sparse_rows_and_several_groups_a_row(context):
    """Rows in several groups, in none, groups without rows, and a weight per repetition, on sparse features."""
    split = grouped(small_problem(rows=60), 3)
    membership, labels = split.groups.membership.tolil(), split.groups.labels.tolil()
    membership[0, :4] = 1
    membership[5, :] = 0
    membership.resize((60, 22))
    labels.resize((22, split.labels))
    labels[20, 3] = 2  # two groups without rows, one of them with a label
    split = replace(split, groups=Groups(csr_matrix(membership), csr_matrix(labels)))
    head = MIMLHead(**QUICK)
    head.fit(split, context=context)
    facts = head.facts(split.Y)
    assert (facts["bags"], facts["groups without rows"], facts["rows in no bag"]) == (20, 2, 1)
    ranked = head.predict(split.X, 3, groups=split.groups)
    assert (ranked.indices[20:] == -1).all()
    assert np.isneginf(ranked.scores[20:]).all()
    assert (ranked.indices[:20] >= 0).all()
    alone = head.predict(split.X, 3, groups=Groups(csr_matrix(np.eye(60, dtype=np.float32)), csr_matrix((60, 11))))
    assert np.array_equal(alone.indices, head.predict(split.X, 3).indices), "a bag of one row is that row"


def test_repeated_labels_weigh_as_often(context):
    split = grouped(small_problem(rows=60, labels=3), 10)
    assert (split.groups.labels.data > 1).any()
    single = replace(split.groups, labels=as_csr(split.groups.labels > 0))
    ranked = {}
    for name, groups, repeats in (
        ("repeated", split.groups, True), ("ignored", split.groups, False), ("once", single, True),
    ):  # fmt: skip
        head = MIMLHead(**QUICK, **DEEP, repeats=repeats)
        head.fit(replace(split, groups=groups), context=context)
        ranked[name] = head.predict(split.X, 3).scores
    assert np.array_equal(ranked["ignored"], ranked["once"])
    assert not np.array_equal(ranked["ignored"], ranked["repeated"])


def test_validation_by_bags_or_by_rows(context):
    """A validation share with groups is scored by bag, one without by row, and one without labels not at all."""
    split = grouped(small_problem(rows=90), 3)
    rest, held = carve_validation(split, 0.3, np.random.default_rng(0))
    assert held is not None
    scores = {}
    for name, validation in (
        ("bags", held), ("rows", small_problem(rows=30, seed=1)),
        ("nothing", replace(held, groups=Groups(held.groups.membership, csr_matrix(held.groups.labels.shape)))),
    ):  # fmt: skip
        head = MIMLHead(**QUICK)
        head.fit(rest, context=context.using(validation=validation))
        scores[name] = [epoch.score for epoch in head.history]
    assert scores["nothing"] == [None] * 3
    assert None not in scores["bags"] + scores["rows"]
    assert scores["bags"] != scores["rows"]


def test_groups_are_required_unless_alone_is_set(context):
    with pytest.raises(DataError, match=r"groups.*aggregate.*alone"):
        MIMLHead(**QUICK).fit(small_problem(), context=context)
    MIMLHead(**QUICK, alone=True).fit(small_problem(), context=context)


def test_errors_say_what_is_wrong(context, monkeypatch):
    split = grouped(small_problem(rows=30), 3)
    groups = split.groups
    no_rows = Groups(csr_matrix(groups.membership.shape), groups.labels)
    with pytest.raises(DataError, match="0 bags with rows"):
        MIMLHead(**QUICK).fit(replace(split, groups=no_rows), context=context)
    with pytest.raises(DataError, match="groups do not fit"):
        MIMLHead(**QUICK).fit(replace(split, groups=Groups(groups.membership, groups.labels[:4])), context=context)
    with pytest.raises(DataError, match="must be finite and above 0"):
        MIMLHead(**QUICK).fit(replace(split, groups=Groups(groups.membership, -groups.labels)), context=context)
    head = MIMLHead(**QUICK)
    head.fit(split, context=context)
    with pytest.raises(DataError, match="30 rows, but there are 29"):
        head.predict(split.X[:29], 3, groups=groups)
    with pytest.raises(UsageError, match="k of at least 1"):
        head.predict(split.X, 0, groups=groups)
    monkeypatch.setattr(miml, "LARGEST_STEP", 100)
    with pytest.raises(UsageError, match=r"lower batch or concepts.*eagle"):
        MIMLHead(**QUICK).fit(split, context=context)
    monkeypatch.undo()
    monkeypatch.setattr(miml, "LARGEST_EMBEDDINGS", 10)
    with pytest.raises(UsageError, match='"fixed"'):
        MIMLHead(**QUICK, embeddings="trained").fit(split, context=context)


def test_groups_that_name_rows_or_groups_that_do_not_exist_are_refused(context):
    split = grouped(small_problem(rows=30), 3)
    head = MIMLHead(**QUICK)
    head.fit(split, context=context)
    for name in ("membership", "labels"):
        beyond = getattr(split.groups, name).copy()
        beyond.indices[-1] = 10**6
        groups = replace(split.groups, **{name: beyond})
        with pytest.raises(DataError, match=f"the groups' {name} is not a sound CSR matrix"):
            MIMLHead(**QUICK).fit(replace(split, groups=groups), context=context)
        if name == "membership":
            with pytest.raises(DataError, match="not a sound CSR matrix"):
                head.predict(split.X, 3, groups=groups)


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_without_features_have_no_embeddings(context, sparse):
    split = grouped(small_problem(rows=30), 3)
    X = csr_matrix(split.X.shape, dtype=np.float32)
    head = MIMLHead(**QUICK)
    head.fit(replace(split, X=X if sparse else X.toarray()), context=context)
    assert not head.embeddings().count_nonzero()


@pytest.mark.parametrize("changes", [{}, {"direct": 1.0, "embeddings": "trained"}, {"loss": "softmax"}], ids=str)
def test_prediction_is_the_forward_pass_of_training_in_any_order_and_after_loading(context, tmp_path, changes):
    split = grouped(small_problem(rows=60), 4)
    head = MIMLHead(**QUICK, **changes)
    head.fit(split, context=context)
    ranked = head.predict(split.X, split.labels, groups=split.groups)
    bags, kept = Bags.from_membership(split.groups.membership)
    batch, _ = next(LabelledBags(split.X, bags, split.groups.labels).batches(kept, len(kept), torch.device("cpu")))
    network = head._network
    x = network.projection(network.encoder(batch.features))
    logits = network.classifier(x, network.classifier.affinity(batch), batch.sizes, Threads()).detach().numpy()
    np.testing.assert_allclose(ranked.scores, np.take_along_axis(logits, ranked.indices, axis=1), atol=1e-5)
    rng = np.random.default_rng(0)
    rows, order = rng.permutation(split.rows), rng.permutation(len(kept))
    shuffled = Groups(csr_matrix(split.groups.membership[rows][:, order]), csr_matrix(split.groups.labels[order]))
    other = head.predict(split.X[rows], split.labels, groups=shuffled)
    np.testing.assert_allclose(other.scores, ranked.scores[order], atol=1e-5)
    head.save(tmp_path)
    loaded = MIMLHead.load(tmp_path, context=context).predict(split.X, split.labels, groups=split.groups)
    assert np.array_equal(loaded.indices, ranked.indices)
    assert np.array_equal(loaded.scores, ranked.scores)


def test_predictions_do_not_depend_on_blocks(context, monkeypatch):
    split = grouped(small_problem(rows=60), 4)
    head = MIMLHead(**QUICK)
    head.fit(split, context=context)
    whole = head.predict(split.X, 5, groups=split.groups)
    monkeypatch.setattr(miml, "SCORES_AT_ONCE", 100)
    parts = head.predict(split.X, 5, groups=split.groups)
    np.testing.assert_allclose(parts.scores, whole.scores, atol=1e-5)


def test_stored_embeddings_are_checked(context, tmp_path):
    from xmckit import StorageError, store

    head = MIMLHead(**QUICK)
    head.fit(grouped(small_problem(rows=30), 3), context=context)
    head.save(tmp_path)
    tensors = store.read_tensors(tmp_path / "weights.safetensors")
    for name, place in (("classifier.embeddings.columns", 0), ("classifier.embeddings.starts", -1)):
        changed = {**tensors, name: tensors[name].clone()}
        changed[name][place] = 10**6
        store.write_tensors(tmp_path / "weights.safetensors", changed)
        with pytest.raises(StorageError, match=r"weights\.safetensors.*embedding"):
            MIMLHead.load(tmp_path, context=context)
