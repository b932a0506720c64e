"""Labels merged on train and test rows, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

pytest.importorskip("pecos")

from xmckit_pecos.entangled import Entangled, entangle

import xmckit
from xmckit import DataError, Dataset, Groups, Split, make_context

BASE = {"use": "synthetic", "rows": 400, "test_rows": 60, "features": 200, "labels": 64, "topics": 8}


def read(**params):
    context = make_context(seed=params.pop("seed", 0), workers=1)
    return Entangled(of=BASE, **params).read(context=context)


def pieces(data):
    """The labels that became one, by name."""
    return [frozenset(name.split(" + ")) for name in data.label_names]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), labels=st.integers(1, 9), size=st.integers(1, 10))
def test_a_merged_label_is_on_the_rows_of_its_labels(data, labels, size):
    rows = data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    Y, left_out = (rng.random((rows, labels)) < 0.4 for _ in range(2))
    groups = Groups(csr_matrix(np.eye(rows, 2, dtype=np.float32)), csr_matrix(rng.integers(0, 3, (2, labels)) * 1.0))
    split = Split(
        X=np.ones((rows, 1), np.float32), Y=csr_matrix(Y * 1.0), filter=csr_matrix(left_out * 1.0), groups=groups
    )
    order = rng.permutation(labels)
    features = rng.random((labels, 3)).astype(np.float32)
    merged = entangle(Dataset("toy", split, split, label_features=features), order, size, "hard")
    merged.check()
    assert merged.labels == -(-labels // size)
    for piece in range(merged.labels):
        members = order[piece * size : (piece + 1) * size]
        assert merged.label_names[piece] == " + ".join(str(label) for label in members)
        assert np.array_equal(merged.test.Y.toarray()[:, piece] > 0, Y[:, members].any(axis=1))
        counts = (Y & ~left_out)[:, members].any(axis=1)
        expected = left_out[:, members].any(axis=1) & ~counts
        assert np.array_equal(merged.test.filter.toarray()[:, piece] > 0, expected)
        assert np.allclose(merged.train.groups.labels.toarray()[:, piece], groups.labels.toarray()[:, members].sum(1))
        assert np.allclose(merged.label_features[piece], features[members].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("size", [2, 5])
def test_every_label_is_in_one_piece_and_the_rows_stay(difficulty, size):
    context = make_context(workers=1)
    plain = context.build("dataset", BASE).read(context=context)
    data = read(size=size, difficulty=difficulty)
    assert sorted(label for piece in pieces(data) for label in piece) == sorted(plain.label_names)
    assert {len(piece) for piece in pieces(data)} <= {size, plain.labels % size}
    assert (data.train.X != plain.train.X).nnz == 0
    again, other = read(size=size, difficulty=difficulty), read(size=size, difficulty=difficulty, draw=1)
    assert pieces(again) == pieces(data)
    assert set(pieces(other)) != set(pieces(data))
    assert (other.train.X != plain.train.X).nnz == 0


def test_easy_merges_labels_that_are_alike_and_hard_does_not():
    def alike(difficulty):
        """The mean similarity of two labels that became one, by the rows that have both kinds of words."""
        context = make_context(workers=1)
        plain = context.build("dataset", BASE).read(context=context)
        means = plain.train.Y.T @ plain.train.X
        means = means.toarray() / np.maximum(np.linalg.norm(means.toarray(), axis=1, keepdims=True), 1e-9)
        number = {name: label for label, name in enumerate(plain.label_names)}
        pairs = [[number[name] for name in piece] for piece in pieces(read(size=2, difficulty=difficulty))]
        return np.mean([means[one] @ means[other] for one, other in pairs])

    assert alike("easy") > alike("medium") + 0.02
    assert alike("medium") > alike("hard") - 0.02


def test_texts_are_compared_by_their_words():
    context = make_context(workers=1)
    spec = {"use": "entangled", "of": {"use": "stdlib-calls"}, "size": 8, "difficulty": "easy"}
    prints = context.build("dataset", spec).fingerprint(context=context)
    assert "seed" in prints


def test_weights_are_refused():
    Y = csr_matrix(np.ones((1, 2), np.float32))
    split = Split(X=np.ones((1, 1), np.float32), Y=Y, weights=Y)
    with pytest.raises(DataError, match="weights"):
        entangle(Dataset("toy", split, split), np.arange(2), 2, "hard")


def test_a_recipe_runs_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
    inner = ", ".join(f'{key} = "{value}"' if key == "use" else f"{key} = {value}" for key, value in BASE.items())
    (tmp_path / "mixed.toml").write_text(
        f'[data]\nuse = "entangled"\nsize = 4\ndifficulty = "easy"\nof = {{ {inner} }}\n[head]\nuse = "popularity"\n'
    )
    result = xmckit.run(tmp_path / "mixed.toml", root=tmp_path / "runs")
    assert result.metrics["labels"] == 16
