from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.sparse import csr_matrix

import xmckit
from xmckit.data.model import as_csr
from xmckit.nn import Classifier, TorchHead, binary_cross_entropy, prediction
from xmckit.testing.problems import small_problem


class PlainHead(TorchHead):
    """A head that gives the base nothing but a loss over logits."""

    def loss(self, classifier, x, targets, threads):
        return binary_cross_entropy(self.logits(classifier, x, threads), targets)


class RowsOnACircle(Classifier):
    """A classifier of a plan of its own: W is fixed, as a DFT's is, and computed when it is needed."""

    def __init__(self, labels, width):
        super().__init__(labels, width)
        del self.W
        angles = 2 * np.pi * np.arange(labels) / labels
        self.register_buffer("W", torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1), dtype=torch.float32))

    def start(self, train, generator):
        self.b.data.fill_(-0.5)


class CircleHead(PlainHead):
    def plan(self, train, context):
        return {**super().plan(train, context), "width": 2}

    def make_classifier(self, sizes):
        return RowsOnACircle(sizes["labels"], sizes["width"])

    def structure(self, classifier):
        return xmckit.Alternating(1, 0, np.arange(self.sizes["labels"]))


QUICK = {"epochs": 4, "learning_rate": 0.05, "dim": 6, "encoder": {"use": "sparse-linear", "width": 8}}


@pytest.fixture
def context(tmp_path):
    return xmckit.make_context(workers=2, folder=tmp_path).using(validation=small_problem(rows=30, seed=1))


def fitted(context, cls=PlainHead, train=None, **params):
    head = cls(**{**QUICK, **params})
    head.fit(train or small_problem(), context=context)
    return head


def logits_by_hand(head, X) -> np.ndarray:
    parts = head._network.state_dict()
    parts = {name: tensor.double().numpy() for name, tensor in parts.items()}
    vectors = X.toarray() @ parts["encoder.features.table"] + parts["encoder.features.bias"]
    vectors = vectors @ parts["projection.weight"].T + parts["projection.bias"]
    return vectors @ parts["classifier.W"].T + parts["classifier.b"]


