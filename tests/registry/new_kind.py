"""A kind that the core does not have, samplers of rows: protocol, checks, plugin, and a metric that uses it."""

from __future__ import annotations

from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

import xmckit
from xmckit.kinds import Kind, RecipeSection
from xmckit.params import KindOf
from xmckit.testing import common
from xmckit.testing.assertions import require
from xmckit.testing.subjects import Subject

SAMPLER = Kind(
    "sampler",
    "Ways to draw rows",
    f"{__name__}:Sampler",
    sections=(RecipeSection("sample", "How rows are drawn.", default="every-other"),),
    checks=f"{__name__}:SamplerSubject",
)


class Sampler(Protocol):
    """Draws rows."""

    def draw(self, rows: int) -> np.ndarray: ...


class SamplerSubject(Subject):
    def inputs(self):
        return {}

    def answers(self, ready, context):
        return {"rows": ready.draw(10)}


def draws_existing_rows(subject: SamplerSubject) -> str:
    rows = subject.ready.draw(10)
    require(bool((rows < 10).all()), "a row beyond the last")
    return f"{len(rows)} rows"


CHECKS = (*common.FIRST, draws_existing_rows, *common.ALWAYS)


class EveryOther(xmckit.Configured):
    class Params(xmckit.Params):
        step: int = Field(2, ge=1, description="Distance between rows.")

    def draw(self, rows):
        return np.arange(0, rows, self.params.step)


class TooFar(EveryOther):
    def draw(self, rows):
        return super().draw(rows) + 2


class DrawsNothing(xmckit.Configured):
    """A sampler that breaks the contract of its kind."""


class OnASample(xmckit.Configured):
    class Params(xmckit.Params):
        sampler: Annotated[xmckit.Spec, KindOf("sampler")] = Field(
            xmckit.Spec(use="every-other"), description="Draws the rows that count."
        )

    def compute(self, evaluation):
        return {"rows": float(evaluation.truth.shape[0])}


@xmckit.hookimpl
def xmckit_samplers():
    yield xmckit.Component("every-other", f"{__name__}:EveryOther", summary="Every other row.")
    yield xmckit.Component("too-far", f"{__name__}:TooFar", summary="Rows that are not there.")
    yield xmckit.Component("nothing", f"{__name__}:DrawsNothing", summary="Nothing.")


@xmckit.hookimpl
def xmckit_metrics():
    yield xmckit.Component("on-a-sample", f"{__name__}:OnASample", summary="Of some rows.")
