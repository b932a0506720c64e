"""The data set `synthetic`, of any size, with known truth: power-law labels over topics, and words that predict labels.

A label has one meaning, or two if it is bimodal. A meaning belongs to one topic and has a few signature words. A row
draws a topic and then its labels, by frequency, from the meanings of that topic and the general meanings: those of
labels that are too frequent for a single topic and go with any topic. So the label of rank r is drawn with a share
proportional to r^−exponent. The words of a row are signature words of its meanings and words of its topic, except for a
share of noise that follows 1/rank over all words.

Rows are drawn in blocks, each with its own generator, so that memory holds the result and one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator
from scipy.sparse import csr_matrix, vstack

from xmckit.context import Bar, Context
from xmckit.data.model import Dataset, Groups, Split, labels_of_groups
from xmckit.params import Configured, Params
from xmckit.sparse.csr import sorted_csr

ROWS_PER_BLOCK = 1 << 13
SIGNATURE_WORDS = 6
TOPIC_WORDS = 40
# The share of the words without noise that come from the topic; the others come from the labels.
TOPIC_SHARE = 0.2
# Repeated draws of a label count once, so a row draws more labels than it needs; at most this many times as many.
MOST_DRAWS = 10
# Bimodal labels are drawn from this many times as many of the most frequent labels; a rare one would show nothing.
BIMODAL_AMONG = 4
# Columns are int32, and a block of rows has to fit into memory.
MOST_COLUMNS = 2**31 - 1
MOST_PER_ROW = 100_000


class SyntheticParams(Params):
    rows: int = Field(10_000, ge=1, description="Number of training rows.")
    test_rows: int = Field(2_000, ge=1, description="Number of test rows.")
    features: int = Field(5_000, ge=2, le=MOST_COLUMNS, description="Number of words.")
    labels: int = Field(1_000, ge=1, le=MOST_COLUMNS, description="Number of labels; rare ones may have no row.")
    topics: int = Field(50, ge=1, description="Number of topics; all labels of a row but general ones share a topic.")
    labels_per_row: float = Field(
        3.0,
        ge=1,
        le=MOST_PER_ROW,
        description="Labels per row on average; fewer if topics have too few frequent labels.",
    )
    words_per_row: float = Field(
        40.0, ge=1, le=MOST_PER_ROW, description="Words drawn per row on average; repeats are counted."
    )
    exponent: float = Field(
        1.0, ge=0, le=10, description="The label of rank r is drawn with a share proportional to r^−exponent."
    )
    noise: float = Field(0.5, ge=0, le=1, description="Share of words that are independent of the labels.")
    bimodal: int = Field(
        0, ge=0, description="Number of labels with two meanings in different topics, among frequent labels."
    )
    group_size: int = Field(0, ge=0, description="Rows per planted group; 0 for no groups.")

    @model_validator(mode="after")
    def _check_sizes(self) -> SyntheticParams:
        if self.topics > self.labels:
            raise ValueError(f"{self.topics} topics need at least as many labels, found {self.labels}")
        if self.bimodal > self.labels:
            raise ValueError(f"bimodal = {self.bimodal} is more than the {self.labels} labels")
        if self.bimodal and self.topics < 2:
            raise ValueError("bimodal labels need at least 2 topics")
        return self


@dataclass(frozen=True)
class Plan:
    """The truth behind the rows. Meanings are sorted by topic; general meanings, without topic, are last.

    `cumulative` holds the running sum of the shares of meanings with a leading 0; topic t has the meanings `starts[t]`
    to `starts[t + 1]`. `draws_per_row` is the average number of meanings that a row draws to get the wanted number of
    different labels. `topic_of_label` is −1 for general labels, and the first of the two `bimodal_topics` for the
    labels in `bimodal`.
    """

    label_of: np.ndarray
    cumulative: np.ndarray
    starts: np.ndarray
    signatures: np.ndarray
    topic_words: np.ndarray
    draws_per_row: float
    topic_of_label: np.ndarray
    bimodal: np.ndarray
    bimodal_topics: np.ndarray

    @property
    def topical_share(self) -> float:
        """The chance that a draw gives a meaning of the row's topic and not a general one."""
        return float(self.cumulative[self.starts[-2]])


