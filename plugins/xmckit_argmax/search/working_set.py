"""Row generation: which rows a scan over all labels adds to an assignment's working set."""

from __future__ import annotations

import numpy as np
from numba import njit

# A scan keeps the worst value of each group of so many neighbouring rows, and looks closely only at the worst groups.
GROUP = 32

# Rows that were active for so many label sets, and so many times as often as all rows are, are familiar.
LEAST_SETS, TIMES_AS_OFTEN, MOST_FAMILIAR = 3, 8, 128
FIRST_LESSON = 32  # label sets; the next lessons are after twice as many each

_kernel = njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


class Familiar:
    """Rows that the answers of earlier label sets turned on: the next ones start with them, and need fewer scans."""

    def __init__(self, rows: int):
        self.rows = np.empty(0, dtype=np.int64)
        self._counts = np.zeros(rows, dtype=np.int64)
        self._sets, self._lesson = 0, FIRST_LESSON

    def learn(self, answers: list[np.ndarray]) -> None:
        """The rows that each of some more answers turned on; what is no label's row does not count."""
        turned_on = np.concatenate(answers)
        np.add.at(self._counts, turned_on[turned_on < len(self._counts)], 1)
        self._sets += len(answers)
        if self._sets >= self._lesson:
            self._lesson *= 2
            least = max(LEAST_SETS, TIMES_AS_OFTEN * self._counts.mean())
            often = np.flatnonzero(self._counts >= least)
            self.rows = often[np.argsort(-self._counts[often], kind="stable")[:MOST_FAMILIAR]]


@_kernel
def begin(slot, labels, most, familiar, last, ids, signs, counts, in_set, v, is_active, state):  # type: ignore[no-untyped-def]
    """Give a slot its first working set: `most` of its active labels, the familiar rows, and the row `last`, if any."""
    for i in range(in_set.shape[1]):
        in_set[slot, i] = 0
    for i in range(v.shape[1]):
        v[slot, i] = 0.0
    for i in range(is_active.shape[1]):
        is_active[slot, i] = 0
    state[slot, 0], state[slot, 1] = 0, 0
    count = min(labels.shape[0], most)
    for k in range(labels.shape[0]):
        in_set[slot, labels[k]] = 1
    for k in range(count):
        ids[slot, k], signs[slot, k] = labels[k], 1.0
    for k in range(familiar.shape[0]):
        if in_set[slot, familiar[k]] == 0:
            ids[slot, count], signs[slot, count], in_set[slot, familiar[k]] = familiar[k], -1.0, 1
            count += 1
    for k in range(most, labels.shape[0]):
        in_set[slot, labels[k]] = 0
    if last >= 0:
        ids[slot, count], signs[slot, count], in_set[slot, last] = last, 1.0, 1
        count += 1
    counts[slot] = count


@_kernel
def add_worst(  # type: ignore[no-untyped-def]
    G, slots, begins, ends, active, last_is_active, clear, near, add, ids, signs, counts, in_set, added
):
    """Add to each slot's working set about `add` of its worst rows; G[t] holds row·v/‖row‖ of all rows for slots[t].

    A row wants s·row·v > 0. added[t] is the number of new rows, or −1 when all are above `clear[t]`.
    Rows that are only `near` to being violated join too, so that the next scan does not come back for them.
    """
    groups = -(-G.shape[1] // GROUP)
    maxima = np.empty(groups, dtype=np.float32)
    for t in range(slots.shape[0]):
        slot = slots[t]
        labels = active[begins[slot] : ends[slot]]
        deficits = G[t]
        worst = _to_deficits(deficits, labels, last_is_active, maxima)
        if -worst > clear[t]:
            added[t] = -1
            continue
        # about twice as many rows as groups reach the value of the last of these groups
        cut = min(max(_ranked(maxima, max(1, add // 2)), -near), worst)
        count = counts[slot]
        end = _join(deficits, maxima, cut, in_set[slot], ids[slot], count, min(ids.shape[1], count + 2 * add))
        _set_signs(ids[slot], signs[slot], count, end, labels, deficits.shape[0] - 1 if last_is_active else -1)
        counts[slot] = end
        added[t] = end - count


@_kernel
def _to_deficits(products, labels, last_is_active, maxima):  # type: ignore[no-untyped-def]
    """Turn products into −s times themselves; the largest of them, and the largest of each group in `maxima`."""
    for k in range(labels.shape[0]):
        products[labels[k]] = -products[labels[k]]
    if last_is_active:
        products[products.shape[0] - 1] = -products[products.shape[0] - 1]
    rows = products.shape[0]
    whole, worst = rows // GROUP, products[0]
    for group in range(whole):
        largest = products[group * GROUP]
        for i in range(group * GROUP, group * GROUP + GROUP):  # a fixed number, which compiles to vector instructions
            largest = products[i] if products[i] > largest else largest
        maxima[group] = largest
        worst = max(worst, largest)
    if whole < maxima.shape[0]:
        largest = products[whole * GROUP]
        for i in range(whole * GROUP, rows):
            largest = max(largest, products[i])
        maxima[whole] = largest
        worst = max(worst, largest)
    return worst


@_kernel
def _ranked(values, place):  # type: ignore[no-untyped-def]
    """The `place`-th largest value, or −inf if there are fewer."""
    below = values.shape[0] - place
    return np.partition(values, below)[below] if below >= 0 else np.float32(-np.inf)


@_kernel
def _join(deficits, maxima, cut, in_set, ids, count, room):  # type: ignore[no-untyped-def]
    for group in range(maxima.shape[0]):
        if maxima[group] >= cut:
            for i in range(group * GROUP, min(deficits.shape[0], group * GROUP + GROUP)):
                if deficits[i] >= cut and in_set[i] == 0 and count < room:
                    ids[count] = i
                    in_set[i] = 1
                    count += 1
    return count


@_kernel
def _set_signs(ids, signs, first, end, labels, last):  # type: ignore[no-untyped-def]
    for j in range(first, end):
        signs[j] = 1.0 if ids[j] == last else -1.0
        for k in range(labels.shape[0]):
            if labels[k] == ids[j]:
                signs[j] = 1.0


@_kernel
def make_room(slot, ids, signs, counts, in_set, active, active_count, is_active):  # type: ignore[no-untyped-def]
    """Forget the rows of a full working set that are not active; they come back if they are violated again."""
    kept = 0
    place = np.empty(counts[slot], dtype=np.int64)
    for j in range(counts[slot]):
        place[j] = kept
        if is_active[slot, j]:
            ids[slot, kept], signs[slot, kept] = ids[slot, j], signs[slot, j]
            kept += 1
        else:
            in_set[slot, ids[slot, j]] = 0
    for k in range(active_count):
        active[slot, k] = place[active[slot, k]]
    for j in range(counts[slot]):
        is_active[slot, j] = j < kept
    counts[slot] = kept
