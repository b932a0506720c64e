"""Train every registered head on a small synthetic problem, check its decision, and verify it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data.model import Split, carve_validation
from xmckit.errors import PluginError, VerificationError, one_line
from xmckit.protocols import Verifier, needs_index
from xmckit.runs import Mismatch
from xmckit.testing.heads import check_decision
from xmckit.verification.outputs import RealRows, find_mismatch, label_sets, not_its_output, sample_rows
from xmckit.verification.verify import NOT_LINEAR, verify

EPOCHS = 10
MOST_TEST_ROWS = 1000
GROUP = 4  # rows, for heads that learn from groups
CHECKED_ROWS = 64  # for the checks of the conformance suite; all test rows are compared besides


def survey(
    verifier: Verifier,
    labels: int,
    dim: int,
    assignments: csr_matrix | None = None,
    *,
    predicted: bool = False,
    most: int,
    context: Context,
) -> dict[str, Any]:
    """Train and verify all heads; without `assignments` the label sets are those of the problem's test rows.

    With `predicted` they are those that each head outputs for the test rows. A head whose outputs on the test rows, or
    in the checks of decisions of the conformance suite, are not those of its decision is not verifiable. A head that
    cannot be trained or verified is in the results with the reason; it does not stop the others.
    """
    train, test = _problem(labels, context)
    examination = _Examination(verifier, train, test, assignments, predicted, most, context)
    results: list[dict[str, Any]] = []
    for name in context.names("head"):
        try:
            with TemporaryDirectory() as scratch, context.progress(f"training {name}"):
                head = _train(name, dim, train, context.using(folder=Path(scratch)))
            results += examination.results(name, head)
        except VerificationError:
            raise
        except Exception as error:  # noqa: BLE001  a third party's head may raise anything; it is named, not hidden
            why = one_line(error).removeprefix("PluginError: ")
            results.append({"head": name, "scope": "full", "verifiable": False, "why": why})
    rows = test.rows if assignments is None else int(assignments.shape[0])
    return {"assignments": min(most, rows), "of": rows, "results": results}


@dataclass(frozen=True)
class _Examination:
    """What every head of the survey goes through after training."""

    verifier: Verifier
    train: Split
    test: Split
    assignments: csr_matrix | None
    predicted: bool
    most: int
    context: Context

    def results(self, name: str, head: Any) -> list[dict[str, Any]]:
        decision = head.decision()
        if decision is None:
            return [{"head": name, "scope": "full", "verifiable": False, "why": NOT_LINEAR}]
        real = RealRows("test", np.arange(self.test.rows), {name: self.test.matrix})
        some = sample_rows(self.train.rows)
        X = self.test.matrix[:CHECKED_ROWS]
        checks = check_decision(head, X, self.train.take(some), self.context)
        mismatch = find_mismatch(name, head, decision, real)
        for check in checks:
            if check.status == "failed" and mismatch is None:
                mismatch = Mismatch(check=check.name, row=None, label=None, detail=f"{check.name}: {check.detail}")
        outcomes = [{"name": check.name, "status": check.status, "detail": check.detail} for check in checks]
        found = self._verify(name, head, real) if mismatch is None else [not_its_output(name, mismatch)]
        return [{**result, "checks": outcomes} for result in found]

    def _verify(self, name: str, head: Any, real: RealRows) -> list[Any]:
        split, X = Split(X=None, Y=self.assignments), {}
        if self.assignments is None:
            labels = self.test.labels
            Y = label_sets(name, head, self.test.matrix, labels) if self.predicted else self.test.Y
            split, X = Split(X=None, Y=Y), {name: self.test.matrix}
        with TemporaryDirectory() as folder:
            summary = verify(
                Path(folder), self.verifier, [(name, head)], split,
                X=X, real=real, predicted=self.predicted, most=self.most, context=self.context,
            )  # fmt: skip
        return list(summary["results"])


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
