from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

import xmckit
from xmckit.recipe import load_recipe
from xmckit.testing.problems import small_problem

torch = pytest.importorskip("torch")


def fitted(train, *, context=None, **params):
    context = context or xmckit.make_context(workers=2)
    head = context.build("head", {"use": "dft", "epochs": 2, **params})
    head.fit(train, context=context)
    return head


def labelled(sets, labels):
    """Rows with random features and these label sets."""
    Y = np.zeros((len(sets), labels), dtype=np.float32)
    for row, active in enumerate(sets):
        Y[row, list(active)] = 1
    X = np.random.default_rng(0).standard_normal((len(sets), 30)).astype(np.float32)
    return xmckit.Split(X, csr_matrix(Y))


def runs(active):
    """Cyclic runs by looking at every place."""
    return sum(here and not before for here, before in zip(active, np.roll(active, 1), strict=True))


def can_be_output(decision, active):
    signs = np.where(active, 1.0, -1.0)[:, None]
    rows = signs * decision.W.astype(np.float64)
    found = linprog(
        np.zeros(rows.shape[1]), A_ub=-rows, b_ub=(signs[:, 0] * decision.b) - 1, bounds=(None, None), method="highs"
    )
    return found.status == 0


@pytest.mark.parametrize("angles", ["fixed", "learned"])
def test_what_the_structure_says_is_within_reach_is(angles):
    train = labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 8)
    head = fitted(train, active=2, slack=0, bias=False, angles=angles, encoder={"use": "sparse-linear", "width": 5})
    decision = head.decision()
    assert (decision.structure.degree, decision.structure.slack) == (2, 0)
    for active in product([False, True], repeat=8):
        placed = np.empty(8, dtype=bool)
        placed[decision.structure.order] = active
        assert can_be_output(decision, np.array(active)) == (runs(placed) <= 2)


def test_slack_columns_and_biases_take_nothing_away():
    head = fitted(labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 8), active=2, slack=3)
    decision = head.decision()
    assert np.ptp(decision.b) > 0
    for active in product([False, True], repeat=8):
        placed = np.empty(8, dtype=bool)
        placed[decision.structure.order] = active
        assert runs(placed) > 2 or can_be_output(decision, np.array(active))


def test_the_degree_comes_from_the_runs_of_the_training_labels():
    """Two groups of labels that always come together: one run each, however their numbers are mixed."""
    train = labelled([{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}] * 5, 10)
    assert fitted(train).sizes["degree"] == 1
    assert fitted(train, order="given").sizes["degree"] == 4  # 5 runs, but 10 labels allow a degree of 4 at most
    facts = fitted(train, order="given").facts(train.Y)
    assert facts["training and validation rows beyond the guarantee"] == 10
    assert facts["sign rank of the training and validation labels, at most"] == 11


def test_validation_rows_count_for_the_degree():
    train = labelled([{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}] * 5, 10)
    context = xmckit.make_context(workers=2).using(validation=labelled([{0, 1}, {4, 5}], 10))
    assert fitted(train, context=context).sizes["degree"] == 2


def test_rows_beyond_the_guarantee_are_counted_and_said():
    train = labelled([{0, 2, 4}, {1}, {3}, {5}], 9)
    head = fitted(train, active=1, order="given")
    facts = head.facts(labelled([{0, 1}, {0, 5}, {2}], 9).Y)
    assert facts["training and validation rows beyond the guarantee"] == 1
    assert facts["test rows beyond the guarantee"] == 1
    assert facts["guarantee"].startswith("every label set with at most 1 runs")
    assert any("head.active = 3 would include them" in warning for warning in facts["warnings"])


def test_a_narrow_encoder_loses_the_guarantee_and_this_is_said():
    head = fitted(small_problem(), slack=8, encoder={"use": "sparse-linear", "width": 6})
    decision, facts = head.decision(), head.facts(small_problem().Y)
    assert decision.structure is None
    assert decision.W.shape[1] == 6
    assert facts["guarantee"].startswith("lost")
    assert f"set head.encoder.width to {head.sizes['width']} or more" in facts["warnings"][0]


def test_the_encoder_is_wide_enough_unless_the_recipe_says_otherwise():
    assert fitted(small_problem(), slack=300).decision().structure is not None


def test_without_biases_every_label_starts_at_k_of_n():
    train = small_problem()
    context = xmckit.make_context(workers=1)
    head = context.build("head", {"use": "dft", "active": 2, "bias": False, "slack": 4})
    head.sizes = head.plan(train, context)
    network = head._new_network(torch.Generator().manual_seed(0), context)
    head.start(network, train, torch.Generator().manual_seed(0))
    W, b = network.classifier.matrix()
    logits = W @ network.projection.bias + b
    np.testing.assert_allclose(torch.sigmoid(logits).detach().numpy(), 2 / train.labels, rtol=1e-4)


def test_labels_stand_where_the_order_file_says(tmp_path):
    path = tmp_path / "order.txt"
    labels = small_problem().labels
    path.write_text("\n".join(str(label) for label in reversed(range(labels))))
    head = fitted(small_problem(), order_file=str(path))
    np.testing.assert_array_equal(head.decision().structure.order, np.arange(labels)[::-1])
    path.write_text("\n".join(["0"] * labels))
    with pytest.raises(xmckit.DataError, match=r"order\.txt"):
        fitted(small_problem(), order_file=str(path))


def test_too_many_waves_for_the_labels():
    with pytest.raises(xmckit.UsageError, match="active is 5, but 10 labels allow at most 4"):
        fitted(labelled([{0}, {1}], 10), active=5)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (['head={use="dft", loss="lml", threshold=0.5}'], "threshold has no meaning with the loss 'lml'"),
        (['head={use="dft", k=3}'], "k has no meaning with the loss 'bce'"),
        (['head={use="dft", loss="hinge"}'], "head.loss"),
        (['head={use="bsl", k=3}'], "head.k: unknown key"),
        (['head={use="lml", threshold=1.0}'], "head.threshold: unknown key"),
    ],
)
def test_pairs_that_do_not_go_together_are_mistakes_of_the_recipe(sets, message):
    with pytest.raises(xmckit.RecipeError, match=message):
        load_recipe("quickstart", sets=["head.encoder={use='sparse-linear'}", *sets])


@pytest.mark.parametrize("loss", ["lml", "topk-entropy", "softmax"])
def test_ranking_losses_output_k_labels(loss):
    train = small_problem()
    head = fitted(train, loss=loss, k=3)
    assert head.decision().rule == "topk"
    np.testing.assert_array_equal(np.diff(head.labels(train.matrix).indptr), 3)


def test_the_layer_is_the_same_after_training_as_one_product(tmp_path):
    train = small_problem()
    head = fitted(train, epochs=5)
    decision = head.decision()
    scores = head.features(train.matrix) @ decision.W.T + decision.b
    expected = head.predict(train.matrix, 3)
    np.testing.assert_array_equal(np.sort(np.argsort(-scores, axis=1)[:, :3]), np.sort(expected.indices))
