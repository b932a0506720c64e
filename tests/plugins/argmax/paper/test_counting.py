from __future__ import annotations

import itertools
import json
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from click.testing import CliRunner
from exact_lp import strictly_argmaxable
from xmckit_argmax.cli.argmax import argmax
from xmckit_argmax.paper.counting import argmaxable_count, share_curve, share_of_all

import xmckit


def enumerated(W, b, rule):
    labels = range(len(W))
    sets = itertools.chain.from_iterable(itertools.combinations(labels, size) for size in range(len(W) + 1))
    return sum(strictly_argmaxable(W, b, rule, active) for active in sets)


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("labels", "dim"), [(0, 0), (0, 2), (1, 0), (3, 0), (1, 1), (3, 2), (5, 2), (6, 3), (4, 6)])
def test_counts_are_those_of_random_matrices(labels, dim, bias, rule):
    rng = np.random.default_rng(7)
    W, b = rng.standard_normal((labels, dim)), rng.standard_normal(labels) if bias else None
    assert argmaxable_count(labels, dim, bias=bias, rule=rule) == enumerated(W, b, rule)


def test_the_papers_numbers():
    assert argmaxable_count(3, 2) == 6
    assert argmaxable_count(3, 2, bias=True) == 7
    assert argmaxable_count(6, 3) == 32
    assert argmaxable_count(1000, 500) == 2**999  # half of all, where the paper's second figure has its dip


def test_dependent_rows_reach_fewer():
    W = np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 0]])
    assert enumerated(W, None, "sign") < argmaxable_count(5, 3)


@pytest.mark.parametrize("bias", [False, True])
def test_logarithms_follow_the_exact_counts(bias):
    dims = range(401)
    shares = share_curve(400, dims, bias=bias)
    with localcontext() as digits:
        digits.prec = 200
        for dim in dims:
            count = argmaxable_count(400, dim, bias=bias)
            exact = float((Decimal(count) / Decimal(2) ** 400).log10()) if count else -math.inf
            assert shares[dim] == pytest.approx(exact, rel=1e-11, abs=0)


@pytest.mark.parametrize("dim", [1, 40, 1000])
def test_a_million_labels_stay_accurate(dim):
    exact = math.log10(argmaxable_count(10**6, dim)) - 10**6 * math.log10(2)
    assert share_of_all(10**6, dim) == pytest.approx(exact, abs=1e-8)


def test_a_million_labels_in_the_middle_are_half():
    assert share_of_all(10**6, 500_000) == pytest.approx(math.log10(0.5), abs=1e-8)
    assert -1e-80 < share_of_all(10**6, 510_000) < -1e-100
    assert share_of_all(10**6, 10**6) == 0


def test_shares_grow_with_the_dimension_and_shrink_with_the_labels():
    curve = share_curve(3000, range(3001))
    assert curve[0] == -math.inf
    assert curve[-1] == 0
    assert (np.diff(curve[1:]) >= 0).all()
    assert share_of_all(2000, 100) > share_of_all(3000, 100)


def test_what_cannot_be_counted_is_an_error():
    with pytest.raises(xmckit.UsageError, match="-1 labels"):
        argmaxable_count(-1, 2)
    with pytest.raises(xmckit.UsageError, match="'best'"):
        argmaxable_count(3, 2, rule="best")
    with pytest.raises(xmckit.UsageError, match="too many"):
        share_of_all(10**9, 2)


def run(*arguments):
    result = CliRunner().invoke(argmax, ["count", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_says_it_in_a_sentence():
    lines = run("--labels", "6", "--dim", "3", "--dim", "0", "--dim", "6").splitlines()
    assert lines == [
        "d = 3: 32 of 2^6 label sets can be output, 50 %",
        "d = 0: no label set of 6 labels can be output",
        "d = 6: 64 of 2^6 label sets can be output, all of them",
    ]
    assert "a share of 10^-" in run("--labels", "8921", "--dim", "100")
    assert "all but a share of" in run("--labels", "1000", "--dim", "700")


def test_the_command_prints_json_and_draws(tmp_path):
    picture = tmp_path / "share.svg"
    facts = json.loads(run("--labels", "100000", "--dim", "64", "--dim", "2", "--json", "--plot", str(picture)))
    assert facts["labels"] == 100_000
    wide, narrow = facts["counts"]
    assert wide["count"] is None
    assert wide["log10_share"] == pytest.approx(share_of_all(100_000, 64))
    assert narrow["count"] == argmaxable_count(100_000, 2)
    assert picture.read_text("utf-8").startswith("<svg")