class Synthetic(Configured):
    """Power-law labels over topics, with optional bimodal labels and groups."""

    Params: ClassVar[type[Params]] = SyntheticParams

    def fingerprint(self, *, context: Context) -> dict[str, str]:
        # A seed may give other numbers with another version of numpy.
        return {"seed": str(context.seed), "numpy": np.__version__}

    def read(self, *, context: Context) -> Dataset:
        plan = make_plan(self.params, context.rng("synthetic", "plan"))
        with context.progress("drawing rows", total=self.params.rows + self.params.test_rows) as bar:
            train = self._draw("train", self.params.rows, plan, context, bar)
            test = self._draw("test", self.params.test_rows, plan, context, bar)
        return Dataset(
            name="synthetic",
            train=train,
            test=test,
            label_names=_label_names(plan),
            propensity="other",
            info={
                "source": "synthetic: power-law labels over topics",
                "labels_per_row": train.Y.nnz / train.rows,
                "labels_without_training_rows": int((np.bincount(train.Y.indices, minlength=train.labels) == 0).sum()),
                "general_labels": int((plan.topic_of_label < 0).sum()),
                "bimodal_labels": plan.bimodal.tolist(),
                "bimodal_topics": plan.bimodal_topics.tolist(),
            },
        )

    def _draw(self, name: str, rows: int, plan: Plan, context: Context, bar: Bar) -> Split:
        blocks = []
        for block, start in enumerate(range(0, rows, ROWS_PER_BLOCK)):
            size = min(ROWS_PER_BLOCK, rows - start)
            blocks.append(draw_block(plan, self.params, size, context.rng("synthetic", name, block)))
            bar.advance(size)
        X, Y = (vstack(matrices, format="csr") for matrices in zip(*blocks, strict=True))
        Y.data[:] = 1
        return Split(X=X, Y=Y, groups=_groups(Y, self.params.group_size))


def make_plan(params: SyntheticParams, rng: np.random.Generator) -> Plan:
    """Draw topics, meanings and their words."""
    by_rank = rng.permutation(params.labels)
    shares = np.empty(params.labels)
    shares[by_rank] = np.arange(1, params.labels + 1) ** -params.exponent
    shares /= shares.sum()
    general, topical = np.split(by_rank, [_general_labels(shares[by_rank], params)])
    topic_of_label = np.full(params.labels, -1)
    topic_of_label[topical] = rng.permutation(len(topical)) % params.topics
    bimodal = np.sort(rng.choice(topical[: BIMODAL_AMONG * params.bimodal], size=params.bimodal, replace=False))
    shift = rng.integers(1, max(2, params.topics), size=params.bimodal)
    second_topics = (topic_of_label[bimodal] + shift) % params.topics

    shares[bimodal] /= 2
    label_of = np.concatenate([topical, bimodal, general])
    topic_of = np.concatenate([topic_of_label[topical], second_topics, np.full(len(general), params.topics)])
    order = np.argsort(topic_of, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(shares[label_of[order]])])
    cumulative /= cumulative[-1]
    starts = np.searchsorted(topic_of[order], np.arange(params.topics + 2))
    return Plan(
        label_of=label_of[order].astype(np.int32),
        cumulative=cumulative,
        starts=starts,
        signatures=rng.integers(params.features, size=(len(label_of), SIGNATURE_WORDS), dtype=np.int32),
        topic_words=rng.integers(params.features, size=(params.topics, TOPIC_WORDS), dtype=np.int32),
        draws_per_row=_draws_for(params.labels_per_row, np.diff(cumulative), starts),
        topic_of_label=topic_of_label,
        bimodal=bimodal,
        bimodal_topics=np.stack([topic_of_label[bimodal], second_topics], axis=1),
    )


def _general_labels(ranked_shares: np.ndarray, params: SyntheticParams) -> int:
    """Return the number of labels that every row of an average topic would draw about once or more."""
    too_frequent = int((ranked_shares * params.labels_per_row * params.topics > 1).sum())
    return min(too_frequent, params.labels - max(params.topics, params.bimodal))