@pytest.mark.parametrize("width", [8, 3], ids=["wide encoder", "narrow encoder"])
def test_predictions_are_the_three_matrices_in_a_row(context, width):
    head, X = fitted(context, encoder={"use": "sparse-linear", "width": width}), small_problem(rows=20, seed=5).matrix
    expected, found = logits_by_hand(head, X), head.predict(X, 4)
    np.testing.assert_allclose(found.scores, -np.sort(-expected, axis=1)[:, :4], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(head.labels(X).toarray() != 0, expected > head.threshold)


def test_decision_is_over_the_widest_space_that_can_be_filled(context):
    X = small_problem(rows=20, seed=5).matrix
    wide, narrow = fitted(context), fitted(context, encoder={"use": "sparse-linear", "width": 3})
    assert wide.decision().W.shape == (11, 6)
    assert wide.features(X).shape == (20, 6)
    assert narrow.decision().W.shape == (11, 3)
    assert narrow.features(X).shape == (20, 3)
    for head in (wide, narrow):
        decision = head.decision()
        np.testing.assert_allclose(
            head.features(X) @ decision.W.T + decision.b, logits_by_hand(head, X) - head.threshold, rtol=1e-4, atol=1e-4
        )
        assert (decision.replay(head.features(X)) != head.labels(X)).nnz == 0


def test_the_threshold_is_folded_without_rounding(context):
    head = fitted(context, threshold=0.1)
    biases = np.array([1e-9, 16777216.0, 0.1], np.float32)
    with torch.no_grad():
        head.network.classifier.b[:3] = torch.from_numpy(biases)
    decision = head.decision()
    assert decision.threshold == head.threshold == float(np.float32(0.1))
    for folded, bias in zip(decision.b[1:3].tolist(), biases[1:].tolist(), strict=True):
        assert Fraction(folded) == Fraction(bias) - Fraction(head.threshold)
    assert decision.b[0] != np.float32(decision.b[0])
    # a label with a zero row is output if its bias is above the threshold, by however little
    with torch.no_grad():
        head.network.classifier.W[:2] = 0
        head.network.classifier.b[:2] = torch.tensor([0.1, np.nextafter(np.float32(0.1), np.float32(1))])
    assert (head.decision().b[:2] > 0).tolist() == [False, True]
    assert (head.labels(small_problem(rows=3).matrix)[:, :2].toarray() > 0).tolist() == [[False, True]] * 3


@pytest.mark.parametrize("rows", [1, 7, 60])
@pytest.mark.parametrize("encoder", ["sparse-linear", "sparse-mlp"])
def test_features_are_the_vectors_of_labels_bit_for_bit(context, rows, encoder, monkeypatch):
    monkeypatch.setattr(prediction, "LOGITS_AT_ONCE", 11 * 23)  # blocks of 23 rows, which the width of 8 would not give
    head = fitted(context, encoder={"use": encoder, "width": 8})
    X, seen = small_problem(rows=rows, seed=5).matrix, []
    classify = head.logits
    monkeypatch.setattr(
        head, "logits", lambda layer, x, threads: (seen.append(x.numpy()), classify(layer, x, threads))[1]
    )
    sets = head.labels(X)
    assert np.concatenate(seen).tobytes() == head.features(X).tobytes()
    assert (head.decision().replay(head.features(X)) != sets).nnz == 0


def test_an_mlp_encoder_works_too(context):
    head = fitted(context, encoder={"use": "sparse-mlp", "width": 8, "hidden": 16}, epochs=20)
    train = small_problem()
    assert _precision(head, train) > 0.8


def _precision(head, split) -> float:
    return float(np.mean([split.Y[row, best] for row, best in enumerate(head.predict(split.matrix, 1).indices[:, 0])]))


def test_training_learns_and_starts_from_the_frequencies(context):
    untrained = fitted(context, epochs=1, learning_rate=1e-12, dropout=0.0)
    counts = np.asarray(small_problem().Y.sum(axis=0)).ravel()
    np.testing.assert_allclose(
        untrained._network.classifier.b.detach().numpy(), np.log((counts + 0.5) / (80 - counts + 0.5)), rtol=1e-5
    )
    trained = fitted(context, epochs=40, patience=40)
    assert _precision(trained, small_problem(rows=60, seed=9)) > 0.85


def test_zero_weights_take_pairs_out_of_training(context):
    """With weight 0 on all its pairs a label is learned as if its rows did not exist for it."""
    train, label = small_problem(), 3
    values = np.where(train.Y.indices == label, 0.0, 1.0).astype(np.float32)
    weights = csr_matrix((values, train.Y.indices, train.Y.indptr), train.Y.shape)
    ones = csr_matrix((np.ones_like(values), train.Y.indices, train.Y.indptr), train.Y.shape)
    plain, same, without = (
        fitted(context, train=replace(train, weights=given), epochs=20, patience=20) for given in (None, ones, weights)
    )
    X = train.matrix
    scores = [dict(zip(*_row(head, X, 3), strict=True)) for head in (plain, same, without)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-3, abs=1e-3)
    assert scores[2][label] < scores[0][label] - 1


def _row(head, X, row):
    topk = head.predict(X[row], 11)
    return topk.indices[0].tolist(), topk.scores[0].tolist()


def test_the_best_epochs_weights_are_kept(context):
    logged: list[str] = []
    head = fitted(context.using(log=logged.append), epochs=12, learning_rate=0.5, patience=12)
    scores = [float(line.rsplit(" ", 1)[1]) for line in logged if line.startswith("epoch")]
    validation = context.validation
    from xmckit.components.metrics import rank_metrics

    found = rank_metrics(head.predict(validation.matrix, 5), validation.Y, ks=(5,))["nDCG@5"]
    assert found == pytest.approx(max(scores), abs=1e-4)
    assert max(scores) > scores[-1], "this test needs a run whose last epoch is not its best"


def test_patience_ends_training(context):
    logged: list[str] = []
    fitted(context.using(log=logged.append), epochs=500, learning_rate=0.3, patience=2)
    assert len([line for line in logged if line.startswith("epoch")]) < 100


def test_threshold_is_chosen_on_the_validation_share_or_given(context):
    chosen = fitted(context)
    scores, truth = logits_by_hand(chosen, context.validation.matrix), context.validation.Y.toarray() != 0

    def f1(cut):
        return 2 * ((scores > cut) & truth).sum() / ((scores > cut).sum() + truth.sum())

    assert f1(chosen.threshold) >= max(f1(cut) for cut in np.arange(-6, 6, 1 / 64)) - 1e-9
    assert fitted(context, threshold=-1.25).threshold == -1.25
    logged: list[str] = []
    assert fitted(context.using(validation=None, log=logged.append)).threshold == 0.0
    assert any("above 0" in line for line in logged)


def test_stored_zeros_among_the_validation_labels_are_not_labels(context):
    validation = context.validation
    Y = validation.Y.copy()
    Y.data[::2] = 0
    written, left_out = (fitted(context.using(validation=replace(validation, Y=some))) for some in (Y, as_csr(Y)))
    assert written.threshold == left_out.threshold
    assert [epoch.score for epoch in written.history] == [epoch.score for epoch in left_out.history]
    Y.data[:] = 0
    assert fitted(context.using(validation=replace(validation, Y=Y))).history[0].score is None


def test_divergence_is_explained_and_the_last_good_weights_are_kept(context, tmp_path):
    train = small_problem()
    huge = replace(train, X=(train.matrix * np.float32(3e38)).tocsr())
    with pytest.raises(xmckit.XmckitError, match=r"epoch 1.*learning_rate below 0.05"):
        fitted(context, train=huge)

    class Fails(PlainHead):
        def loss(self, classifier, x, targets, threads):
            self.calls = getattr(self, "calls", 0) + 1
            return super().loss(classifier, x, targets, threads) * (float("nan") if self.calls > 1 else 1.0)

    head = Fails(**QUICK, batch=80)
    with pytest.raises(xmckit.XmckitError, match=r"epoch 2.*nan.*epoch 1 are in .*last-good.safetensors"):
        head.fit(train, context=context)
    with pytest.raises(xmckit.UsageError, match="not been fitted"):
        head.decision()
    from xmckit import store

    assert "classifier.W" in store.read_tensors(tmp_path / "last-good.safetensors")


@pytest.mark.parametrize(
    "train",
    [
        small_problem().take(np.arange(0)),
        replace(small_problem(), Y=csr_matrix((80, 11), dtype=np.float32)),
        replace(small_problem(), Y=csr_matrix((80, 0), dtype=np.float32)),
        replace(small_problem(), X=csr_matrix((80, 0), dtype=np.float32)),
    ],
    ids=["no rows", "no labels given", "no labels", "no features"],
)
def test_nothing_to_learn_from_is_an_error(context, train):
    with pytest.raises(xmckit.DataError, match="nothing to learn from"):
        fitted(context, train=train)


def test_misuse_is_explained(context):
    head = PlainHead(**QUICK)
    X = small_problem().matrix
    with pytest.raises(xmckit.UsageError, match="not been fitted"):
        head.predict(X, 3)
    head.fit(small_problem(), context=context)
    with pytest.raises(xmckit.DataError, match=r"42 features.*fitted on 43"):
        head.predict(X[:, :-1], 3)
    with pytest.raises(xmckit.UsageError, match="at least 1"):
        head.predict(X, 0)
    with pytest.raises(xmckit.DataError, match="rows of 6 numbers"):
        head.decision().replay(np.zeros((2, 5)))


@pytest.mark.parametrize(
    "wrong", [{"dim": 0}, {"dropout": 1.0}, {"threshold": "best"}, {"threshold": 1e300}, {"device": "tpu"}, {"dims": 3}]
)
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(ValidationError):
        PlainHead(**wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_an_error(context):
    with pytest.raises(xmckit.UsageError, match="cuda"):
        fitted(context, device="cuda")
    assert fitted(context, device="auto").predict(small_problem().matrix, 1).rows == 80


def test_dense_training_rows_give_nearly_the_same_head(context):
    train = small_problem()
    sparse = fitted(context, train=train)
    dense = fitted(context, train=replace(train, X=train.matrix.toarray()))
    assert dense.predict(train.matrix, 11).scores.shape == sparse.predict(train.matrix.toarray(), 11).scores.shape
    assert _precision(fitted(context, train=replace(train, X=train.matrix.toarray()), epochs=40), train) > 0.8


def test_small_blocks_of_rows_change_nothing(context, monkeypatch):
    head, X = fitted(context), small_problem(rows=50, seed=4).matrix
    whole, sets, vectors = head.predict(X, 5), head.labels(X), head.features(X)
    monkeypatch.setattr("xmckit.nn.prediction.LOGITS_AT_ONCE", 3 * 11)
    np.testing.assert_allclose(head.predict(X, 5).scores, whole.scores, rtol=1e-5, atol=1e-6)
    assert (head.labels(X) != sets).nnz == 0
    np.testing.assert_allclose(head.features(X), vectors, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [8, 3], ids=["wide encoder", "narrow encoder"])
def test_stored_head_is_the_same_head(context, tmp_path, width):
    head, X = fitted(context, encoder={"use": "sparse-linear", "width": width}), small_problem().matrix
    folder = tmp_path / "saved"
    folder.mkdir()
    head.save(folder)
    loaded = PlainHead.load(folder, context=context)
    assert loaded.predict(X, 11).scores.tobytes() == head.predict(X, 11).scores.tobytes()
    assert loaded.decision().W.tobytes() == head.decision().W.tobytes()
    assert loaded.threshold == head.threshold


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("state.json", lambda state: state["sizes"].update(labels=12)),
        ("state.json", lambda state: state["sizes"].pop("labels")),
        ("state.json", lambda state: state["sizes"].update(labels=-1)),
        ("state.json", lambda state: state["sizes"].update(width=0)),
        ("state.json", lambda state: state["sizes"].update(labels=10**12)),
        ("state.json", lambda state: state["sizes"].update(inputs=10**30)),
        ("state.json", lambda state: state.update(threshold="high")),
        ("state.json", lambda state: state.update(threshold=True)),
        ("state.json", lambda state: state.update(threshold=float("nan"))),
        ("state.json", lambda state: state.update(threshold=10**400)),
        ("state.json", lambda state: state.update(history=[])),
        ("state.json", lambda state: state.update(history=[["one", 0.5, None, 1.0]])),
        ("state.json", lambda state: state.update(history=[[1, 0.5, None]])),
        ("params.json", lambda params: params.update(dim="wide")),
        ("params.json", lambda params: params.update(dims=3)),
        ("params.json", lambda params: params["encoder"].update(wdth=3)),
        ("params.json", lambda params: params["encoder"].update(width=9)),
        ("params.json", lambda params: params["encoder"].update(width=3)),
    ],
)
def test_files_that_do_not_fit_together_are_refused(context, tmp_path, file, change):
    folder = tmp_path / "saved"
    folder.mkdir()
    fitted(context).save(folder)
    _edit(folder / file, change)
    with pytest.raises(xmckit.StorageError, match=r"weights.safetensors|state.json|params.json"):
        PlainHead.load(folder, context=context)


