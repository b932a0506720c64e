"""The steps from groups to a choice of rows: EAGLE's scores, refinement, capacity, and coverage of all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from xmckit import Context, Groups, Matrix, Split
from xmckit_eagle.assign.candidates import CandidateRows
from xmckit_eagle.assign.choice import UNLIMITED, Choice, assign
from xmckit_eagle.assign.coverage import cover
from xmckit_eagle.assign.cross_fitting import head_scorer
from xmckit_eagle.assign.refine import improve, refine

# The margin at which a row is e times as likely as the runner-up: for cosines, and for refined scores, which have a
# spread of about 1 over the rows of a label's groups.
# Over bibtex, cve_libraries, reuters21578, delicious and debian_depends with random groups of 4 and 10, without
# iterations, the mean log-loss of the confidence against the truth is least for 0.03; for single sets the best value
# is 0.015 to 0.1. For refined scores it is least between 0.25 (cve_libraries) and 1 (stdlib-calls).
CLEAR_MARGIN = 0.03
CLEAR_MARGIN_REFINED = 0.7
HEADS_SHARE = 0.25  # of the head's scores in the mixture with the earlier ones; tuned on the data sets of docs/eagle.md
EAGLES_PROGRESS = 0.2  # share of the progress bar for EAGLE itself, if further steps follow


@dataclass(frozen=True)
class ChosenRows:
    """The chosen rows, the margin that makes a choice clear, and facts about the steps beyond EAGLE."""

    choice: Choice
    clear_margin: float
    facts: dict[str, Any]


def choose_rows(
    X: Matrix, train: Split, params: Any, *, context: Context, advance: Callable[[float], None]
) -> ChosenRows:
    """Run all steps; `X` are the normalised rows of `train`, and `params` are those of `Eagle`."""
    assert train.groups is not None
    groups = train.groups
    capacity = resolve_capacity(groups, params)
    facts: dict[str, Any] = {"capacity": capacity}
    run_eagle = _eagle(X, groups, params, context)
    if not params.refine and not params.cover and params.head is None:
        limit: Any = 1 if capacity == "one" else capacity
        threshold = params.threshold if capacity == "threshold" else None
        return ChosenRows(run_eagle(capacity=limit, threshold=threshold, advance=advance), CLEAR_MARGIN, facts)
    ranking = run_eagle(capacity=UNLIMITED, advance=lambda done: advance(EAGLES_PROGRESS * done))
    candidates = CandidateRows.from_ranking(ranking, groups.labels)
    if capacity != "count":
        candidates = replace(candidates, times=np.ones_like(candidates.times))
    trainings = (params.refine + 1 if params.refine else 0) + (2 if params.head is not None else 0)

    def advance_training(done: float) -> None:
        advance((1.0 - EAGLES_PROGRESS) / trainings * done)

    scored, margins = candidates, None
    if params.refine:
        refinement = refine(
            X,
            candidates,
            groups.membership,
            rounds=params.refine,
            seed=context.seed_for("eagle"),
            workers=context.workers,
            advance=advance_training,
        )
        scored, margins = refinement.candidates, refinement.margins
        facts["refinement_rounds"] = refinement.rounds
        facts["held_out_groups_recognised"] = [round(share, 4) for share in refinement.recognised]
    if params.head is not None:
        scorer = head_scorer(train, scored, params.head, context=context, advance=advance_training)
        refinement = improve(scored, scorer, rounds=1, shares=(HEADS_SHARE, 1.0))
        helped = bool(refinement.recognised[-1] > refinement.recognised[0])
        scored = refinement.candidates if helped else scored
        facts["round_with_head_kept"] = helped
        facts["held_out_groups_recognised_by_head"] = [round(share, 4) for share in refinement.recognised]
    standardised = scored is not candidates
    chosen = _apply_capacity(scored, margins, capacity, params)
    if params.cover:
        comparable = scored if standardised else scored.with_scores(scored.standardise(scored.scores))
        chosen, facts["rows_that_took_a_label"] = cover(comparable, chosen, X.shape[0])
    return ChosenRows(scored.choice(chosen), CLEAR_MARGIN_REFINED if standardised else CLEAR_MARGIN, facts)


def resolve_capacity(groups: Groups, params: Any) -> str:
    """Return the capacity that is used for these groups if the parameter is "auto"."""
    if params.capacity != "auto":
        return str(params.capacity)
    if params.merge == "list" and groups.labels.nnz and groups.labels.data.max() > 1:
        return "count"
    return "margin" if params.refine else "one"


def _eagle(X: Matrix, groups: Groups, params: Any, context: Context) -> Callable[..., Choice]:
    """Return `assign` with all arguments set but capacity, threshold and advance."""
    return partial(
        assign,
        X,
        groups.membership,
        groups.labels,
        iterations=params.iterations,
        step=params.step,
        update=params.update,
        background=params.background,
        leave_one_out=params.leave_one_out,
        counts=params.merge == "list",
        seed=context.seed_for("eagle"),
        workers=context.workers,
    )


def _apply_capacity(scored: CandidateRows, margins: np.ndarray | None, capacity: str, params: Any) -> np.ndarray:
    """Mark the candidates that get the label; `margins` are those of the classifiers of `refine`, if it ran."""
    chosen = scored.best(scored.times)
    if capacity == "margin" and margins is not None:
        chosen |= margins > params.margin  # the NaN of a label with one group is not above anything
    if capacity == "threshold":
        best = np.maximum.reduceat(scored.scores, scored.start[:-1])[scored.pairs]
        chosen |= (best > 0) & (scored.scores >= params.threshold * best)
    return chosen
