"""What every head is held to. Each check takes a `HeadSubject`, returns what it found, and raises AssertionError
when the contract is broken or `NotApplicable` when there is nothing to check.
"""

from __future__ import annotations

import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy.sparse import csr_matrix, issparse

from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.errors import XmckitError
from xmckit.protocols import Head, TopK
from xmckit.testing.fresh import answers, answers_in_fresh_process
from xmckit.testing.problems import small_problem

K = 5
FLOAT32_UNIT = 2.0**-24
PICKLE_NAMES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")


class NotApplicable(Exception):
    """This check says nothing about this component; the message says why."""


def require(holds: bool | np.bool_, otherwise: str) -> None:
    """An assertion that `python -O` keeps."""
    if not holds:
        raise AssertionError(otherwise)


class HeadSubject:
    """A head under test: its class, parameters and context, and one fitted head that read-only checks share."""

    def __init__(self, cls: type, params: Mapping[str, Any], context: Context, indexers: Sequence[Any] = ()):
        self.cls, self.params, self.indexers = cls, dict(params), indexers
        self.validation = small_problem(rows=30, seed=1)
        self.context = context
        self.train = small_problem()
        self.X: csr_matrix = small_problem(rows=40, seed=2).matrix

    def fit(self, train: Split, *, context: Context | None = None) -> Any:
        """A new head, fitted on `train`; rows that fit its labels and features are there for validation."""
        context = context or self.context
        if self.validation.labels == train.labels and self.validation.matrix.shape[1] == train.matrix.shape[1]:
            context = context.using(validation=self.validation)
        head = self.cls(**self.params)
        indexes = [context.build("indexer", spec).build(train, context=context) for spec in self.indexers]
        head.fit(train, indexes=indexes, context=context)
        return head

    @cached_property
    def fitted(self) -> Any:
        return self.fit(self.train)

    @contextmanager
    def saved(self) -> Iterator[Path]:
        """A temporary folder whose `head` holds the fitted head."""
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "head").mkdir()
            self.fitted.save(Path(name) / "head")
            yield Path(name)


def offers_what_a_head_must(subject: HeadSubject) -> str:
    missing = sorted(name for name in dir(Head) if not name.startswith("_") and not hasattr(subject.cls, name))
    require(not missing, f"lacks {', '.join(missing)}")
    require(hasattr(subject.cls, "load"), "lacks load")
    needs = getattr(subject.cls, "needs", None)
    require(isinstance(needs, frozenset), f"`needs` is {needs!r}, expected a frozenset of names")
    return ""


def rejects_unknown_parameters(subject: HeadSubject) -> str:
    unknown = "no_such_parameter"
    try:
        subject.cls(**{**subject.params, unknown: 1})
    except (ValidationError, XmckitError) as error:
        require(unknown in str(error), f"the error does not name the parameter: {error}")
        return ""
    raise AssertionError(f"took the unknown parameter {unknown} without a word")


def ranks_in_proper_form(subject: HeadSubject) -> str:
    _assert_well_formed(subject.fitted.predict(subject.X, K), rows=subject.X.shape[0], k=K, labels=subject.train.labels)
    return ""


def answers_the_same_in_one_pass(subject: HeadSubject) -> str:
    if not hasattr(subject.cls, "rank_and_label"):
        raise NotApplicable("it does not offer rank_and_label()")
    for k in (1, K, subject.train.labels + 4):
        ranking, sets = subject.fitted.rank_and_label(subject.X, k)
        expected = subject.fitted.predict(subject.X, k)
        for name in ("indices", "scores"):
            same = _same_bits(getattr(ranking, name), getattr(expected, name))
            require(same, f"rank_and_label() gives other {name} than predict(), k = {k}")
        require((sets != subject.fitted.labels(subject.X)).nnz == 0, "rank_and_label() gives other sets than labels()")
    return ""


def pads_when_k_exceeds_the_labels(subject: HeadSubject) -> str:
    labels = subject.train.labels
    topk = subject.fitted.predict(subject.X, labels + 4)
    _assert_well_formed(topk, rows=subject.X.shape[0], k=labels + 4, labels=labels)
    require((topk.indices[:, labels:] == -1).all(), "more labels than there are")
    shorter = subject.fitted.predict(subject.X, K)
    require(np.array_equal(shorter.indices, topk.indices[:, :K]), "the best labels change with k")
    return ""


