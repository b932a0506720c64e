"""Row generation: the first working set of an assignment, and the rows that a scan over all labels adds to it."""

from __future__ import annotations

import numpy as np
from numba import njit

# A scan keeps the worst value of each group of this many neighbouring rows, and searches only the worst groups.
GROUP = 32

# A row is familiar if it was active for this many assignments, and this many times as often as the average row.
LEAST_SETS, TIMES_AS_OFTEN, MOST_FAMILIAR = 3, 8, 128
FIRST_LESSON = 32  # assignments before the familiar rows are first chosen; this doubles each time

_FAST = {"nnan", "nsz", "reassoc"}
_kernel = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
_part = njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)  # see active_set


class FamiliarRows:
    """The rows that were often active in earlier results; later assignments start with them and need fewer scans."""

    def __init__(self, rows: int):
        self.rows = np.empty(0, dtype=np.int64)
        self._counts = np.zeros(rows, dtype=np.int64)
        self._sets, self._lesson = 0, FIRST_LESSON

    def learn(self, active_rows: list[np.ndarray]) -> None:
        """Count the active rows of more results; the row of t does not count."""
        rows = np.concatenate(active_rows)
        np.add.at(self._counts, rows[rows < len(self._counts)], 1)
        self._sets += len(active_rows)
        if self._sets >= self._lesson:
            self._lesson *= 2
            least = max(LEAST_SETS, TIMES_AS_OFTEN * self._counts.mean())
            often = np.flatnonzero(self._counts >= least)
            self.rows = often[np.argsort(-self._counts[often], kind="stable")[:MOST_FAMILIAR]]


@_kernel
def begin(slot, labels, most, familiar, last, ids, signs, counts, in_set, v, is_active, state):  # type: ignore[no-untyped-def]
    """Give a slot its first working set: `most` of its active labels, the familiar rows, and the row `last` if ≥ 0.

    A kernel, since the same in numpy takes a twentieth of the time of a whole assignment.
    """
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
    """Add about `add` of the worst rows to each slot's working set; G[t] holds row·v/‖row‖ of all rows for slots[t].

    A row requires s·row·v > 0. added[t] is the number of new rows, or −1 if all are above `clear[t]`. Rows that are
    only `near` to being violated join too, so that the next scan does not return for them.
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
        # about twice as many rows as groups reach the value of the last chosen group
        cut = min(max(_nth_largest(maxima, max(1, add // 2)), -near), worst)
        count = counts[slot]
        end = _join(deficits, maxima, cut, in_set[slot], ids[slot], count, min(ids.shape[1], count + 2 * add))
        _set_signs(ids[slot], signs[slot], count, end, labels, deficits.shape[0] - 1 if last_is_active else -1)
        counts[slot] = end
        added[t] = end - count


@_part
def _to_deficits(products, labels, last_is_active, maxima):  # type: ignore[no-untyped-def]
    """Multiply products by −s; return the largest, and write the largest of each group to `maxima`."""
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


@_part
def _nth_largest(values, rank):  # type: ignore[no-untyped-def]
    """Return the `rank`-th largest value, or −inf if there are fewer."""
    below = values.shape[0] - rank
    return np.partition(values, below)[below] if below >= 0 else np.float32(-np.inf)


@_part
def _join(deficits, maxima, cut, in_set, ids, count, room):  # type: ignore[no-untyped-def]
    for group in range(maxima.shape[0]):
        if maxima[group] >= cut:
            for i in range(group * GROUP, min(deficits.shape[0], group * GROUP + GROUP)):
                if deficits[i] >= cut and in_set[i] == 0 and count < room:
                    ids[count] = i
                    in_set[i] = 1
                    count += 1
    return count


@_part
def _set_signs(ids, signs, first, end, labels, last):  # type: ignore[no-untyped-def]
    for j in range(first, end):
        signs[j] = 1.0 if ids[j] == last else -1.0
        for k in range(labels.shape[0]):
            if labels[k] == ids[j]:
                signs[j] = 1.0
