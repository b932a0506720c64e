"""Train every registered head on a small synthetic problem and verify it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmckit.context import Context
from xmckit.data.model import Split, carve_validation
from xmckit.errors import PluginError, one_line
from xmckit.protocols import Verifier, needs_index
from xmckit.verification.verify import verify

EPOCHS = 10
MOST_TEST_ROWS = 1000
GROUP = 4  # rows, for heads that learn from groups


def survey(
    verifier: Verifier, labels: int, dim: int, assignments: Split | None, *, most: int, context: Context
) -> dict[str, Any]:
    """Train and verify all heads; without `assignments` the label sets are those of the problem's test rows.

    A head that cannot be trained or verified is in the results with the reason; it does not stop the others.
    """
    train, test = _problem(labels, context)
    split = test if assignments is None else assignments
    results: list[dict[str, Any]] = []
    for name in context.names("head"):
        try:
            with TemporaryDirectory() as scratch, TemporaryDirectory() as folder, context.progress(f"training {name}"):
                head = _train(name, dim, train, context.using(folder=Path(scratch)))
                summary = verify(Path(folder), verifier, [(name, head)], split, most=most, context=context)
            results += [dict(result) for result in summary["results"]]
        except Exception as error:  # noqa: BLE001  a third party's head may raise anything; it is named, not hidden
            why = one_line(error).removeprefix("PluginError: ")
            results.append({"head": name, "scope": "full", "verifiable": False, "why": why})
    return {"assignments": min(most, split.rows), "of": split.rows, "results": results}


def _problem(labels: int, context: Context) -> tuple[Split, Split]:
    params = {
        "use": "synthetic",
        "rows": max(400, 4 * labels),
        "test_rows": MOST_TEST_ROWS,
        "features": max(300, 2 * labels),
        "labels": labels,
        "topics": max(1, labels // 10),
        "group_size": GROUP,
    }
    dataset = context.build("dataset", params).read(context=context)
    return dataset.train, dataset.test


def _train(name: str, dim: int, train: Split, context: Context) -> Any:
    """Train the head for a few epochs, with `dim` as its width if it has such a parameter."""
    cls = context.resolve("head", name)
    known = cls.Params.model_fields
    wanted = {"dim": dim, "slack": dim, "epochs": EPOCHS}
    head = cls(**{key: value for key, value in wanted.items() if key in known})
    fitting, validation = carve_validation(train, 0.1, context.rng("validation"))
    context = context.using(validation=validation, seed=context.seed_for("head", name))
    indexes = [_index(cls.needs, fitting, context)] if needs_index(cls) else []
    head.fit(fitting, indexes=indexes, context=context)
    return head


def _index(needs: frozenset[str], train: Split, context: Context) -> Any:
    for name in context.names("indexer"):
        if needs <= context.resolve("indexer", name).provides:
            return context.build("indexer", {"use": name}).build(train, context=context)
    raise PluginError(f"it needs an index that provides {', '.join(sorted(needs))}, and no registered indexer does")
