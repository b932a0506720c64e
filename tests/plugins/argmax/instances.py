"""Layers that are hard on arithmetic, and checks of proofs in exact fractions that share no code with the verifier."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from xmckit import LinearDecision, Verdict

KINDS = ("plain", "integer", "scaled", "near-parallel", "duplicated", "dependent", "zero rows", "wide range", "float32")
BOX, EPS = 10_000, Fraction(1e-8)  # what the verifier takes unless it is told otherwise


def layer(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    W = rng.standard_normal((n, d))
    if kind == "integer":
        W = rng.integers(-2, 3, (n, d)).astype(np.float64)
    elif kind == "scaled":
        W = W * 10.0 ** rng.integers(-30, 31, (n, 1))
    elif kind == "near-parallel":
        W = np.where(rng.random((n, 1)) < 0.5, W[:1], -W[:1]) + 10.0 ** rng.integers(-17, -5, (n, 1)) * W
    elif kind == "duplicated":
        W = W[rng.integers(0, max(1, n // 2), n)] * 2.0 ** rng.integers(-3, 4, (n, 1))
    elif kind == "dependent":
        W = rng.integers(-2, 3, (n, max(1, d - 1))) @ rng.integers(-2, 3, (max(1, d - 1), d)).astype(np.float64)
    elif kind == "zero rows":
        W = np.where(rng.random((n, 1)) < 0.2, 0.0, W)
    elif kind == "wide range":
        W = W * 10.0 ** rng.integers(-12, 13, (n, d))
    elif kind == "float32":
        W = W.astype(np.float32)
    return W


def bias(kind: str, n: int, rng: np.random.Generator) -> np.ndarray | None:
    """None half of the time."""
    if rng.random() < 0.5:
        return None
    if kind in ("integer", "duplicated", "dependent"):
        return rng.integers(-1, 2, n).astype(np.float64)
    return rng.standard_normal(n) * 10.0 ** rng.integers(-2, 3)


def all_sets(n: int) -> csr_matrix:
    return csr_matrix([[number >> label & 1 for label in range(n)] for number in range(1 << n)], dtype=np.float32)


def some_sets(n: int, count: int, rng: np.random.Generator) -> csr_matrix:
    return csr_matrix(rng.random((count, n)) < rng.random((count, 1)), dtype=np.float32)


def largest_radius(W: np.ndarray, b: np.ndarray | None, active: np.ndarray, rows: np.ndarray, box: float) -> float:
    """Return the radius of the largest ball in the region around an x of the box; negative if they do not meet."""
    signs = np.where(np.isin(rows, active), 1.0, -1.0)
    found = linprog(
        [0.0] * W.shape[1] + [-1.0],
        A_ub=np.hstack([-signs[:, None] * W[rows], np.linalg.norm(W[rows], axis=1)[:, None]]),
        b_ub=np.zeros(len(rows)) if b is None else signs * b[rows],
        bounds=[(-box, box)] * W.shape[1] + [(None, None)],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0
    return -float(found.fun)


def logit(decision: LinearDecision, label: int, x: list[Fraction]) -> Fraction:
    shift = Fraction(0) if decision.b is None else Fraction(float(decision.b[label]))
    return sum((Fraction(float(w)) * value for w, value in zip(decision.W[label], x, strict=True)), shift)


def check_proof(
    decision: LinearDecision, verdict: Verdict, active: np.ndarray, candidates: np.ndarray | None = None
) -> None:
    """AssertionError unless the verdict's witness or certificate proves its status."""
    labels = range(len(decision.W)) if candidates is None else candidates.tolist()
    wanted = set(active.tolist())
    if verdict.status == "argmaxable":
        assert verdict.certificate is None or verdict.radius or verdict.eps == "unargmaxable"
        assert verdict.proof in ("float-certified", "exact")
        _check_witness(decision, verdict, wanted, labels)
        if decision.rule == "sign" and verdict.eps is not None:
            _check_eps(decision, verdict, wanted, labels)
    elif verdict.status == "unargmaxable" and verdict.missed:
        assert set(verdict.missed) == wanted - set(labels)
    elif verdict.status == "unargmaxable":
        assert verdict.witness is None
        assert verdict.proof in ("float-certified", "exact")
        _check_certificate(decision, verdict, wanted, labels)


def _check_witness(decision: LinearDecision, verdict: Verdict, wanted: set[int], labels: object) -> None:
    assert verdict.witness is not None
    assert verdict.witness.shape == (decision.W.shape[1],)
    x = [Fraction(float(value)) for value in verdict.witness]
    if verdict.exact_witness is not None:
        assert verdict.margin is None
        *numerators, denominator = verdict.exact_witness
        assert denominator > 0
        x = [Fraction(number, denominator) for number in numerators]
        assert [float(value) for value in x if abs(value) < 1e308] == [v for v in verdict.witness if abs(v) < 1e308]
    logits = {label: logit(decision, label, x) for label in labels}  # type: ignore[attr-defined]
    if decision.rule == "sign":
        assert {label for label, value in logits.items() if value > 0} == wanted
    else:
        assert set(sorted(logits, key=lambda label: (-logits[label], label))[: len(wanted)]) == wanted


