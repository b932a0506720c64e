"""Labels for rows that the scores leave without any: in data of this kind every row has a label.

Two rules follow that no score can express. A label that only one group has gives no hint about its row: all such labels
of a group go to the row with the fewest labels. And a row without a label takes the one of its group's labels that
costs least: the smallest step down in score, from a row that keeps another label.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from xmckit_eagle.assign.candidates import CandidateRows


def cover(candidates: CandidateRows, chosen: np.ndarray, row_count: int) -> tuple[np.ndarray, int]:
    """Return the marked candidates after both rules, and the number of rows that took a label."""
    rows, chosen = candidates.rows, chosen.copy()
    single_group = candidates.single_group[candidates.pairs]
    held = np.bincount(rows[chosen & ~single_group], minlength=row_count)
    fewest_first = candidates.with_scores(np.where(single_group, -held[rows].astype(np.float64), 0.0))
    chosen[single_group] = fewest_first.best(np.where(candidates.single_group, candidates.times, 0))[single_group]
    held += np.bincount(rows[chosen & single_group], minlength=row_count)
    scores = np.where(single_group, 0.0, candidates.scores)
    pairs = np.argsort(candidates.groups, kind="stable")
    begins = np.searchsorted(candidates.groups[pairs], np.arange(candidates.groups.max(initial=-1) + 2))
    moved = _fill(pairs, begins, candidates.start, rows, scores, held, chosen)
    return chosen, moved


@njit(cache=True, nogil=True)
def _fill(
    pairs: np.ndarray, begins: np.ndarray, start: np.ndarray, rows: np.ndarray, scores: np.ndarray, held: np.ndarray,
    chosen: np.ndarray,
) -> int:  # fmt: skip
    """Apply the second rule group by group: `pairs` from `begins[group]` on are those of the group."""
    moved = 0
    for group in range(len(begins) - 1):
        here = pairs[begins[group] : begins[group + 1]]
        if not len(here):
            continue
        members = np.sort(rows[start[here[0]] : start[here[0] + 1]])
        for row in members:
            if held[row] > 0:
                continue
            taker, giver, least = -1, -1, np.inf
            for pair in here:
                mine, weakest = -1, -1
                for place in range(start[pair], start[pair + 1]):
                    if rows[place] == row:
                        mine = place
                    elif chosen[place] and held[rows[place]] > 1 and (weakest < 0 or scores[place] < scores[weakest]):
                        weakest = place
                if mine >= 0 and weakest >= 0 and scores[weakest] - scores[mine] < least:
                    taker, giver, least = mine, weakest, scores[weakest] - scores[mine]
            if taker >= 0:
                chosen[taker], chosen[giver] = True, False
                held[row] += 1
                held[rows[giver]] -= 1
                moved += 1
    return moved