def test_stored_weights_are_finite(context, tmp_path):
    from xmckit import store

    folder = tmp_path / "saved"
    folder.mkdir()
    fitted(context).save(folder)
    tensors = store.read_tensors(folder / "weights.safetensors")
    tensors["classifier.b"][4] = float("nan")
    store.write_tensors(folder / "weights.safetensors", tensors)
    with pytest.raises(xmckit.StorageError, match=r"weights.safetensors.*classifier.b"):
        PlainHead.load(folder, context=context)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_a_feature_that_is_no_number_is_refused_with_its_row(context, value, dense):
    head, train = fitted(context), small_problem()
    X = train.matrix.astype(np.float64)
    X.data[X.indptr[7]] = value
    X = X.toarray() if dense else X
    for use in (head.labels, head.features, lambda rows: head.predict(rows, 1), lambda rows: _fit_on(context, rows)):
        with pytest.raises(xmckit.DataError, match="row 7: a feature"):
            use(X)


def _fit_on(context, X):
    return fitted(context, train=replace(small_problem(), X=X))


@pytest.mark.parametrize("weighted", [False, True])
def test_zeros_stored_among_the_labels_are_no_labels(context, weighted):
    train = small_problem()
    weights = csr_matrix((np.arange(train.Y.nnz, dtype=np.float32) % 3, train.Y.indices, train.Y.indptr), train.Y.shape)
    train = replace(train, weights=weights if weighted else None)
    rest = csr_matrix(1 - train.Y.toarray())
    padded = csr_matrix(train.Y + rest)
    padded.data[:] = train.Y.toarray().ravel()
    padded_weights = csr_matrix((weights.toarray().ravel(), padded.indices, padded.indptr), padded.shape)
    full = replace(train, Y=padded, weights=padded_weights if weighted else None)
    expected, found = fitted(context, train=train).decision(), fitted(context, train=full).decision()
    assert padded.nnz == padded.shape[0] * padded.shape[1]
    assert found.W.tobytes() == expected.W.tobytes()
    assert found.b.tobytes() == expected.b.tobytes()


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_weights_that_make_no_sense_are_refused_with_their_row(context, value):
    train = small_problem()
    weights = csr_matrix((np.ones(train.Y.nnz, np.float32), train.Y.indices, train.Y.indptr), train.Y.shape)
    weights.data[weights.indptr[5]] = value
    with pytest.raises(xmckit.DataError, match="row 5: train has a weight that is not a finite number"):
        fitted(context, train=replace(train, weights=weights))