def _check_eps(decision: LinearDecision, verdict: Verdict, wanted: set[int], labels: object) -> None:
    """The witness has a ball of radius EPS around it in the BOX, or the certificate leaves no room for one."""
    assert verdict.witness is not None
    if verdict.eps == "argmaxable":
        x = [Fraction(float(value)) for value in verdict.witness]
        largest = max(map(abs, x), default=Fraction(0))
        if decision.b is None and largest:
            x = [value * BOX / largest for value in x]
        assert max(map(abs, x), default=0) <= BOX
        for label in labels:  # type: ignore[attr-defined]
            squared = sum(Fraction(float(w)) ** 2 for w in decision.W[label])
            assert logit(decision, label, x) ** 2 > EPS**2 * squared or not squared
        return
    assert verdict.certificate is not None
    support, multipliers = verdict.certificate
    parts = [
        Fraction(float(part)) * (1 if label in wanted else -1) for label, part in zip(*verdict.certificate, strict=True)
    ]
    assert set(support.tolist()) <= set(labels)  # type: ignore[call-overload]
    assert (multipliers > 0).all()
    columns = [[Fraction(float(w)) for w in decision.W[label]] for label in support]
    sums = [
        sum((part * row[j] for part, row in zip(parts, columns, strict=True)), Fraction())
        for j in range(decision.W.shape[1])
    ]
    b = np.zeros(len(decision.W)) if decision.b is None else decision.b
    shift = sum((part * Fraction(float(b[label])) for part, label in zip(parts, support, strict=True)), Fraction())
    # lengths from below, each to sixty bits
    lengths = [_root(sum((w * w for w in row), Fraction())) for row in columns]
    scale = sum((abs(part) * length for part, length in zip(parts, lengths, strict=True)), Fraction())
    assert BOX * sum(map(abs, sums)) + shift <= EPS * scale


def _root(number: Fraction) -> Fraction:
    """A number of which the square is at most `number`, and hardly less."""
    shift = 1 << (2 * max(0, 60 + number.denominator.bit_length() - number.numerator.bit_length()))
    return Fraction(isqrt(number.numerator * shift * shift // number.denominator), shift)


def _check_certificate(decision: LinearDecision, verdict: Verdict, wanted: set[int], labels: object) -> None:
    assert verdict.certificate is not None
    support, multipliers = verdict.certificate
    assert len(support) == len(set(support.tolist())) == len(multipliers)
    assert set(support.tolist()) <= set(labels)  # type: ignore[call-overload]
    assert np.isfinite(multipliers).all()
    assert (multipliers > 0).all()
    signs = [1 if label in wanted else -1 for label in support.tolist()]
    signed = list(zip(signs, support.tolist(), strict=True))
    columns = [[sign * Fraction(float(w)) for w in decision.W[label]] for sign, label in signed]
    if decision.rule == "topk":
        columns = [[*column, Fraction(sign)] for sign, column in zip(signs, columns, strict=True)]
    shifts = [Fraction(0)] * len(support)
    if decision.b is not None:
        shifts = [sign * Fraction(float(decision.b[label])) for sign, label in signed]
    # with the row of t, the combination is zero for these shifts too
    for rows in (columns, [[*column, shift] for column, shift in zip(columns, shifts, strict=True)]):
        weights = _weights(null_space(rows), multipliers)
        total = sum((weight * shift for weight, shift in zip(weights, shifts, strict=True)), Fraction())
        if weights and all(weight > 0 for weight in weights) and total <= 0:
            spans = len(support) - len(null_space(rows)) == len(columns[0]) + (decision.b is not None)
            if total < 0 or _must_not_tie(decision, set(labels) if spans else set(support.tolist()), wanted, spans):  # type: ignore[call-overload]
                return
    raise AssertionError("the certificate proves nothing")


def _weights(basis: list[list[Fraction]], multipliers: np.ndarray) -> list[Fraction]:
    """The combination with these last multipliers, for a null space of one or two dimensions."""
    if len(basis) == 1:
        return [value / basis[0][-1] for value in basis[0]] if basis[0][-1] else []
    if len(basis) != 2:
        return []
    (a, b), (c, d) = basis[0][-2:], basis[1][-2:]
    first, last = (Fraction(float(value)) for value in multipliers[-2:])
    if a * d == b * c:
        return []
    one, other = (first * d - last * c) / (a * d - b * c), (last * a - first * b) / (a * d - b * c)
    return [one * left + other * right for left, right in zip(*basis, strict=True)]


def _must_not_tie(decision: LinearDecision, tied: set[int], wanted: set[int], spans: bool) -> bool:
    on, off = tied & wanted, tied - wanted
    if spans and decision.b is not None:
        return True
    return bool(on) and (decision.rule == "sign" or (bool(off) and max(on) > min(off)))


def null_space(vectors: list[list[Fraction]]) -> list[list[Fraction]]:
    """A basis of the λ with Σ λ_i vectors_i = 0, by elimination on [vectors | identity]."""
    count, width = len(vectors), len(vectors[0])
    table = [[*vector, *(Fraction(int(i == j)) for j in range(count))] for i, vector in enumerate(vectors)]
    done = 0
    for column in range(width):
        pivot = next((line for line in range(done, count) if table[line][column] != 0), None)
        if pivot is None:
            continue
        table[done], table[pivot] = table[pivot], table[done]
        for line in range(done + 1, count):
            factor = table[line][column] / table[done][column]
            if factor:
                table[line] = [a - factor * b for a, b in zip(table[line], table[done], strict=True)]
        done += 1
    return [line[width:] for line in table[done:]]
