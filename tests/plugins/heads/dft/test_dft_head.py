from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

import xmckit
from xmckit import store
from xmckit.decisions import scores_and_bounds
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


@pytest.mark.parametrize("params", [{}, {"angles": "learned"}, {"active": 30, "slack": 0, "bias": False}])
def test_logits_are_within_the_bound_of_the_decision(params):
    train = small_problem(labels=90, rows=200)
    head = fitted(train, **{"slack": 8, **params})
    decision, X = head.decision(), small_problem(labels=90, rows=60, seed=3).matrix
    assert (decision.rounding is None) == (params.get("angles") == "learned")
    ranking = head.predict(X, 90)
    scores, bounds = scores_and_bounds(decision, head.features(X))
    by_head = np.empty_like(scores)
    np.put_along_axis(by_head, ranking.indices.astype(np.int64), ranking.scores.astype(np.float64), axis=1)
    assert (np.abs(by_head - decision.threshold - scores) <= bounds).all()


def arcs(active):
    """Count cyclic arcs by looking at every position."""
    return sum(here and not before for here, before in zip(active, np.roll(active, 1), strict=True))


def can_be_output(decision, active):
    signs = np.where(active, 1.0, -1.0)[:, None]
    rows = signs * decision.W.astype(np.float64)
    found = linprog(
        np.zeros(rows.shape[1]), A_ub=-rows, b_ub=(signs[:, 0] * decision.b) - 1, bounds=(None, None), method="highs"
    )
    return found.status == 0


@pytest.mark.parametrize("angles", ["fixed", "learned"])
def test_exactly_the_sets_of_the_structure_can_be_output(angles):
    train = labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 8)
    head = fitted(train, active=2, slack=0, bias=False, angles=angles, encoder={"use": "sparse-linear", "width": 5})
    decision = head.decision()
    assert (decision.structure.degree, decision.structure.slack) == (2, 0)
    for active in product([False, True], repeat=8):
        on_circle = np.empty(8, dtype=bool)
        on_circle[decision.structure.order] = active
        assert can_be_output(decision, np.array(active)) == (arcs(on_circle) <= 2)


def test_slack_columns_and_biases_take_nothing_away():
    head = fitted(labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 8), active=2, slack=3)
    decision = head.decision()
    assert np.ptp(decision.b) > 0
    for active in product([False, True], repeat=8):
        on_circle = np.empty(8, dtype=bool)
        on_circle[decision.structure.order] = active
        assert arcs(on_circle) > 2 or can_be_output(decision, np.array(active))


def test_the_degree_comes_from_the_arcs_of_the_training_labels():
    """Two groups of labels that always come together: one arc each, however their numbers are mixed."""
    train = labelled([{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}] * 5, 10)
    assert fitted(train).sizes["degree"] == 1
    assert fitted(train, order="given").sizes["degree"] == 4  # 5 arcs, but 10 labels allow a degree of 4 at most
    facts = fitted(train, order="given").facts(train.Y)
    assert facts["training and validation rows beyond the guarantee"] == 10
    assert facts["sign rank of the training and validation labels, at most"] == 11


def test_validation_rows_count_for_the_degree():
    train = labelled([{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}] * 5, 10)
    context = xmckit.make_context(workers=2).using(validation=labelled([{0, 1}, {4, 5}], 10))
    assert fitted(train, context=context).sizes["degree"] == 2


def test_rows_beyond_the_guarantee_are_counted_and_reported():
    train = labelled([{0, 2, 4}, {1}, {3}, {5}], 9)
    head = fitted(train, active=1, slack=4, order="given")
    facts = head.facts(labelled([{0, 1}, {0, 5}, {2}], 9).Y)
    assert facts["training and validation rows beyond the guarantee"] == 1
    assert facts["test rows beyond the guarantee"] == 1
    assert facts["guarantee"].startswith("every label set with at most 1 arcs")
    assert any("head.active = 3 would include them" in warning for warning in facts["warnings"])


def test_a_narrow_encoder_loses_the_guarantee_and_warns():
    head = fitted(small_problem(), slack=8, encoder={"use": "sparse-linear", "width": 6})
    decision, facts = head.decision(), head.facts(small_problem().Y)
    assert decision.structure is None
    assert decision.W.shape[1] == 6
    assert facts["guarantee"].startswith("lost")
    assert f"set head.encoder.width to {head.sizes['width']} or more" in facts["warnings"][0]


