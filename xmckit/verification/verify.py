"""Verify what each head's output layer can and cannot produce, and write the proofs.

The folder holds all that a second program needs to check every verdict, and nothing in it is pickled:

    verdicts.json         the verdicts, in the order of the assignments, and the content checksum of every other file
    assignments.npz       the label sets that were verified, CSR; `rows` says which rows they came from
    decision-<head>.npz   W, b (if the head has one) and rule as the head gave them; degree, slack, order of a structure
    candidates-<head>.npz the candidates of each row, CSR, for a head behind a shortlist
    certificates.npz      <head>/<scope>/…: witnesses as rows of a matrix, certificates as ragged arrays, witnesses that
                          floats cannot hold also as text, each with the positions they belong to

Assignments are verified in blocks. A finished block is kept in the stage's scratch folder under a name that follows
from its content, so that a run that was killed resumes with the next block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.errors import PluginError, attribute_errors_to
from xmckit.protocols import Head, Verifier
from xmckit.records import ARGMAXABLE, STATUSES, UNARGMAXABLE, LinearDecision, Verdict
from xmckit.runs import HeadVerdicts, VerdictSummary, layout
from xmckit.verification.blocks import (
    BlockVerifier,
    content_sha256,
    csr_arrays,
    proof_arrays,
    verdict_summary,
    verifier_params,
)
from xmckit.verification.outputs import (
    OwnOutputs,
    RealRows,
    candidates_of,
    find_false_replay,
    find_mismatch,
    find_rounded,
    label_sets,
    not_its_output,
    pattern,
    same_rows,
)

FORMAT = 1
MOST_LISTED = 20
NOT_LINEAR = "its decision is not one linear layer"
NOWHERE = np.empty(0, dtype=np.int64)


def verify(
    folder: Path,
    verifier: Verifier,
    heads: Sequence[tuple[str, Head]],
    split: Split,
    *,
    X: Mapping[str, Matrix] = MappingProxyType({}),
    real: RealRows | None = None,
    predicted: bool = False,
    most: int,
    uses: Mapping[str, str] = MappingProxyType({}),
    context: Context,
) -> VerdictSummary:
    """Write the files above into `folder`; return the content of verdicts.json. `uses` are the heads' components.

    A head behind a shortlist (its `candidates(X)` is not None) is verified twice: the full layer, and what it can
    output for each row's candidates. The first is never a statement about the whole model. `X` has the rows' features
    for heads that do not see `split.X`. Label sets without rows have no candidates: only the full layer is verified.

    With `real`, outputs are compared with decisions: a head whose outputs on these rows are not those of its decision
    is not verifiable, and it is a VerificationError if a verdict denies an output of a head. `predicted`: the label
    sets are those that the head outputs on the rows.
    """
    rows = np.arange(split.rows)
    if len(rows) > most:
        rows = np.sort(context.rng("verify").choice(len(rows), size=most, replace=False))
    assignments = pattern(split.Y[rows])
    files = _Files(folder)
    files.write(layout.ASSIGNMENTS, {**csr_arrays(assignments), "rows": rows})
    results: list[HeadVerdicts] = []
    proofs: dict[str, np.ndarray] = {"rows": rows}
    for name, head in heads:
        seen = X.get(name, None if split.X is None else split.matrix)
        with attribute_errors_to("head", uses.get(name, name)):
            question = _Question(name, head, verifier, assignments, rows, seen, predicted)
            result = question.refusal(real)
        if result is not None:
            results.append(result)
            continue
        answers = question.answers(context)
        with attribute_errors_to("head", uses.get(name, name)):
            found = question.results(answers, real)
        results += found
        if found[0]["verifiable"]:
            for file, arrays in question.arrays().items():
                files.write(file, arrays)
            for scope, verdicts in answers.items():
                arrays = proof_arrays(verdicts, question.decision.W.shape[1])
                proofs.update({f"{name}/{scope}/{key}": array for key, array in arrays.items()})
    files.write(layout.CERTIFICATES, proofs)
    summary: VerdictSummary = {
        "format": FORMAT,
        "verifier": {"name": type(verifier).__name__, "params": verifier_params(verifier)},
        "assignments": len(rows),
        "of": split.rows,
        "files": files.checksums,
        "results": results,
    }
    store.write_json(folder / layout.VERDICTS, summary)
    return summary


@dataclass(frozen=True)
class _Files:
    """The files with arrays of a folder, and their checksums."""

    folder: Path
    checksums: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        store.write_arrays(self.folder / name, arrays)
        self.checksums[name] = content_sha256(arrays)


@dataclass
class _Question:
    """One head and the label sets that it is asked about, of the `rows` of its features `seen`, if there are any."""

    name: str
    head: Head
    verifier: Verifier
    assignments: csr_matrix
    rows: np.ndarray
    seen: Matrix | None
    predicted: bool

    @cached_property
    def given(self) -> LinearDecision | None:
        return self.head.decision()

    @property
    def decision(self) -> LinearDecision:
        assert self.given is not None
        return self.given

    @cached_property
    def stored(self) -> dict[str, np.ndarray]:
        """The decision as it is stored; PluginError unless it is a decision over the labels of the assignments."""
        return _decision_arrays(self.given, self.name, int(self.assignments.shape[1]))

    @cached_property
    def candidates(self) -> csr_matrix | None:
        if self.seen is None:
            return None
        found = candidates_of(self.name, self.head, self.batch, self.assignments.shape[1])
        return None if found is None else found[self.batch_rows]

    @property
    def batch(self) -> Matrix:
        """The rows that the head labels together; predictions were made for all rows."""
        assert self.seen is not None
        return self.seen if self.predicted else self.seen[self.rows]

    @property
    def batch_rows(self) -> np.ndarray:
        """The row of `batch` for each assignment."""
        return self.rows if self.predicted else np.arange(len(self.rows))

    def refusal(self, real: RealRows | None) -> HeadVerdicts | None:
        """Return the result of a head that is not verifiable; None if it is."""
        if self.given is None:
            return {"head": self.name, "scope": "full", "verifiable": False, "why": NOT_LINEAR}
        _ = self.stored, self.candidates  # raise an error if these are wrong
        mismatch = None if real is None else find_mismatch(self.name, self.head, self.decision, real)
        return None if mismatch is None else not_its_output(self.name, mismatch)

    def answers(self, context: Context) -> dict[str, list[Verdict]]:
        """Return the verdicts for the full layer and, behind a shortlist, those for each row's candidates."""
        scopes = {"full": None} if self.candidates is None else {"full": None, "shortlist": self.candidates}
        checksum = content_sha256(self.stored)
        return {
            scope: BlockVerifier(self.verifier, self.decision, checksum, self.assignments, candidates).verify(
                f"verifying {self.name}, {scope}", context
            )
            for scope, candidates in scopes.items()
        }

    def results(self, answers: Mapping[str, Sequence[Verdict]], real: RealRows | None) -> list[HeadVerdicts]:
        """Return one result for each scope, or that of a head whose outputs contradict its decision after all."""
        results: list[HeadVerdicts] = []
        own = None if real is None and not self.predicted else self._own_outputs()
        checked = 0 if real is None else len(real.numbers[real.affordable(self.decision)])
        outputs_of = "full" if self.candidates is None else "shortlist"
        who = f"head {self.name} and verifier {type(self.verifier).__name__}"
        for scope, verdicts in answers.items():
            mismatch = find_false_replay(self.decision, verdicts, self.assignments)
            positions = rounded = NOWHERE
            if mismatch is None and own is not None and scope == outputs_of:
                positions = own.positions
                rounded, mismatch = find_rounded(who, self.decision, verdicts, self.assignments, own)
            if mismatch is not None:
                return [not_its_output(self.name, mismatch)]
            summaries = [{**verdict_summary(verdict), "by_rounding": False} for verdict in verdicts]
            for row in rounded:
                summaries[row]["by_rounding"] = True
            result: HeadVerdicts = {"head": self.name, "scope": scope, "verifiable": True}
            result.update(_decision_facts(self.decision))
            result.update({"checked": checked, "outputs": len(positions), "by_rounding": len(rounded)})
            result.update(_verdict_facts(summaries, self.assignments))
            results.append(result)
        return results

    def _own_outputs(self) -> OwnOutputs | None:
        """Return the label sets that the head itself output on their rows; None if there are no rows."""
        if self.seen is None:
            return None
        positions = np.arange(len(self.rows))
        if not self.predicted:
            output = label_sets(self.name, self.head, self.batch, int(self.assignments.shape[1]))
            positions = same_rows(output, self.assignments)
        return OwnOutputs(self.head, self.batch, self.batch_rows, positions, self.rows, self.candidates)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Return what a checker needs, by file."""
        files = {layout.decision_file(self.name): self.stored}
        if self.candidates is not None:
            files[layout.candidates_file(self.name)] = csr_arrays(self.candidates)
        return files


def _decision_arrays(decision: Any, head: str, labels: int) -> dict[str, np.ndarray]:
    """Return the decision as it is stored; PluginError unless it is a decision over `labels` labels."""
    if not isinstance(decision, LinearDecision):
        raise PluginError(f"decision() of head {head} gave a {type(decision).__name__}, expected a LinearDecision")
    arrays = {"W": np.asarray(decision.W), "rule": np.asarray(decision.rule)}
    if decision.b is not None:
        arrays["b"] = np.asarray(decision.b)
    for part, dimensions in (("W", 2), ("b", 1)):
        array = arrays.get(part)
        if array is not None and (array.ndim != dimensions or len(array) != labels or array.dtype.kind != "f"):
            raise PluginError(
                f"decision() of head {head} gave {part} as {array.dtype} of size {array.shape}, "
                f"expected floating-point numbers in {dimensions}-D, one row for each of the {labels} labels"
            )
    if decision.structure is not None:
        parts = ("degree", "slack", "order")
        arrays |= {part: np.asarray(getattr(decision.structure, part), dtype=np.int64) for part in parts}
    return arrays


def _decision_facts(decision: LinearDecision) -> Any:
    return {
        "rule": decision.rule,
        "labels": int(decision.W.shape[0]),
        "dim": int(decision.W.shape[1]),
        "bias": decision.b is not None,
        "structured": decision.structure is not None,
        "caveat": _caveat(decision),
    }


def _caveat(decision: LinearDecision) -> str | None:
    """Return the caveat that keeps readers from reading more into "argmaxable" than is proved, if one is needed."""
    columns = int(decision.W.shape[1])
    if decision.inputs is None or decision.inputs >= columns:
        return None
    return (
        f"its vectors have {columns:,} entries and are made of {decision.inputs:,} features, so some vectors belong to "
        "no row. argmaxable holds for some vector, possibly one of these; unargmaxable holds for every row."
    )


def _verdict_facts(summaries: list[dict[str, Any]], assignments: csr_matrix) -> Any:
    """Return what a result says about all assignments together, and then about each."""
    counts = {
        key: {status: sum(summary[key] == status for summary in summaries) for status in STATUSES}
        for key in ("status", "ideal", "eps")
    }
    margins = [summary["margin"] for summary in summaries if summary["margin"] is not None]
    replayed = [summary["replayed"] for summary in summaries if summary["status"] == ARGMAXABLE]
    return {
        "counts": counts["status"],
        "share": counts["status"][ARGMAXABLE] / len(summaries) if summaries else None,
        "smallest_margin": min(margins, default=None),
        "replayed": {"yes": replayed.count(True), "no": replayed.count(False), "not tried": replayed.count(None)},
        "ideal": counts["ideal"],
        "eps": counts["eps"],
        "missed": sum(bool(summary["missed"]) for summary in summaries),
        "seconds": sum(summary["seconds"] for summary in summaries),
        "never": _never(assignments, summaries),
        "verdicts": summaries,
    }


def _never(assignments: csr_matrix, verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the label sets that can never be output, the most frequent first; `missed`: labels outside the shortlist."""
    positions: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position, verdict in enumerate(verdicts):
        if verdict["status"] == UNARGMAXABLE:
            labels = assignments.indices[assignments.indptr[position] : assignments.indptr[position + 1]]
            positions[tuple(labels.tolist())].append(position)
    first = sorted(positions.items(), key=lambda item: (-len(item[1]), item[1][0]))[:MOST_LISTED]
    return [
        {"labels": list(labels), "times": len(where), "position": where[0], "missed": verdicts[where[0]]["missed"]}
        for labels, where in first
    ]