def test_weights_of_another_pattern_are_refused(context):
    train = small_problem()
    with pytest.raises(xmckit.DataError, match="pattern"):
        fitted(context, train=replace(train, weights=csr_matrix(train.Y[::-1])))


def test_an_interrupt_leaves_an_unfitted_head_and_torch_as_it_was(context):
    class Interrupted(PlainHead):
        def loss(self, classifier, x, targets, threads):
            raise KeyboardInterrupt

    head, count = Interrupted(**QUICK), torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        head.fit(small_problem(), context=context)
    assert torch.get_num_threads() == count
    with pytest.raises(xmckit.UsageError, match="not been fitted"):
        head.predict(small_problem().matrix, 1)


def test_a_head_with_a_layer_of_its_own_needs_only_the_layer(context, tmp_path):
    head, X = fitted(context, cls=CircleHead), small_problem().matrix
    decision = head.decision()
    assert decision.W.shape == (11, 2)
    assert decision.structure.degree == 1
    np.testing.assert_allclose(np.linalg.norm(decision.W, axis=1), 1, rtol=1e-6)
    folder = tmp_path / "saved"
    folder.mkdir()
    head.save(folder)
    assert (
        CircleHead.load(folder, context=context).predict(X, 3).scores.tobytes() == head.predict(X, 3).scores.tobytes()
    )
    narrow = fitted(context, cls=CircleHead, encoder={"use": "sparse-linear", "width": 1})
    assert narrow.decision().structure is None
    assert narrow.decision().W.shape == (11, 1)


