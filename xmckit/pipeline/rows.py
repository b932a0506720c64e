"""Rows as the stages of a run see them: with each of the recipe's features, and made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xmckit.runs import Stage

if TYPE_CHECKING:
    from xmckit.context import Context
    from xmckit.data.model import Dataset, Matrix, Split

Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """A value that is made when it is first asked for: a run whose later stages are all cached reads nothing."""

    def __init__(self, make: Callable[[], Value]):
        self._make = make
        self._value: list[Value] = []

    @property
    def value(self) -> Value:
        if not self._value:
            self._value.append(self._make())
        return self._value[0]


def nothing() -> Lazy[None]:
    return Lazy(lambda: None)


@dataclass(frozen=True)
class Featured:
    """A fitted featurizer, and what it made of the rows."""

    featurizer: Any
    train: Matrix
    test: Matrix


@dataclass(frozen=True)
class Rows:
    """Rows to train on, the validation rows beside them, and which share of all rows these are.

    `keys` are the stages that they come from; `labels` has a feature row for each label, where there can be one.
    """

    keys: Sequence[str]
    train: Lazy[Split]
    labels: Lazy[Matrix | None]
    validation: Lazy[Any] = field(default_factory=nothing)
    share: Sequence[Any] = ()

    def carved(self, share: float, context: Context) -> Rows:
        """Without a validation share. The same rows are taken whatever features they have."""
        from xmckit.data.model import carve_validation

        parts = Lazy(lambda: carve_validation(self.train.value, share, context.rng("validation")))
        return replace(
            self,
            train=Lazy(lambda: parts.value[0]),
            validation=Lazy(lambda: parts.value[1]),
            share=[share, context.seed],
        )


@dataclass(frozen=True)
class Fit:
    """Rows with each of the features, and the indexes that were built on them."""

    rows: Mapping[str, Rows]
    indexes: Sequence[Stage[Any]]


def training_rows(
    data: Stage[Dataset],
    features: Mapping[str, Stage[Featured]],
    relabelled: tuple[str, Lazy[Split]] | None,
    context: Context,
) -> dict[str, Rows]:
    """The training rows with each of the features. Of `relabelled`, key and rows after the label stages, which saw the
    first features, the labels are those of all.
    """
    from xmckit.pipeline.output_checks import label_rows

    first = next(iter(features))

    def seen(name: str, stage: Stage[Featured]) -> Rows:
        labels = Lazy(lambda: label_rows(data.value, stage.value.featurizer, stage.value.train, context))
        if relabelled is None:
            return Rows([stage.key], Lazy(lambda: replace(data.value.train, X=stage.value.train)), labels)
        key, train = relabelled
        if name == first:
            return Rows([key], train, labels)
        return Rows([key, stage.key], Lazy(lambda: replace(train.value, X=stage.value.train)), labels)

    return {name: seen(name, stage) for name, stage in features.items()}


def test_rows(data: Stage[Dataset], features: Mapping[str, Stage[Featured]]) -> dict[str, Lazy[Split]]:
    """The test rows with each of the features."""

    def seen(stage: Stage[Featured]) -> Lazy[Split]:
        return Lazy(lambda: replace(data.value.test, X=stage.value.test))

    return {name: seen(stage) for name, stage in features.items()}