def repeats_itself_with_the_same_seed(subject: HeadSubject) -> str:
    _assert_equal(subject.fitted, subject.fit(subject.train), subject.X, "a second fit with the same seed")
    return ""


def ignores_the_number_of_workers(subject: HeadSubject) -> str:
    for workers in (1, 3):
        other = subject.fit(subject.train, context=subject.context.using(workers=workers))
        _assert_equal(subject.fitted, other, subject.X, f"a fit with {workers} workers")
    return ""


def leaves_its_inputs_alone(subject: HeadSubject) -> str:
    train, X = small_problem(), subject.X.copy()
    weights = csr_matrix((np.full(train.Y.nnz, 0.5, dtype=np.float32), train.Y.indices, train.Y.indptr), train.Y.shape)
    train = Split(train.X, train.Y, weights=weights)
    matrices = {"X": train.matrix, "Y": train.Y, "weights": weights, "X of predict": X}
    before = {name: _copies(matrix) for name, matrix in matrices.items()}
    head = subject.fit(train)
    head.predict(X, K), head.labels(X), head.features(X)
    for name, matrix in matrices.items():
        same = all(np.array_equal(old, new) for old, new in zip(before[name], _copies(matrix), strict=True))
        require(same, f"{name} was changed")
    return ""


def leaves_the_process_alone(subject: HeadSubject) -> str:
    """Another component in the same process must not notice: generators that all share, torch's threads."""
    before = _shared_state()
    head = subject.fit(subject.train)
    head.predict(subject.X, K), head.labels(subject.X), head.features(subject.X)
    after = _shared_state()
    changed = [what for what, state in before.items() if after[what] != state]
    require(not changed, f"changed {' and '.join(changed)}")
    return ""


def takes_dense_and_sparse_rows_alike(subject: HeadSubject) -> str:
    _assert_same_up_to_rounding(
        subject.fitted.predict(subject.X, K), subject.fitted.predict(subject.X.toarray(), K), "dense rows"
    )
    return ""


def does_not_care_how_rows_are_batched(subject: HeadSubject) -> str:
    X = subject.X
    whole = subject.fitted.predict(X, K)
    for size in (1, 7):
        parts = [subject.fitted.predict(X[start : start + size], K) for start in range(0, X.shape[0], size)]
        joined = TopK(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))
        _assert_same_up_to_rounding(whole, joined, f"{size} rows at a time")
    return ""


def handles_no_rows_at_all(subject: HeadSubject) -> str:
    nothing = subject.X[:0]
    _assert_usable(subject.fitted, nothing, subject.train.labels)
    return ""


def handles_rows_without_features_or_labels(subject: HeadSubject) -> str:
    train = small_problem(empty=True)
    head = subject.fit(train)
    _assert_usable(head, train.matrix, train.labels)
    _assert_usable(head, csr_matrix(train.matrix.shape, dtype=np.float32), train.labels)
    return ""


def handles_a_single_label(subject: HeadSubject) -> str:
    train = small_problem(labels=1)
    _assert_usable(subject.fit(train), train.matrix, 1)
    return ""


def handles_a_single_row(subject: HeadSubject) -> str:
    train = small_problem(rows=1)
    _assert_usable(subject.fit(train), train.matrix, train.labels)
    return ""


def says_by_its_decision_what_its_labels_are(subject: HeadSubject) -> str:
    """W·x + b in float64, by its sign or its order, gives `labels`, but for what float32 rounding may decide."""
    decision = subject.fitted.decision()
    vectors = subject.fitted.features(subject.X)
    if decision is None:
        require(vectors is None, "features() gives vectors although decision() is None")
        raise NotApplicable("decision() is None: not verifiable")
    said = subject.fitted.labels(subject.X).toarray() != 0
    if decision.rule == "topk":
        return _compare_with_order(decision, vectors, said, "labels()")
    return _compare_with_margins(decision, vectors, said, "labels()")


def replays_vectors_through_its_own_scorer(subject: HeadSubject) -> str:
    decision = subject.fitted.decision()
    if decision is None or decision.replay is None:
        raise NotApplicable("there is no replay")
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((25, decision.W.shape[1])).astype(np.float32)
    if decision.rule == "topk":
        counts = rng.integers(0, len(decision.W) + 1, len(vectors))
        sets = decision.replay(vectors, counts).toarray() != 0
        require(np.array_equal(sets.sum(axis=1), counts), "replay gives other numbers of labels than asked for")
        return _compare_with_order(decision, vectors, sets, "replay")
    return _compare_with_margins(decision, vectors, decision.replay(vectors).toarray() != 0, "replay")