def test_progress_shows_loss_and_score(context):
    seen: list[dict] = []

    class Bar:
        def advance(self, steps=1, **facts):
            seen.append(facts)

    from contextlib import contextmanager

    @contextmanager
    def progress(what, total=None):
        assert total == 4
        yield Bar()

    fitted(context.using(progress=progress))
    assert [facts["epoch"] for facts in seen] == [1, 2, 3, 4]
    assert "loss" in seen[0]
    assert "nDCG@5" in seen[-1]


def test_global_state_of_torch_is_left_alone(context):
    state, count = torch.random.get_rng_state(), torch.get_num_threads()
    head = fitted(context)
    head.predict(small_problem().matrix, 3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == count


@pytest.mark.parametrize(("part", "value"), [("indices", 10**8), ("indices", -1), ("indptr", 10**6)])
def test_broken_matrices_are_found_before_anything_reads_them(context, part, value):
    train = small_problem()
    for name in ("feature", "label"):
        broken = (train.matrix if name == "feature" else train.Y).copy()
        getattr(broken, part)[1] = value
        head = context.build("head", {"use": "bsl", "epochs": 1, "dim": 6})
        with pytest.raises(xmckit.DataError, match=f"the {name} matrix is not a sound CSR matrix"):
            head.fit(replace(train, **{"X" if name == "feature" else "Y": broken}), context=context)
