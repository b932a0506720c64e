"""The DFT layer of Grivas, Vergari and Lopez (2024), "Taming the Sigmoid Bottleneck", over a chosen label order.

Labels stand at increasing angles t on a circle. A label's row of W is (1, cos t, sin t, …, cos kt, sin kt), fixed, and
`slack` learned columns S: z = DFT(x[: 2k+1]) + S·x[2k+1 :] + b. A trigonometric polynomial of degree k has at most 2k
zeros on the circle, and can have them anywhere. So every set of labels that forms at most k arcs around the circle is
sign(W·x) for some x, for every S and b. The paper counts active labels, which bounds the arcs. An order in which labels
that occur together are neighbours makes far fewer arcs of the same labels, and a smaller k is enough.

The guarantee is about x. It is lost if the encoder is narrower than 2k+1+slack, or if rows have fewer features: then
not every x can be reached.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy.sparse import csr_matrix

from xmckit import Alternating, Context, DataError, DataPath, Params, Split, UsageError
from xmckit.decisions import float32_error
from xmckit.nn import Chosen, Network, RankingParams, Targets, Threads, ThresholdParams, TorchHead, linear_loss, rows_of
from xmckit_heads.dft.fourier import Grid, dft_error, dft_logits, learned_rows, matrix, matrix_on
from xmckit_heads.dft.ordering import check_position, cyclic_arcs, label_order, read_order
from xmckit_heads.losses import Loss, LossName, chunked_loss, loss_named


class DFTParams(ThresholdParams, RankingParams):
    """`k` goes with a ranking loss, `threshold` with the loss "bce"."""

    active: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description='Guaranteed arcs of active labels; "auto": the most arcs of any row seen in training.'
    )
    slack: int = Field(64, ge=0, le=65536, description="Learned columns beside the 2·active + 1 fixed ones.")
    order: Literal["cooccurrence", "given"] = Field(
        "cooccurrence", description='How labels stand around the circle; "given": by label id, as in the paper.'
    )
    order_file: DataPath | None = Field(
        None, description="File with one label id per line, in cyclic order; replaces `order`."
    )
    angles: Literal["fixed", "learned"] = Field("fixed", description="Equally spaced, or learned and kept increasing.")
    bias: bool = Field(True, description="Learn one bias per label; without it, as in the paper, labels start alike.")
    loss: LossName = Field("bce", description="Training loss; with all but bce the head outputs its `k` best labels.")

    @model_validator(mode="after")
    def _fits_the_loss(self) -> DFTParams:
        idle = "k" if self.loss == "bce" else "threshold"
        if idle in self.model_fields_set and getattr(self, idle) != type(self).model_fields[idle].default:
            raise ValueError(f"{idle} has no meaning with the loss {self.loss!r}")
        return self


class DFTClassifier(torch.nn.Module):
    """The layer. It stores labels in the order of the grid's memory slots; only its outputs are in label-id order."""

    slot_of_label: torch.Tensor
    place_of_label: torch.Tensor

    def __init__(self, labels: int, degree: int, slack: int, *, learned: bool, bias: bool):
        super().__init__()
        self.degree, self.waves = degree, 2 * degree + 1
        # Up to two labels need no waves: the constant column is the whole transform.
        self.grid = Grid(labels, degree) if degree and not learned else None
        self.gaps = torch.nn.Parameter(torch.zeros(labels)) if degree and learned else None
        self.S = torch.nn.Parameter(torch.zeros(labels, slack))
        self.b = torch.nn.Parameter(torch.zeros(labels), requires_grad=bias)
        self.register_buffer("slot_of_label", torch.arange(labels))
        self.register_buffer("place_of_label", torch.arange(labels))

    @property
    def width(self) -> int:
        return self.waves + int(self.S.shape[1])

    @property
    def constant(self) -> float:
        """Return the entries of the first column."""
        return self.waves**-0.5

    def set_order(self, position: np.ndarray) -> None:
        """Put each label at its position on the circle."""
        self.place_of_label.copy_(torch.from_numpy(position))
        self.slot_of_label.copy_(self._slots_of(position))

    def check_order(self) -> None:
        """Raise DataError unless the loaded positions and slots belong to one label order."""
        position = check_position(self.place_of_label.cpu().numpy(), len(self.place_of_label))
        if not torch.equal(self.slot_of_label.cpu(), self._slots_of(position)):
            raise DataError("the two stored copies of the label order differ")

    def _slots_of(self, position: np.ndarray) -> torch.Tensor:
        slots = np.arange(len(position)) if self.grid is None else np.argsort(self.grid.cyclic_position())
        return torch.from_numpy(slots[position])

    def start(self, train: Split, generator: torch.Generator) -> None:
        """Set small random slack columns, and learned biases to the log odds of each label's frequency."""
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        odds = torch.from_numpy(np.log((counts + 0.5) / (train.rows - counts + 0.5))).float()
        with torch.no_grad():
            self.S.normal_(0.0, self.width**-0.5, generator=generator)
            if self.b.requires_grad:
                self.b[self.slot_of_label] = odds

    def slot_logits(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """Return logits, rows × slots."""
        if self.grid is None:
            logits = x[:, : self.waves] @ self.fixed_rows().T
        else:
            logits = dft_logits(x[:, : self.waves].contiguous(), self.grid, threads)
        # In place: each further matrix of rows × labels costs as much as the transform.
        return logits.addmm_(x[:, self.waves :], self.S.T).add_(self.b)

    def forward(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        return self.slot_logits(x, threads).index_select(1, self.slot_of_label)

    def fixed_rows(self) -> torch.Tensor:
        """Return the fixed columns of W, slots × (2k + 1)."""
        if self.gaps is not None:
            return learned_rows(self.gaps, self.degree, self.constant)
        if self.grid is None:
            return self.S.new_full((len(self.S), 1), self.constant)
        return matrix(self.grid, self.S.dtype).to(self.S.device)

    def rows(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows of `matrix()`, with sparse gradients for the learned columns."""
        if self.gaps is not None:
            raise UsageError('learned angles move all labels at once: with an index, set angles = "fixed"')
        slots = self.slot_of_label[labels]
        # From a cache: training asks for rows in every step.
        fixed = self.fixed_rows() if self.grid is None else matrix_on(self.grid, self.S.dtype, self.S.device)
        return torch.cat([fixed[slots], rows_of(self.S, slots)], dim=1), rows_of(self.b, slots)

    def matrix(self) -> tuple[torch.Tensor, torch.Tensor]:
        W = torch.cat([self.fixed_rows(), self.S], dim=1)
        return W[self.slot_of_label], self.b[self.slot_of_label]


class DFTHead(TorchHead):
    """A head that can output every label set with at most `degree` arcs around the circle, by construction."""

    Params: ClassVar[type[Params]] = DFTParams

    @property
    def ranking(self) -> bool:
        return bool(self.params.loss != "bce")

    def plan(self, train: Split, context: Context) -> dict[str, int]:
        position = self._order(train, context)
        # Validation rows count too: the order was not fitted to them, so they have more arcs, as later rows will.
        held_out = train.Y[:0] if context.validation is None else context.validation.Y
        arcs = np.concatenate([cyclic_arcs(labels, position) for labels in (train.Y, held_out)])
        most = int(arcs.max(initial=0))
        degree = self._degree(most, train.labels)
        self._position = position
        return {
            **super().plan(train, context),
            "degree": degree,
            "width": 2 * degree + 1 + self.params.slack,
            "most_runs": most,
            "beyond": int(np.count_nonzero(arcs > degree)),
        }

    def size_names(self) -> set[str]:
        return super().size_names() | {"degree", "most_runs", "beyond"}

    def _order(self, train: Split, context: Context) -> np.ndarray:
        if self.params.order_file is not None:
            return read_order(self.params.order_file, train.labels)
        with context.progress("ordering labels"):
            return label_order(train.Y, self.params.order)

    def _degree(self, most_arcs: int, labels: int) -> int:
        largest = _largest_degree(labels)
        if self.params.active == "auto":
            return min(max(1, most_arcs), largest)
        if self.params.active > largest:
            raise UsageError(
                f"active is {self.params.active}, but {labels} labels allow at most {largest}: "
                "the layer needs more labels than its 2·active fixed columns"
            )
        return int(self.params.active)

    def make_classifier(self, sizes: dict[str, int]) -> DFTClassifier:
        learned = self.params.angles == "learned"
        return DFTClassifier(
            sizes["labels"], sizes["degree"], self.params.slack, learned=learned, bias=self.params.bias
        )

    def encoder_width(self, sizes: dict[str, int]) -> int:
        """Return a width that is enough for the guarantee."""
        return max(super().encoder_width(sizes), sizes["width"])

    def start(self, network: Network, train: Split, generator: torch.Generator) -> None:
        network.classifier.set_order(self._position)
        super().start(network, train, generator)
        if not self.params.bias:
            # The paper starts every label at probability k/n, through the constant column.
            share = max(1, self.sizes["degree"]) / (train.labels + (self.sizes["degree"] == 0))
            with torch.no_grad():
                network.projection.bias[0] = math.log(share / (1 - share)) / network.classifier.constant

    def loss(self, classifier: DFTClassifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return the chosen loss of DFT(x[: 2k+1]) + S·x[2k+1 :] + b."""
        in_slots = Targets(targets.rows, classifier.slot_of_label[targets.labels], targets.weights, targets.shape)
        parameters = list(classifier.parameters())
        return chunked_loss(classifier.slot_logits, parameters, x, in_slots, self._loss_and_slope, threads)

    def shortlist_loss(self, chosen: Chosen, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        return linear_loss(x, chosen.W, chosen.b, targets, threads, self._loss_and_slope)

    @property
    def _loss_and_slope(self) -> Loss:
        return loss_named(self.params.loss, self.sizes.get("output"))

    def check_stored(self, classifier: DFTClassifier) -> None:
        classifier.check_order()

    def structure(self, classifier: DFTClassifier) -> Alternating:
        return Alternating(classifier.degree, self.params.slack, classifier.place_of_label.cpu().numpy())

    def rounding(self, classifier: Any) -> float | None:
        """Bound the error of the fast transform, slack columns and bias; a row of W has the length 1 or more."""
        layer: DFTClassifier = classifier.trained if self.added else classifier
        if layer.grid is None or self.device.type != "cpu":
            return None
        # 1 %: the rounding of an error, and of the rows' length
        bound = 1.01 * dft_error(layer.grid) + float32_error(self.params.slack + 4)
        return max(bound, float32_error(layer.width + 2)) if self.added else bound  # added labels are a product

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        sizes = self.sizes
        position = self._trained_order
        arcs = cyclic_arcs(truth[:, : len(position)], position)
        degree, most = sizes["degree"], int(arcs.max(initial=0))
        sets = f"set of {sizes['output']} labels" if self.ranking else "label set"
        reach = f"every {sets} with at most {degree} arcs of active labels in the label order can be output"
        return {
            **super().facts(truth),
            "guarantee": "lost: see above" if self._lost_guarantee() else reach,
            "fixed columns": 2 * degree + 1,
            "slack columns": self.params.slack,
            "label order": str(self.params.order_file or self.params.order),
            "runs of active labels in a training or validation row, at most": sizes["most_runs"],
            "training and validation rows beyond the guarantee": sizes["beyond"],
            "runs of active labels in a test row, at most": most,
            "test rows beyond the guarantee": int(np.count_nonzero(arcs > degree)),
            "sign rank of the training and validation labels, at most": 2 * sizes["most_runs"] + 1,
            "sign rank of the test labels, at most": 2 * most + 1,
        }

    def warnings(self) -> list[str]:
        return [*super().warnings(), *self._lost_guarantee(), *self._uncovered_rows()]

    @property
    def _trained_order(self) -> np.ndarray:
        """Return the position of each trained label on the circle."""
        classifier = self.network.classifier
        position: torch.Tensor = (classifier.trained if self.added else classifier).place_of_label
        return position.cpu().numpy()

    def _lost_guarantee(self) -> list[str]:
        """Return a warning with the reason if the guarantee is lost."""
        if self.added:
            return [
                f"{self.added} labels were added outside the DFT layer, so its guarantee is lost; train with them to "
                "restore it"
            ]
        encoder, inputs, width = self.network.encoder, self.sizes["inputs"], self.sizes["width"]
        if self.network.narrow:
            wider = "width and head.encoder.hidden" if "hidden" in self.params.encoder.options else "width"
            return [
                f"the encoder is {encoder.width} wide, narrower than the layer's {width} columns, so the DFT layer's "
                f"guarantee is lost; set head.encoder.{wider} to {width} or more to restore it"
            ]
        if inputs < width:
            return [
                f"rows have {inputs} features, fewer than the layer's {width} columns, so they cannot reach every "
                "output of the layer, and the DFT layer's guarantee is lost; a smaller head.slack needs fewer features"
            ]
        return []

    def _uncovered_rows(self) -> list[str]:
        """Return a warning if training or validation rows have more arcs than the guarantee covers."""
        sizes = self.sizes
        if not sizes["beyond"]:
            return []
        advice = f"head.active = {sizes['most_runs']} would include them"
        if sizes["most_runs"] > _largest_degree(sizes["labels"]):
            advice = f"{sizes['labels']} labels are too few to include them"
        return [
            f"{sizes['beyond']} rows seen in training have more than {sizes['degree']} arcs of active labels, which "
            f"the guarantee does not cover; {advice}"
        ]


def _largest_degree(labels: int) -> int:
    return (labels - 1) // 2
