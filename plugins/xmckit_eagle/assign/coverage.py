"""Labels for the rows that would be left without any: in data of this kind every row has a label.

Two things follow from it that no score can say. A label that only one group has gives no hint which of the group's rows
it is about: it goes, with all others of its group, to the row that has the fewest labels. And a row that no label was
given to takes the one of its group's labels that costs least: the smallest step down in score, from a row that keeps
another label.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from xmckit_eagle.assign.candidates import Candidates


def cover(these: Candidates, chosen: np.ndarray, row_count: int) -> tuple[np.ndarray, int]:
    """The marked candidates after both steps, and how many rows took a label."""
    chosen, alone = chosen.copy(), these.alone
    of_candidate = np.repeat(alone, np.diff(these.start))
    held = np.bincount(these.rows[chosen & ~of_candidate], minlength=row_count)
    lonely = these.with_scores(np.where(of_candidate, -held[these.rows].astype(np.float64), 0.0)).best(
        np.where(alone, these.times, 0)
    )
    chosen[of_candidate] = lonely[of_candidate]
    held += np.bincount(these.rows[chosen & of_candidate], minlength=row_count)
    scores = np.where(of_candidate, 0.0, these.scores)
    pairs = np.argsort(these.groups, kind="stable")
    begins = np.searchsorted(these.groups[pairs], np.arange(these.groups.max(initial=-1) + 2))
    moved = _fill(pairs, begins, these.start, these.rows, scores, held, chosen)
    return chosen, moved


@njit(cache=True, nogil=True)
def _fill(
    pairs: np.ndarray, begins: np.ndarray, start: np.ndarray, rows: np.ndarray, scores: np.ndarray, held: np.ndarray,
    chosen: np.ndarray,
) -> int:  # fmt: skip
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