@pytest.mark.parametrize("encoder", ["sparse-linear", "sparse-mlp"])
def test_the_encoder_is_wide_enough_unless_the_recipe_says_otherwise(encoder):
    head = fitted(small_problem(), slack=300, encoder={"use": encoder})
    assert head.decision().structure is not None
    x = torch.from_numpy(
        head.features(np.random.default_rng(0).standard_normal((900, small_problem().matrix.shape[1])))
    )
    assert encoder != "sparse-mlp" or torch.linalg.matrix_rank((x - x.mean(0)).double()) == head.sizes["width"]


def test_a_hidden_layer_that_is_too_narrow_loses_the_guarantee_too():
    head = fitted(small_problem(), slack=8, encoder={"use": "sparse-mlp", "hidden": 6})
    assert head.decision().structure is None
    assert head.decision().W.shape[1] == 6
    facts = head.facts(small_problem().Y)
    assert facts["guarantee"].startswith("lost")
    assert "head.encoder.width and head.encoder.hidden" in facts["warnings"][0]


def test_fewer_features_than_columns_lose_the_guarantee_too():
    train = labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 8)
    wide, enough = (fitted(train, slack=slack).facts(train.Y) for slack in (40, 4))
    assert wide["guarantee"].startswith("lost")
    assert "rows have 30 features" in wide["warnings"][0]
    assert enough["guarantee"].startswith("every label set")


def test_a_ranking_head_guarantees_sets_of_its_size():
    facts = fitted(small_problem(), slack=4, loss="lml", k=3).facts(small_problem().Y)
    assert facts["guarantee"].startswith("every set of 3 labels with at most")


def test_no_degree_is_advised_that_the_labels_do_not_allow():
    train = labelled([{0, 2}, {1, 3}, {0}], 4)
    warnings = fitted(train, slack=4, order="given").facts(train.Y)["warnings"]
    assert warnings == [
        "2 rows seen in training have more than 1 arcs of active labels, which the guarantee does not cover; "
        "4 labels are too few to include them"
    ]


def test_more_columns_than_an_encoder_can_be_wide():
    with pytest.raises(
        xmckit.UsageError, match="the encoder 'sparse-linear' cannot serve this head, which asks for a width of 655"
    ):
        fitted(small_problem(), slack=65536)


def saved(head, folder):
    folder.mkdir()
    head.save(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sizes: sizes.pop("degree"), "expected the sizes degree"),
        (lambda sizes: sizes.pop("beyond"), "expected the sizes beyond"),
        (lambda sizes: sizes.update(degree=99), "degree 99 is not possible"),
    ],
)
def test_damaged_sizes_name_their_file(tmp_path, change, message):
    folder = saved(fitted(small_problem(), slack=4), tmp_path / "head")
    state = json.loads((folder / "state.json").read_text())
    change(state["sizes"])
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(xmckit.StorageError, match=rf"state\.json.*{message}"):
        xmckit.make_context().load("head", "dft", folder)


@pytest.mark.parametrize("name", ["slot_of_label", "place_of_label"])
@pytest.mark.parametrize("change", [lambda t: t * 0, lambda t: t + 100, lambda t: t.roll(1)], ids=["0", "+100", "roll"])
def test_a_damaged_label_order_names_its_file(tmp_path, name, change):
    path = saved(fitted(small_problem(), slack=4), tmp_path / "head") / "weights.safetensors"
    tensors = store.read_tensors(path)
    tensors[f"classifier.{name}"] = change(tensors[f"classifier.{name}"])
    store.write_tensors(path, tensors)
    with pytest.raises(xmckit.StorageError, match=r"weights\.safetensors.*label order"):
        xmckit.make_context().load("head", "dft", path.parent)


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


@pytest.mark.parametrize(("loss", "k", "warned"), [("lml", 10, True), ("topk-entropy", 10, True), ("lml", 9, False)])
def test_a_loss_that_is_always_0_warns(loss, k, warned):
    train = labelled([{0, 3}, {1, 4, 6}, {2}, {5, 7}], 10)
    warnings = fitted(train, slack=4, loss=loss, k=k).facts(train.Y)["warnings"]
    assert any(text.startswith("nothing was learned: if all 10 labels are output") for text in warnings) == warned