def loads_in_a_fresh_process(subject: HeadSubject) -> str:
    with subject.saved() as folder:
        found = answers_in_fresh_process(subject.cls, folder, subject.X, K, workers=subject.context.workers)
    for name, expected in answers(subject.fitted, subject.X, K).items():
        require(_same_bits(expected, found[name]), f"{name} differ after save, load and predict in a fresh process")
    return ""


def saves_without_pickle(subject: HeadSubject) -> str:
    with subject.saved() as folder:
        files = sorted(path for path in (folder / "head").rglob("*") if path.is_file())
        require(bool(files), "save wrote no file")
        for path in files:
            _assert_no_pickle(path)
    return f"{len(files)} files"


def names_the_damaged_file(subject: HeadSubject) -> str:
    with subject.saved() as folder:
        files = sorted(path for path in (folder / "head").rglob("*") if path.is_file())
        for path in files:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            try:
                subject.cls.load(folder / "head", context=subject.context)  # type: ignore[attr-defined]
            except XmckitError as error:
                require(
                    path.name in str(error), f"{path.name} was cut in half, but the error does not name it: {error}"
                )
            else:
                raise AssertionError(f"{path.name} was cut in half and loaded without an error")
            path.write_bytes(content)
    return f"{len(files)} files"


CHECKS: tuple[Callable[[HeadSubject], str], ...] = (
    offers_what_a_head_must,
    rejects_unknown_parameters,
    ranks_in_proper_form,
    answers_the_same_in_one_pass,
    pads_when_k_exceeds_the_labels,
    repeats_itself_with_the_same_seed,
    ignores_the_number_of_workers,
    leaves_its_inputs_alone,
    leaves_the_process_alone,
    takes_dense_and_sparse_rows_alike,
    does_not_care_how_rows_are_batched,
    handles_no_rows_at_all,
    handles_rows_without_features_or_labels,
    handles_a_single_label,
    handles_a_single_row,
    says_by_its_decision_what_its_labels_are,
    replays_vectors_through_its_own_scorer,
    loads_in_a_fresh_process,
    saves_without_pickle,
    names_the_damaged_file,
)


def _assert_well_formed(topk: TopK, *, rows: int, k: int, labels: int) -> None:
    indices, scores = topk.indices, topk.scores
    require(indices.dtype == np.int32, f"indices are {indices.dtype}, expected int32")
    require(scores.dtype == np.float32, f"scores are {scores.dtype}, expected float32")
    require(indices.shape == scores.shape == (rows, k), f"{indices.shape} and {scores.shape}, expected {(rows, k)}")
    filled = indices >= 0
    require((indices[~filled] == -1).all(), "a padded place is not −1")
    require((np.diff(filled.astype(int), axis=1) <= 0).all(), "a padded place comes before a label")
    require((indices < labels).all(), f"a label beyond the {labels} that exist")
    require(np.isneginf(scores[~filled]).all(), "a padded place has a score other than −inf")
    require(np.isfinite(scores[filled]).all(), "a score is not finite")
    require((scores[:, 1:] <= scores[:, :-1]).all(), "scores rise along a row")
    ordered = np.sort(np.where(filled, indices, -1 - np.arange(k)), axis=1)
    require((np.diff(ordered, axis=1) != 0).all(), "a label twice in one row")


def _assert_usable(head: Any, X: Matrix, labels: int) -> None:
    _assert_well_formed(head.predict(X, K), rows=X.shape[0], k=K, labels=labels)
    sets = head.labels(X)
    require(issparse(sets) and sets.format == "csr", f"labels() is a {type(sets).__name__}, expected a CSR matrix")
    require(sets.shape == (X.shape[0], labels), f"labels() is {sets.shape}, expected {(X.shape[0], labels)}")