def _draws_for(labels_per_row: float, shares: np.ndarray, starts: np.ndarray) -> float:
    """Find by bisection how many draws (1 + Poisson) give `labels_per_row` different meanings on average."""
    first_general = starts[-2]
    topic_shares = np.add.reduceat(shares[:first_general], starts[:-2])
    chance_of_topic = np.ones_like(shares)
    chance_of_topic[:first_general] = np.repeat(topic_shares / topic_shares.sum(), np.diff(starts[:-1]))
    chance_of_draw = np.divide(shares, chance_of_topic, out=np.zeros_like(shares), where=chance_of_topic > 0)

    def different(draws: float) -> float:
        missed = (1 - chance_of_draw) * np.exp(-(draws - 1) * chance_of_draw)
        return float(chance_of_topic @ (1 - missed))

    low, high = labels_per_row, MOST_DRAWS * labels_per_row
    if different(high) <= labels_per_row:
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if different(middle) < labels_per_row else (low, middle)
    return high


def draw_block(
    plan: Plan, params: SyntheticParams, rows: int, rng: np.random.Generator
) -> tuple[csr_matrix, csr_matrix]:
    """Draw rows. Return how often each row has each word, and how often it has each label."""
    ends = plan.cumulative[plan.starts[1:-1]]
    topics = np.searchsorted(ends, rng.random(rows) * plan.topical_share, side="right").clip(max=len(ends) - 1)
    meaning_counts = 1 + rng.poisson(plan.draws_per_row - 1, size=rows)
    meaning_rows = np.repeat(np.arange(rows), meaning_counts)
    general = rng.random(len(meaning_rows)) >= plan.topical_share
    pools = np.where(general, params.topics, topics[meaning_rows])
    meanings = _meanings(plan, pools, rng.random(len(meaning_rows)))
    word_counts = 1 + rng.poisson(params.words_per_row - 1, size=rows)
    word_rows = np.repeat(np.arange(rows), word_counts)
    first_meanings = np.cumsum(meaning_counts) - meaning_counts
    chosen = first_meanings[word_rows] + rng.integers(meaning_counts[word_rows])
    words = plan.signatures[meanings[chosen], rng.integers(SIGNATURE_WORDS, size=len(word_rows))]
    kind = rng.random(len(word_rows))
    noise = np.flatnonzero(kind < params.noise)
    words[noise] = _zipf(params.features, rng.random(len(noise)))
    topical = np.flatnonzero((kind >= params.noise) & (kind < params.noise + (1 - params.noise) * TOPIC_SHARE))
    words[topical] = plan.topic_words[topics[word_rows[topical]], rng.integers(TOPIC_WORDS, size=len(topical))]
    return (
        _counts(word_rows, words, (rows, params.features)),
        _counts(meaning_rows, plan.label_of[meanings], (rows, params.labels)),
    )


def _counts(row_of: np.ndarray, column_of: np.ndarray, shape: tuple[int, int]) -> csr_matrix:
    return csr_matrix((np.ones(len(row_of), dtype=np.float32), (row_of, column_of)), shape=shape)


def _meanings(plan: Plan, pools: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw one meaning from each pool (a topic, or the general meanings after the last topic), by share."""
    first, last = plan.starts[pools], plan.starts[pools + 1] - 1
    low, high = plan.cumulative[first], plan.cumulative[last + 1]
    meanings = np.searchsorted(plan.cumulative, low + uniform * (high - low), side="right") - 1
    return np.clip(meanings, first, last)


def _zipf(size: int, uniform: np.ndarray) -> np.ndarray:
    """Draw numbers below `size`, n with a chance of about 1/(n + 1)."""
    return np.minimum(np.exp(uniform * np.log(size + 1.0)).astype(np.int64) - 1, size - 1)


def _groups(Y: csr_matrix, size: int) -> Groups | None:
    """Group neighbouring rows, which are as good as random ones, because rows are independent."""
    if size == 0:
        return None
    of_row = (np.arange(Y.shape[0]) // size).astype(np.int32)
    ones = np.ones(len(of_row), dtype=np.float32)
    membership = sorted_csr(ones, of_row, np.arange(len(of_row) + 1), int(of_row[-1]) + 1)
    return Groups(membership, labels_of_groups(membership, Y))


def _label_names(plan: Plan) -> list[str]:
    """Return names like `topic3/label17`, `topic3+topic8/label17` (two meanings) and `general/label17`."""
    topics = [f"topic{topic}" if topic >= 0 else "general" for topic in plan.topic_of_label.tolist()]
    for label, (first, second) in zip(plan.bimodal.tolist(), plan.bimodal_topics.tolist(), strict=True):
        topics[label] = f"topic{first}+topic{second}"
    return [f"{topic}/label{label}" for label, topic in enumerate(topics)]
