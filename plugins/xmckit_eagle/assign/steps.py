"""From groups to a choice of rows: EAGLE's scores, refined, cut to the capacity, and no row left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xmckit import Context, Groups, Matrix, Split
from xmckit_eagle.assign.candidates import Candidates, candidates, standardised
from xmckit_eagle.assign.choice import Choice, assign
from xmckit_eagle.assign.coverage import cover
from xmckit_eagle.assign.cross_fitting import head_judge
from xmckit_eagle.assign.refine import improve, refine

# The margin at which a row is e times as likely as the runner-up: for cosines, and for refined scores, whose spread
# over the rows of a label's groups is about 1.
# Over bibtex, cve_libraries, reuters21578, delicious and debian_depends with random groups of 4 and 10, without
# iterations, the mean log-loss of the confidence against the truth is least for 0.03; for single sets the best value
# is 0.015 to 0.1. For refined scores it is least between 0.25 (cve_libraries) and 1 (stdlib-calls).
CLEAR = 0.03
CLEAR_REFINED = 0.7
HEADS_SHARE = 0.25  # of the head's scores beside those before; tuned on the data sets of docs/eagle.md
EAGLES_PART = 0.2  # of the progress bar, when more follows


@dataclass(frozen=True)
class Placed:
    """`clear`: the margin that makes a choice clear; `facts` say what was done beyond EAGLE."""

    choice: Choice
    clear: float
    facts: dict[str, Any]


def place(X: Matrix, train: Split, params: Any, *, context: Context, advance: Callable[[float], None]) -> Placed:
    """`X` are the rows of `train`, normalised; `params` are those of `Eagle`."""
    assert train.groups is not None
    groups, seed = train.groups, context.seed_for("eagle")
    capacity = capacity_used(groups, params)

    def run(capacity: int | str, threshold: float | None, share: float) -> Choice:
        return assign(
            X,
            groups.membership,
            groups.labels,
            iterations=params.iterations,
            step=params.step,
            update=params.update,
            background=params.background,
            leave_one_out=params.leave_one_out,
            capacity=capacity,  # type: ignore[arg-type]
            threshold=threshold,
            counts=params.merge == "list",
            seed=seed,
            workers=context.workers,
            advance=lambda done: advance(share * done),
        )

    if not params.refine and not params.cover and params.head is None:
        limit = params.threshold if capacity == "threshold" else None
        return Placed(run(1 if capacity == "one" else capacity, limit, 1.0), CLEAR, {"capacity": capacity})
    everything = run(np.iinfo(np.int64).max, None, EAGLES_PART)
    these = candidates(everything, groups.labels)
    if capacity != "count":
        these = replace(these, times=np.ones_like(these.times))
    facts: dict[str, Any] = {"capacity": capacity}
    trainings = (params.refine + 1 if params.refine else 0) + (2 if params.head is not None else 0)

    def trained(done: float) -> None:
        advance((1.0 - EAGLES_PART) / trainings * done)

    scored, margins = these, None
    if params.refine:
        refined = refine(
            X,
            these,
            groups.membership,
            these.times,
            rounds=params.refine,
            seed=seed,
            workers=context.workers,
            advance=trained,
        )
        scored, margins = refined.candidates, refined.margins
        facts["refinement_rounds"] = refined.rounds
        facts["held_out_groups_recognised"] = [round(value, 4) for value in refined.recognised]
    if params.head is not None:
        judge = head_judge(train, scored, params.head, context=context, advance=trained)
        judged = improve(scored, scored.times, judge, rounds=1, shares=(HEADS_SHARE, 1.0))
        helped = bool(judged.recognised[-1] > judged.recognised[0])
        scored = judged.candidates if helped else scored
        facts["round_with_head_kept"] = helped
        facts["held_out_groups_recognised_by_head"] = [round(value, 4) for value in judged.recognised]
    standard = scored is not these
    chosen = _chosen(scored, margins, capacity, params)
    if params.cover:
        even = scored if standard else scored.with_scores(standardised(scored, scored.scores))
        chosen, facts["rows_that_took_a_label"] = cover(even, chosen, X.shape[0])
    return Placed(scored.choice(chosen), CLEAR_REFINED if standard else CLEAR, facts)


def capacity_used(groups: Groups, params: Any) -> str:
    """What "auto" means for these groups."""
    if params.capacity != "auto":
        return str(params.capacity)
    if params.merge == "list" and groups.labels.nnz and groups.labels.data.max() > 1:
        return "count"
    return "margin" if params.refine else "one"


def _chosen(scored: Candidates, margins: np.ndarray | None, capacity: str, params: Any) -> np.ndarray:
    """`margins`: of the classifiers of `refine`, where there are some."""
    chosen = scored.best(scored.times)
    if capacity == "margin" and margins is not None:
        chosen |= margins > params.margin  # NaN, of a label with one group, is not above anything
    if capacity == "threshold":
        best = np.repeat(np.maximum.reduceat(scored.scores, scored.start[:-1]), np.diff(scored.start))
        chosen |= (best > 0) & (scored.scores >= params.threshold * best)
    return chosen
