"""The label preprocessor `eagle`: it gives each label of a group to the rows of the group that the label is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.sparse import csr_matrix

from xmckit import Configured, Context, DataError, Groups, HeadSpec, Params, Split, store
from xmckit.data.model import as_csr
from xmckit.exhibits import Exhibit
from xmckit_eagle.assign.choice import Choice
from xmckit_eagle.assign.cross_fitting import check_head
from xmckit_eagle.assign.normalise import normalise_rows, squared_lengths
from xmckit_eagle.assign.steps import choose_rows
from xmckit_eagle.exhibits import assignment_exhibits

ASSIGNMENTS = "assignments.npz"
PAPER = {
    "update": "sum",
    "background": False,
    "leave_one_out": False,
    "merge": "set",
    "capacity": "one",
    "refine": 0,
    "head": None,
    "cover": False,
    "soft": False,
}


class EagleParams(Params):
    iterations: int = Field(0, ge=0, description="Steps of Algorithm 1; 0 is EAGLE-0, the paper uses 20.")
    step: float = Field(0.1, ge=0, description="Step size λ.")
    update: Literal["sum", "mean"] = Field(
        "sum",
        description='A step adds the picked rows of all groups of the label; "mean" divides the sum by their number.',
    )
    normalise: Literal["auto", "idf", "unit", "none"] = Field(
        "idf",
        description='"idf": weight features by idf and scale rows to unit length, so that scores are cosines; "unit": '
        'unit length only; "none": use X unchanged; "auto": "none" if rows have unit length, otherwise "idf".',
    )
    background: bool = Field(True, description="Ignore the part of a row along the mean row in its score.")
    leave_one_out: bool = Field(
        True, description="Ignore a group's own part of a label's embedding in the scores of its rows."
    )
    merge: Literal["list", "set"] = Field(
        "list", description='"list": a group counts as often as it has the label; "set": once.'
    )
    refine: int = Field(
        2,
        ge=0,
        description="Rounds that score the rows of a group by one classifier per label, trained on the choice for "
        "other groups; they end when held-out groups are not recognised better. They take most of the time, hours with "
        "hundreds of thousands of labels; 0: none.",
    )
    head: HeadSpec | None = Field(
        None,
        description="Head for one more cross-fitting round after those of `refine`: it is trained on the choice for "
        "other groups and scores the rows. The round is kept if held-out groups are recognised better. The head is "
        "trained ten times.",
    )
    capacity: Literal["auto", "one", "count", "margin", "threshold"] = Field(
        "auto",
        description='Rows of a group that get a label: "one"; "count", as many as the group has the label; "margin", '
        'also all that the classifiers of `refine` score above `margin`; "threshold", without `refine`, also all with '
        'a score close to the best; "auto": "count" if labels are repeated, otherwise "margin".',
    )
    margin: float = Field(-0.25, description='With capacity "margin": the least score; 0 is the classifier\'s border.')
    threshold: float = Field(
        0.8, gt=0, le=1, description='With capacity "threshold": the share of the best score that a row needs.'
    )
    cover: bool = Field(
        True,
        description="Give every row of a group a label: a row without one takes the label that costs least, and labels "
        "that only one group has go to its row with the fewest labels.",
    )
    soft: bool = Field(
        True,
        description="Pass the confidence of each label to the head as its weight; a label that only one group has "
        "keeps weight 1, as it has no other rows to learn from.",
    )
    paper: bool = Field(
        False, description="Run exactly the paper's algorithm, with 20 iterations unless `iterations` is set."
    )

    @model_validator(mode="before")
    @classmethod
    def _set_paper_values(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("paper") is not True:
            return values
        conflicts = {name: repr(value) for name, value in PAPER.items() if values.get(name, value) != value}
        if values.get("normalise") == "none":
            conflicts["normalise"] = "'auto', 'idf' or 'unit'"
        if conflicts:
            expected = ", ".join(f"{name} = {value}" for name, value in conflicts.items())
            raise ValueError(f"paper = true means {expected}: leave that out, or paper")
        return {"iterations": 20, **PAPER, **values}

    @model_validator(mode="after")
    def _check_capacity(self) -> EagleParams:
        if self.capacity == "margin" and not self.refine:
            raise ValueError('capacity = "margin" needs the classifiers of refine, but refine is 0')
        if self.capacity == "threshold" and (self.refine or self.head):
            raise ValueError('capacity = "threshold" needs cosines: set refine = 0 and no head')
        return self


class Eagle(Configured):
    """Algorithms 1 and 2 of Shen et al. (2020), and improvements: see the parameters and `assign.steps`.

    Rows in groups lose their labels and get those that their groups give them; rows in no group keep their own. A label
    of a group without rows, or with only rows that have no features, cannot be placed: `facts` counts such labels.

    The confidence of an assignment is 1/(1 + n·exp(−margin/c)) with n the number of rows of the group that did not get
    the label and c = 0.03 for cosines, 0.7 for refined scores: 1/(1+n) for a tie, closer to 1 the further the row is
    ahead, 1 if all rows got the label. A label that only one group has counts as a tie: no other group gives evidence
    about it.
    """

    Params: ClassVar[type[Params]] = EagleParams
    conformance: ClassVar[Mapping[str, Any]] = {
        "expected_failures": {
            "dense_matches_sparse": "dense rows have every feature, so that idf carries no information"
        }
    }

    def __init__(self, **params: Any):
        super().__init__(**params)
        self.choice: Choice | None = None
        self.confidence: np.ndarray | None = None
        self._facts: dict[str, Any] = {}
        self._exhibits: list[Exhibit] = []

    def apply(self, train: Split, *, context: Context) -> Split:
        groups = _check_groups(train)
        if self.params.head is not None:
            check_head(self.params.head, context)
        X, method = normalise_rows(train.matrix, self.params.normalise)
        with context.progress("placing labels", total=1.0) as bar:
            result = choose_rows(X, replace(train, groups=groups), self.params, context=context, advance=bar.advance)
        choice = result.choice
        empty = squared_lengths(X) == 0
        single_group = (np.bincount(groups.labels.indices, minlength=train.labels) == 1)[choice.labels]
        self.choice = choice
        self.confidence = confidences(choice, groups.membership, empty, single_group, result.clear_margin)
        ungrouped = np.diff(groups.membership.indptr) == 0
        Y, weights = _label_matrices(train.Y, ungrouped, choice, np.where(single_group, np.float32(1), self.confidence))
        self._facts = {
            "normalised": method,
            **result.facts,
            **_facts(train.Y, groups, empty, ungrouped, choice, self.confidence),
        }
        self._exhibits = assignment_exhibits(choice, self.confidence, groups, train.names)
        return replace(train, Y=Y, weights=weights if self.params.soft else None)

    def facts(self) -> dict[str, Any]:
        """Return facts about the last `apply`: the labels that it placed and those that it could not place."""
        return self._facts

    def exhibits(self) -> list[Exhibit]:
        """Return exhibits about the last `apply`: its confidence, and its surest and least sure choices."""
        return self._exhibits

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.choice is not None and self.confidence is not None:
            arrays = {field.name: getattr(self.choice, field.name) for field in fields(Choice)}
            store.write_arrays(folder / ASSIGNMENTS, {**arrays, "confidence": self.confidence})


def confidences(
    choice: Choice, membership: csr_matrix, empty: np.ndarray, single_group: np.ndarray, clear_margin: float
) -> np.ndarray:
    """Return for each assignment a number from 0 to 1 that grows with its margin; see `Eagle`.

    `empty` marks rows of zeros, `single_group` the assignments of labels that only one group has.
    """
    sizes = np.bincount(
        membership.indices[~np.repeat(empty, np.diff(membership.indptr))], minlength=membership.shape[1]
    )
    change = np.flatnonzero(np.diff(choice.labels) | np.diff(choice.groups)) + 1
    given = np.diff(np.concatenate([[0], change, [len(choice)]]))
    left = sizes[choice.groups] - np.repeat(given, given) if len(choice) else np.empty(0)
    margins = np.where(single_group, 0.0, choice.margins.astype(np.float64))
    return (1.0 / (1.0 + left * np.exp(-margins / clear_margin))).astype(np.float32)


def _check_groups(train: Split) -> Groups:
    if train.groups is None:
        raise DataError(
            "eagle needs groups of rows and the labels of the groups, but these rows have none: add a file of groups "
            "to the data, or put the label stage 'aggregate' before eagle to make groups from labelled rows"
        )
    train.groups.check(train.rows, train.labels)
    for what, matrix in {"membership": train.groups.membership, "labels": train.groups.labels}.items():
        store.check_matrix(matrix, f"the groups' {what}")
    return Groups(as_csr(train.groups.membership), as_csr(train.groups.labels), train.groups.names)


def _label_matrices(
    Y: csr_matrix, ungrouped: np.ndarray, choice: Choice, assignment_weights: np.ndarray
) -> tuple[csr_matrix, csr_matrix]:
    """Return Y and weights; the highest weight of a label and row counts, and `ungrouped` rows keep their labels."""
    kept = np.repeat(ungrouped, np.diff(Y.indptr))
    rows = np.concatenate([choice.rows, np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))[kept]])
    labels = np.concatenate([choice.labels, Y.indices[kept]])
    weights = np.concatenate([assignment_weights, np.ones(int(kept.sum()), dtype=np.float32)])
    keys, key_of = np.unique(rows * Y.shape[1] + labels, return_inverse=True)
    highest = np.zeros(len(keys), dtype=np.float32)
    np.maximum.at(highest, key_of, weights)
    places = np.divmod(keys, max(1, Y.shape[1]))
    return csr_matrix((np.ones_like(highest), places), Y.shape), csr_matrix((highest, places), Y.shape)


def _facts(
    Y: csr_matrix, groups: Groups, empty: np.ndarray, ungrouped: np.ndarray, choice: Choice, confidence: np.ndarray
) -> dict[str, Any]:
    membership, given = groups.membership, groups.labels
    sizes = np.bincount(membership.indices, minlength=membership.shape[1])
    full = ~np.repeat(empty, np.diff(membership.indptr))
    usable = np.bincount(membership.indices[full], minlength=membership.shape[1])
    per_group = np.diff(given.indptr)
    no_rows, no_features = int(per_group[sizes == 0].sum()), int(per_group[(sizes > 0) & (usable == 0)].sum())
    in_groups = np.bincount(given.indices, minlength=given.shape[1]) > 0
    placed = np.bincount(choice.labels, minlength=given.shape[1]) > 0
    repeated = int(np.maximum(np.rint(given.data).astype(np.int64) - 1, 0).sum())
    facts: dict[str, Any] = {
        "group_labels": int(given.nnz),
        "placed": int(given.nnz) - no_rows - no_features,
        "unplaced": {"group without rows": no_rows, "rows without features": no_features},
        "given_to_rows": len(choice),
        "repetitions": repeated,
        "rows_with_labels": len(np.unique(choice.rows)),
        "rows_in_groups": int((~ungrouped).sum()),
        "rows_in_no_group": int(ungrouped.sum()),
        "labels_kept_by_rows_in_no_group": int(np.diff(Y.indptr)[ungrouped].sum()),
        "labels_in_no_group": int((~in_groups).sum()),
        "labels_placed_nowhere": int((in_groups & ~placed).sum()),
        "mean_confidence": float(confidence.mean()) if len(confidence) else None,
        "confidence_below_half": int((confidence < 0.5).sum()),
    }
    warnings = []
    if no_rows or no_features:
        warnings.append(
            f"{no_rows + no_features} of {given.nnz} labels of groups could not be placed: {no_rows} because the group "
            f"has no rows, {no_features} because its rows have no features"
        )
    if facts["labels_placed_nowhere"]:
        warnings.append(f"{facts['labels_placed_nowhere']} labels of groups could not be given to any row")
    return {**facts, "warnings": warnings}


def read_assignments(folder: Path) -> dict[str, np.ndarray]:
    """Read what `Eagle.save` wrote: groups, labels, rows, scores, margins and confidence, one entry per assignment."""
    path, names = folder / ASSIGNMENTS, [*(field.name for field in fields(Choice)), "confidence"]
    arrays = store.read_arrays(path, *names)
    count = arrays["rows"].size
    for name in ("groups", "labels", "rows"):
        arrays[name] = store.check_array(path, name, arrays[name], "i", (count,), low=0)
    for name in ("scores", "confidence"):
        arrays[name] = store.check_array(path, name, arrays[name], "f", (count,))
    if arrays["margins"].shape != (count,) or arrays["margins"].dtype.kind != "f" or np.isnan(arrays["margins"]).any():
        raise store.damaged(path, f"margins is {arrays['margins'].dtype}, expected {count} numbers or inf")
    return arrays
