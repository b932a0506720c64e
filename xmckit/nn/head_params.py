"""The parameters that heads of the TorchHead family share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from xmckit.params import EncoderSpec, Params, Spec


class TorchHeadParams(Params):
    """What every head of this family can be told: how it is trained."""

    encoder: EncoderSpec = Field(Spec(use="sparse-linear"), description="What turns features into vectors.")
    epochs: int = Field(40, ge=1, description="Passes over the training rows, at most.")
    batch: int = Field(256, ge=1, description="Rows per step.")
    learning_rate: float = Field(5e-3, gt=0, le=1, description="Adam's step size.")
    weight_decay: float = Field(0.0, ge=0, le=100, description="Decoupled decay, × the learning rate, of rows in use.")
    dropout: float = Field(0.5, ge=0, lt=1, description="Share of the encoder's outputs set to 0 in training.")
    patience: int = Field(3, ge=1, description="Epochs without a better validation nDCG@5 after which training stops.")
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description='"auto": cuda where there is one.')
    hard: int = Field(20, ge=0, description="With an index: labels of each row's shortlist that training compares.")
    uniform: int = Field(
        1024, ge=0, description="With an index: labels drawn at random for each step, which stand for all others."
    )
    refresh: int = Field(
        3, ge=1, description="With an index over this head's own vectors: epochs after which it is built anew."
    )
    candidates: int = Field(200, ge=1, description="With an index: labels that it gives a row to choose from.")


class ThresholdParams(TorchHeadParams):
    """Of a head that outputs the labels above a threshold."""

    threshold: Annotated[float, Field(ge=-10_000, le=10_000)] | Literal["validation"] = Field(
        "validation", description='Logit above which a label is output; "validation": the best micro-F1 there.'
    )


class RankingParams(TorchHeadParams):
    """Of a head that outputs its best labels, the same number for every row."""

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description='Labels that are output for a row; "auto": the mean of the training rows, rounded up.'
    )


class LinearParams(TorchHeadParams):
    """Of a head whose classifier is learned freely, as `Classifier` is."""

    dim: int = Field(256, ge=1, le=65536, description="Width d of the vectors that the classifier multiplies.")


class LinearThresholdParams(ThresholdParams, LinearParams):
    """What a TorchHead takes unless it says otherwise."""
