"""xmckit's checks of both components, and tests of what they compute."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from xmckit_asymmetric.head import AsymmetricHead
from xmckit_asymmetric.numbers import NumbersDataset, in_words

import xmckit
from xmckit import nn
from xmckit.testing import parametrize_with_checks

QUICK = {"epochs": 2, "dim": 8, "encoder": {"use": "sparse-linear", "width": 8}}


@parametrize_with_checks([("head", AsymmetricHead, QUICK)])
def test_contract_of_the_head(check):
    check()


@pytest.mark.parametrize(("positive", "negative", "shift"), [(0.0, 2.0, 0.05), (1.5, 1.0, 0.3)])
def test_the_loss_is_what_its_formula_says(positive, negative, shift):
    draw = torch.Generator().manual_seed(0)
    classifier, x = nn.Classifier(4, 3), torch.randn(5, 3, generator=draw)
    torch.nn.init.normal_(classifier.W, generator=draw)
    true = torch.rand(5, 4, generator=draw) < 0.4
    targets = nn.Targets.from_csr(csr_matrix(true.numpy().astype(np.float32)), None)
    head = AsymmetricHead(positive_focus=positive, negative_focus=negative, shift=shift)
    p = torch.sigmoid(x @ classifier.W.T + classifier.b)
    q = torch.relu(p - shift)
    expected = torch.where(true, -((1 - p) ** positive) * torch.log(p), -(q**negative) * torch.log(1 - q)).sum() / 5
    torch.testing.assert_close(head.loss(classifier, x, targets, nn.Threads()), expected, check_dtype=False)


def test_numbers_in_words():
    assert in_words(7) == "seven"
    assert in_words(40) == "forty"
    assert in_words(9115) == "nine thousand one hundred fifteen"


def test_the_labels_of_numbers():
    data = NumbersDataset(most=60).read(context=xmckit.make_context())
    data.check()
    rows = data.train if "60" in data.train.names else data.test
    labels = rows.Y[rows.names.index("60")].indices
    assert {data.label_names[label] for label in labels} == {
        *(f"divisible by {divisor}" for divisor in (2, 3, 4, 5, 10)),
        "ends in 0",
        "2 digits",
    }


def test_both_are_registered():
    context = xmckit.make_context()
    assert context.resolve("head", "asymmetric") is AsymmetricHead
    assert context.resolve("dataset", "numbers") is NumbersDataset