def _assert_equal(one: Any, other: Any, X: Matrix, what: str) -> None:
    second = answers(other, X, K)
    for name, expected in answers(one, X, K).items():
        require(_same_bits(expected, second[name]), f"{what} gives other {name}")


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _assert_same_up_to_rounding(one: TopK, other: TopK, what: str) -> None:
    close = np.isclose(one.scores, other.scores, rtol=1e-4, atol=1e-5) | (one.scores == other.scores)
    most = np.abs(one.scores[~close] - other.scores[~close]).max(initial=0.0)
    require(close.all(), f"{what}: scores change by {most:.3g}")
    moved = one.indices != other.indices
    # labels may change places only with labels of the same score; the last place may tie with one outside the ranking
    gaps = np.full(one.scores.shape, np.inf)
    with np.errstate(invalid="ignore"):
        between = np.abs(np.diff(one.scores, axis=1))
    gaps[:, 1:] = np.minimum(gaps[:, 1:], between)
    gaps[:, :-1] = np.minimum(gaps[:, :-1], between)
    gaps[:, -1] = 0.0
    apart = moved & (gaps > 1e-4 * np.maximum(1.0, np.abs(one.scores)))
    require(not apart.any(), f"{what}: labels of different scores change places in {apart.any(axis=1).sum()} rows")


def _margins(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """W·x + b in float64, and how far a float32 scorer may be from it."""
    W, x = decision.W.astype(np.float64), vectors.astype(np.float64)
    b = np.zeros(len(W)) if decision.b is None else decision.b.astype(np.float64)
    margins = x @ W.T + b
    require(margins.shape == said.shape, f"the decision is about {margins.shape}, {what} about {said.shape}")
    terms = W.shape[1] + 2
    gamma = terms * FLOAT32_UNIT / (1 - terms * FLOAT32_UNIT)
    return margins, gamma * (np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(W, axis=1) + np.abs(b))


def _compare_with_order(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    """No label that is left out scores clearly more than one that is output."""
    margins, bound = _margins(decision, vectors, said, what)
    lowest = np.where(said, margins + bound, np.inf).min(axis=1)
    highest = np.where(said, -np.inf, margins - bound).max(axis=1)
    wrong = np.flatnonzero(highest > lowest)
    require(
        not len(wrong),
        f"{what} are not the labels that W·x + b ranks first in {len(wrong)} of {len(said)} rows, "
        f"first in row {wrong[0] if len(wrong) else 0}",
    )
    return f"{len(said)} rows, {said.sum()} labels output"


def _compare_with_margins(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    margins, bound = _margins(decision, vectors, said, what)
    differ = (margins > 0) != said
    clear = differ & (np.abs(margins) > bound)
    if clear.any():
        row, label = np.argwhere(clear)[0]
        raise AssertionError(
            f"W·x + b and {what} differ in {clear.sum()} of {said.size} entries, first at row {row}, label {label}: "
            f"margin {margins[row, label]:.4g}, rounding explains at most {bound[row, label]:.2g}"
        )
    return f"{said.size} entries, {said.sum()} of them output, {differ.sum()} left to rounding"


def _shared_state() -> dict[str, object]:
    import torch

    return {
        "the generator of random": random.getstate(),
        "the generator of numpy.random": str(np.random.get_state(legacy=False)["state"]),
        "numpy's handling of floating-point errors": np.geterr(),
        "torch's generator": torch.random.get_rng_state().numpy().tobytes(),
        "torch's number of threads": torch.get_num_threads(),
    }


def _copies(matrix: Matrix) -> list[np.ndarray]:
    if isinstance(matrix, np.ndarray):
        return [matrix.copy()]
    return [matrix.data.copy(), matrix.indices.copy(), matrix.indptr.copy()]


def _assert_no_pickle(path: Path) -> None:
    require(path.suffix not in PICKLE_NAMES, f"{path.name} has the name of a pickle")
    head = path.read_bytes()[:256]
    # protocol 2 to 5 opens with \x80 and its number; numpy says in its header that objects, hence pickles, follow
    opens_like_one = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    require(not opens_like_one or _is_safetensors(head), f"{path.name} is a pickle")
    require(not _holds_objects(head), f"{path.name} holds pickled objects")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                require(not name.endswith(PICKLE_NAMES), f"{path.name} contains the pickle {name}")
                with archive.open(name) as member:
                    require(not _holds_objects(member.read(256)), f"{path.name} contains pickled objects in {name}")


def _is_safetensors(start: bytes) -> bool:
    """Whether the length of a JSON header and the header come first: a length of 896 has a pickle's first bytes."""
    return start[2:9] == bytes(6) + b"{"


def _holds_objects(start: bytes) -> bool:
    return start.startswith(b"\x93NUMPY") and b"'|O" in start
