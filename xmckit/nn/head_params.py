"""Parameters that heads based on TorchHead share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from xmckit.params import EncoderSpec, Params, Spec


class TorchHeadParams(Params):
    """Parameters of training, which every TorchHead has."""

    encoder: EncoderSpec = Field(Spec(use="sparse-linear"), description="Component that turns features into vectors.")
    epochs: int = Field(40, ge=1, description="Maximum number of passes over the training rows.")
    batch: int = Field(256, ge=1, description="Rows per step.")
    learning_rate: float = Field(5e-3, gt=0, le=1, description="Adam's step size.")
    weight_decay: float = Field(0.0, ge=0, le=100, description="Decoupled decay, × the learning rate, of rows in use.")
    dropout: float = Field(0.5, ge=0, lt=1, description="Share of the encoder's outputs set to 0 in training.")
    patience: int = Field(3, ge=1, description="Epochs without a better validation nDCG@5 after which training stops.")
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description='"auto": cuda if available.')
    hard: int = Field(20, ge=0, description="With an index: labels of each row's shortlist used in training.")
    uniform: int = Field(
        1024, ge=0, description="With an index: labels drawn at random for each step, as a sample of all others."
    )
    refresh: int = Field(
        3, ge=1, description="With an index over this head's own vectors: epochs between two builds of the index."
    )
    candidates: int = Field(200, ge=1, description="With an index: labels that it offers for each row.")


class ThresholdParams(TorchHeadParams):
    """Parameters of a head that outputs the labels above a threshold."""

    threshold: Annotated[float, Field(ge=-10_000, le=10_000)] | Literal["validation"] = Field(
        "validation",
        description='Logit above which a label is output; "validation": the one of the best micro-F1.',
    )


class RankingParams(TorchHeadParams):
    """Parameters of a head that outputs its best labels, the same number for every row."""

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description='Labels to output for a row; "auto": the mean of the training rows, rounded up.'
    )


class LinearParams(TorchHeadParams):
    """Parameters of a head with a freely learned matrix, such as `Classifier`."""

    dim: int = Field(256, ge=1, le=65536, description="Width d of the vectors that the classifier multiplies.")


class LinearThresholdParams(ThresholdParams, LinearParams):
    """The default parameters of a TorchHead."""
