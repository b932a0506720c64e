from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import xmckit
from xmckit import store
from xmckit.nn import FeatureTable, Targets, TorchHeadParams, binary_cross_entropy
from xmckit.nn.batches import as_batch, as_inputs
from xmckit.nn.threads import Threads
from xmckit.nn.training import RowExamples, best_epoch, train
from xmckit.testing.problems import small_problem


@pytest.fixture
def context(tmp_path):
    return xmckit.make_context(workers=1, folder=tmp_path)


def always_one(step):
    return 1.0


def nothing(network, step):
    pass


def trained(context, *, X=None, scores=None, loss_factor=always_one, before_step=nothing, **changes):
    """(network, its weights after each epoch, the epochs) of a linear model; `scores` stand in for a validation.

    80 rows in batches of 30 make 3 steps an epoch. Steps count from 1.
    """
    X = as_inputs(small_problem().matrix) if X is None else X
    network = FeatureTable(X.shape[1], small_problem().labels, torch.Generator().manual_seed(0))
    steps, epochs, scored = [], [], iter(scores or ())

    def loss(batch, targets):
        steps.append(len(steps) + 1)
        before_step(network, len(steps))
        return binary_cross_entropy(network(batch), targets) * loss_factor(len(steps))

    def validate():
        epochs.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        return next(scored)

    params = TorchHeadParams.model_construct(
        **{"epochs": 4, "batch": 30, "learning_rate": 0.1, "weight_decay": 0, "patience": 9} | changes
    )
    history = train(
        network, RowExamples(X, small_problem().Y), loss, params=params, validate=validate if scores else None,
        context=context, threads=Threads(), device=torch.device("cpu"),
    )  # fmt: skip
    return network, epochs, history


def test_history_has_every_epoch(context):
    logged: list[str] = []
    _, _, history = trained(context.using(log=logged.append), scores=[0.3, 0.5, 0.4, 0.2])
    assert [epoch.number for epoch in history] == [1, 2, 3, 4]
    assert [epoch.score for epoch in history] == [0.3, 0.5, 0.4, 0.2]
    losses, seconds = ([epoch[place] for epoch in history] for place in (1, 3))
    assert losses == sorted(losses, reverse=True)
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert (len(history), best_epoch(history), history[best_epoch(history) - 1].score) == (4, 2, 0.5)
    assert [float(line.split("loss ")[1].split(",")[0]) for line in logged] == pytest.approx(losses, rel=1e-4)


def test_loss_in_the_history_is_the_mean_over_batches(context):
    """With a learning rate of nearly nothing all batches see the same weights."""
    data = small_problem()
    network, _, history = trained(context, epochs=1, learning_rate=1e-12, batch=20)
    with torch.no_grad():
        whole = binary_cross_entropy(network(as_batch(data.matrix)), Targets.from_csr(data.Y, None))
    assert history[0].loss == pytest.approx(whole.item(), rel=1e-5)
    assert history[0].score is None
    assert (len(history), best_epoch(history)) == (1, 1)


def test_best_epochs_weights_stay_and_patience_ends_training(context):
    network, epochs, history = trained(context, scores=[0.3, 0.5, 0.4, 0.5, 0.2, 0.9], epochs=9, patience=3)
    assert (len(history), best_epoch(history)) == (5, 2)
    assert all(torch.equal(tensor, epochs[1][name]) for name, tensor in network.state_dict().items())
    assert not torch.equal(network.table, epochs[4]["table"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_divergence_says_what_happened_and_keeps_the_best_epoch(context, tmp_path, bad):
    seen: list[dict[str, torch.Tensor]] = []

    def remember(network, step):
        if step % 3 == 1:
            seen.append({name: tensor.clone() for name, tensor in network.state_dict().items()})

    with pytest.raises(xmckit.XmckitError) as caught:
        trained(
            context,
            scores=[0.5, 0.9, 0.7, 0.1],
            loss_factor=lambda step: bad if step == 11 else 1.0,
            before_step=remember,
        )
    path = tmp_path / "last-good.safetensors"
    message = str(caught.value)
    assert f"training diverged in epoch 4: the loss became {bad}" in message
    assert "learning_rate below 0.1" in message
    assert message.endswith(f"The weights of epoch 2 are in {path}.")
    kept = store.read_tensors(path)
    after_epoch_2 = seen[2]
    assert all(torch.equal(kept[name], after_epoch_2[name]) for name in after_epoch_2)
    fresh = FeatureTable(small_problem().matrix.shape[1], small_problem().labels, torch.Generator())
    fresh.load_state_dict(kept)
    assert torch.isfinite(fresh(as_batch(small_problem().matrix))).all()


def test_without_validation_the_last_whole_epoch_is_kept(context, tmp_path):
    with pytest.raises(xmckit.XmckitError, match=r"epoch 3: the loss became nan.*weights of epoch 2 are in"):
        trained(context, loss_factor=lambda step: math.nan if step == 8 else 1.0)
    expected, _, _ = trained(context, epochs=2)
    kept = store.read_tensors(tmp_path / "last-good.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.state_dict().items())


def test_divergence_in_the_first_epoch_says_that_nothing_was_there_to_keep(context, tmp_path):
    with pytest.raises(
        xmckit.XmckitError, match=r"epoch 1: the loss became nan.*learning_rate.*no good weights to keep"
    ):
        trained(context, scores=[0.5], loss_factor=lambda step: math.nan if step == 3 else 1.0)
    assert not list(tmp_path.iterdir())


def test_a_weight_that_is_no_longer_finite_is_found_after_the_epoch(context):
    """A finite loss does not tell of it where no row uses the weight."""

    def break_unused(network, step):
        if step == 6:
            network.table.data[3, 0] = math.inf

    message = (
        r"epoch 2: a weight is no longer finite, at a loss of \d.*epoch 1 were good, "
        "but this context has no folder"
    )
    with pytest.raises(xmckit.XmckitError, match=message):
        trained(context.using(folder=None), X=csr_matrix((80, 9), dtype=np.float32), before_step=break_unused)
