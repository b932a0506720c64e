from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

import xmckit
from xmckit.components.metrics import rank_metrics
from xmckit.testing.problems import small_problem

torch = pytest.importorskip("torch")


def fitted(train, *, validation=None, workers=2, seed=0, **params):
    context = xmckit.make_context(workers=workers, seed=seed).using(validation=validation)
    head = context.build("head", {"use": "bsl", **params})
    head.fit(train, context=context)
    return head


def test_it_is_registered_and_names_its_parameters():
    head = xmckit.make_context().resolve("head", "bsl")
    assert {"dim", "encoder", "learning_rate", "threshold"} <= set(head.Params.model_fields)
    assert all(field.description for field in head.Params.model_fields.values())


def test_without_a_bottleneck_it_is_logistic_regression():
    """Wide enough and trained to the end, the layer can do what one logistic regression per label does."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4)).astype(np.float32)
    Y = (X @ rng.standard_normal((4, 3)) + rng.logistic(size=(400, 3)) > 0.5).astype(np.float32)
    head = fitted(
        xmckit.Split(X, csr_matrix(Y)),
        dim=4,
        encoder={"use": "sparse-linear", "width": 4},
        epochs=400,
        batch=400,
        learning_rate=0.03,
        dropout=0.0,
        threshold=0.0,
    )
    ranking = head.predict(X, 3)
    scores = np.empty((400, 3))
    np.put_along_axis(scores, ranking.indices, ranking.scores, axis=1)
    for label in range(3):
        model = LogisticRegression(C=1e6, max_iter=1000).fit(X, Y[:, label])
        np.testing.assert_allclose(scores[:, label], model.decision_function(X), atol=0.02)


def test_it_ranks_unseen_rows_far_better_than_frequency_does():
    train, validation, test = (small_problem(rows=rows, seed=seed) for rows, seed in ((300, 0), (60, 1), (100, 2)))
    ours = fitted(train, validation=validation).predict(test.matrix, 5)
    context = xmckit.make_context()
    popularity = context.build("head", {"use": "popularity"})
    popularity.fit(train, context=context)
    score = rank_metrics(ours, test.Y)["P@1"]
    assert score > 0.9
    assert score > 2 * rank_metrics(popularity.predict(test.matrix, 5), test.Y)["P@1"]


def test_seeds_and_workers():
    """Another seed is another head; another number of workers is not, not by a bit, with labels enough to be cut up."""
    rng = np.random.default_rng(0)
    Y = csr_matrix((rng.random((150, 700)) < 0.01).astype(np.float32))
    train = xmckit.Split(small_problem(rows=150).matrix, Y)
    first, again, other = (
        fitted(train, workers=workers, seed=seed, epochs=3).predict(train.matrix, 10)
        for workers, seed in ((1, 0), (3, 0), (1, 1))
    )
    assert first.scores.tobytes() == again.scores.tobytes()
    assert first.indices.tobytes() == again.indices.tobytes()
    assert first.scores.tobytes() != other.scores.tobytes()


def test_only_public_names_are_used():
    import ast
    import inspect

    import xmckit_heads.bsl as module

    imported = {
        name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert {name for name in imported if name.startswith("xmckit")} <= {"xmckit", "xmckit.nn"}
