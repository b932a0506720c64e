"""The checks of each kind, imported when they are asked for: those of encoders need torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    module: str
    name: str

    @property
    def checks(self) -> Sequence[Callable[[Any], str]]:
        checks: Sequence[Callable[[Any], str]] = importlib.import_module(f"xmckit.testing.{self.module}").CHECKS
        return checks

    @property
    def subject(self) -> Callable[..., Any]:
        subject: Callable[..., Any] = getattr(importlib.import_module(f"xmckit.testing.{self.module}"), self.name)
        return subject


KINDS = {
    "head": Kind("heads", "HeadSubject"),
    "label-preprocessor": Kind("label_preprocessors", "PreprocessorSubject"),
    "indexer": Kind("indexers", "IndexerSubject"),
    "verifier": Kind("verifiers", "VerifierSubject"),
    "dataset": Kind("datasets", "DatasetSubject"),
    "reader": Kind("readers", "ReaderSubject"),
    "featurizer": Kind("featurizers", "FeaturizerSubject"),
    "encoder": Kind("encoders", "EncoderSubject"),
    "metric": Kind("metrics", "MetricSubject"),
    "executor": Kind("executors", "ExecutorSubject"),
}
