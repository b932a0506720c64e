"""The DFT layer of Grivas, Vergari and Lopez (2024), "Taming the Sigmoid Bottleneck", over a label order of our own.

Labels stand at increasing angles t on a circle. A label's row of W is (1, cos t, sin t, …, cos kt, sin kt), fixed, and
`slack` learned columns S: z = DFT(x[: 2k+1]) + S·x[2k+1 :] + b. A trigonometric polynomial of degree k has at most 2k
zeros on the circle, and can have them anywhere: so every set of labels that forms at most k runs around the circle is
sign(W·x) for some x, whatever S and b are. The paper counts active labels, which bounds the runs; an order in which
labels that occur together are neighbours makes far fewer runs of the same labels, and a smaller k serves.

The guarantee is about x. An encoder narrower than 2k+1+slack cannot make every x, nor can fewer features than that, and
then it is lost.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy.sparse import csr_matrix

from xmckit import Alternating, Context, DataError, DataPath, Params, Split, UsageError
from xmckit.nn import Chosen, Network, RankingParams, Targets, Threads, ThresholdParams, TorchHead, rows_of
from xmckit_heads.dft.fourier import Grid, dft_logits, learned_rows, matrix, matrix_on
from xmckit_heads.dft.ordering import checked_position, cyclic_runs, label_order, read_order
from xmckit_heads.losses import LossName, chunked_loss, linear_loss_named, loss_named


class DFTParams(ThresholdParams, RankingParams):
    """`k` goes with a ranking loss, `threshold` with the loss "bce"."""

    active: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description='Runs of active labels that are guaranteed; "auto": the most of any row seen in training.'
    )
    slack: int = Field(64, ge=0, le=65536, description="Learned columns beside the 2·active + 1 fixed ones.")
    order: Literal["cooccurrence", "given"] = Field(
        "cooccurrence", description='How labels stand around the circle; "given": by label id, as in the paper.'
    )
    order_file: DataPath | None = Field(None, description="One label id a line, in cyclic order, in place of `order`.")
    angles: Literal["fixed", "learned"] = Field("fixed", description="Equally spaced, or learned and kept increasing.")
    bias: bool = Field(True, description="One learned number per label; without, as in the paper, labels start alike.")
    loss: LossName = Field("bce", description="What training minimises; all but bce make it output its `k` best.")

    @model_validator(mode="after")
    def _fits_the_loss(self) -> DFTParams:
        idle = "k" if self.loss == "bce" else "threshold"
        if idle in self.model_fields_set and getattr(self, idle) != type(self).model_fields[idle].default:
            raise ValueError(f"{idle} has no meaning with the loss {self.loss!r}")
        return self


class DFTClassifier(torch.nn.Module):
    """Labels are kept in the order of the grid's memory slots; only what leaves the layer is in label-id order."""

    slot_of_label: torch.Tensor
    place_of_label: torch.Tensor

    def __init__(self, labels: int, degree: int, slack: int, *, learned: bool, bias: bool):
        super().__init__()
        self.degree, self.waves = degree, 2 * degree + 1
        # up to two labels need no waves: the constant column is the whole transform
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
        """The entries of the first column."""
        return self.waves**-0.5

    def place(self, position: np.ndarray) -> None:
        """Put each label at its cyclic place."""
        self.place_of_label.copy_(torch.from_numpy(position))
        self.slot_of_label.copy_(self._slots_of(position))

    def check_places(self) -> None:
        """DataError unless places and slots, as they were loaded, are those of one label order."""
        position = checked_position(self.place_of_label.cpu().numpy(), len(self.place_of_label))
        if not torch.equal(self.slot_of_label.cpu(), self._slots_of(position)):
            raise DataError("the label order that is stored twice is not the same")

    def _slots_of(self, position: np.ndarray) -> torch.Tensor:
        slot_of_place = np.arange(len(position)) if self.grid is None else np.argsort(self.grid.cyclic_position())
        return torch.from_numpy(slot_of_place[position])

    def start(self, train: Split, generator: torch.Generator) -> None:
        """Small random slack columns; biases, where they are learned, at the log odds of each label's frequency."""
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        odds = torch.from_numpy(np.log((counts + 0.5) / (train.rows - counts + 0.5))).float()
        with torch.no_grad():
            self.S.normal_(0.0, self.width**-0.5, generator=generator)
            if self.b.requires_grad:
                self.b[self.slot_of_label] = odds

    def slot_logits(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """Rows × slots."""
        if self.grid is None:
            logits = x[:, : self.waves] @ self.fixed_rows().T
        else:
            logits = dft_logits(x[:, : self.waves].contiguous(), self.grid, threads)
        # in place: each further matrix of rows × labels costs as much as the transform
        return logits.addmm_(x[:, self.waves :], self.S.T).add_(self.b)

    def forward(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        return self.slot_logits(x, threads).index_select(1, self.slot_of_label)

    def fixed_rows(self) -> torch.Tensor:
        """Slots × (2k + 1): what multiplies the first entries of x."""
        if self.gaps is not None:
            return learned_rows(self.gaps, self.degree, self.constant)
        if self.grid is None:
            return self.S.new_full((len(self.S), 1), self.constant)
        return matrix(self.grid, self.S.dtype).to(self.S.device)

    def rows(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of `matrix()`, with sparse gradients of what is learned."""
        if self.gaps is not None:
            raise UsageError('learned angles move all labels at once: with an index, say angles = "fixed"')
        slots = self.slot_of_label[labels]
        if self.grid is None:
            fixed = self.S.new_full((len(slots), 1), self.constant)
        else:
            fixed = matrix_on(self.grid, self.S.dtype, self.S.device)[slots]
        return torch.cat([fixed, rows_of(self.S, slots)], dim=1), rows_of(self.b, slots)

    def matrix(self) -> tuple[torch.Tensor, torch.Tensor]:
        W = torch.cat([self.fixed_rows(), self.S], dim=1)
        return W[self.slot_of_label], self.b[self.slot_of_label]


class DFTHead(TorchHead):
    """Every label set with at most `degree` runs around the circle of labels is within reach by construction."""

    Params: ClassVar[type[Params]] = DFTParams

    @property
    def ranking(self) -> bool:
        return bool(self.params.loss != "bce")

    def plan(self, train: Split, context: Context) -> dict[str, int]:
        position = self._order(train, context)
        # rows that the order was not made for have more runs than those it was made for, as later rows will
        held_out = train.Y[:0] if context.validation is None else context.validation.Y
        runs = np.concatenate([cyclic_runs(labels, position) for labels in (train.Y, held_out)])
        most = int(runs.max(initial=0))
        degree = self._degree(most, train.labels)
        self._position = position
        return {
            **super().plan(train, context),
            "degree": degree,
            "width": 2 * degree + 1 + self.params.slack,
            "most_runs": most,
            "beyond": int(np.count_nonzero(runs > degree)),
        }

    def size_names(self) -> set[str]:
        return super().size_names() | {"degree", "most_runs", "beyond"}

    def _order(self, train: Split, context: Context) -> np.ndarray:
        if self.params.order_file is not None:
            return read_order(self.params.order_file, train.labels)
        with context.progress("ordering labels"):
            return label_order(train.Y, self.params.order)

    def _degree(self, most_runs: int, labels: int) -> int:
        largest = _largest_degree(labels)
        if self.params.active == "auto":
            return min(max(1, most_runs), largest)
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
        """Enough for the guarantee."""
        return max(super().encoder_width(sizes), sizes["width"])

    def start(self, network: Network, train: Split, generator: torch.Generator) -> None:
        network.classifier.place(self._position)
        super().start(network, train, generator)
        if not self.params.bias:
            # the paper's start: through the constant column, every label at probability k/n
            share = max(1, self.sizes["degree"]) / (train.labels + (self.sizes["degree"] == 0))
            with torch.no_grad():
                network.projection.bias[0] = math.log(share / (1 - share)) / network.classifier.constant

    def loss(self, classifier: DFTClassifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """The chosen loss of FFT(x[: 2k+1]) + S·x[2k+1 :] + b."""
        in_slots = Targets(targets.rows, classifier.slot_of_label[targets.labels], targets.weights, targets.shape)
        loss = loss_named(self.params.loss, self.sizes.get("output"))
        return chunked_loss(classifier.slot_logits, list(classifier.parameters()), x, in_slots, loss, threads)

    def shortlist_loss(self, chosen: Chosen, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        return linear_loss_named(self.params.loss, self.sizes.get("output"), chosen, x, targets, threads)

    def check_stored(self, classifier: DFTClassifier) -> None:
        classifier.check_places()

    def structure(self, classifier: DFTClassifier) -> Alternating:
        return Alternating(classifier.degree, self.params.slack, classifier.place_of_label.cpu().numpy())

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        sizes = self.sizes
        runs = cyclic_runs(truth[:, : len(self._places)], self._places)
        degree, most = sizes["degree"], int(runs.max(initial=0))
        sets = f"set of {sizes['output']} labels" if self.ranking else "label set"
        reach = f"every {sets} with at most {degree} runs of active labels in the label order can be output"
        return {
            **super().facts(truth),
            "guarantee": "lost: see above" if self._why_lost() else reach,
            "fixed columns": 2 * degree + 1,
            "slack columns": self.params.slack,
            "label order": str(self.params.order_file or self.params.order),
            "runs of active labels in a training or validation row, at most": sizes["most_runs"],
            "training and validation rows beyond the guarantee": sizes["beyond"],
            "runs of active labels in a test row, at most": most,
            "test rows beyond the guarantee": int(np.count_nonzero(runs > degree)),
            "sign rank of the training and validation labels, at most": 2 * sizes["most_runs"] + 1,
            "sign rank of the test labels, at most": 2 * most + 1,
        }

    def warnings(self) -> list[str]:
        return [*super().warnings(), *self._why_lost(), *self._who_is_beyond()]

    @property
    def _places(self) -> np.ndarray:
        """Where each label that was trained stands on the circle."""
        classifier = self._fitted().classifier
        places: torch.Tensor = (classifier.trained if self.added else classifier).place_of_label
        return places.cpu().numpy()

    def _why_lost(self) -> list[str]:
        """Why not every x can be reached, if that is so."""
        if self.added:
            return [
                f"{self.added} labels were added, whose rows are not those of the DFT layer, so its guarantee is lost; "
                "training with them gives it back"
            ]
        encoder, inputs, width = self._fitted().encoder, self.sizes["inputs"], self.sizes["width"]
        if self._fitted().narrow:
            wider = "width and head.encoder.hidden" if "hidden" in self.params.encoder.options else "width"
            return [
                f"the encoder is {encoder.width} wide, narrower than the layer's {width} columns, so the DFT layer's "
                f"guarantee is lost; set head.encoder.{wider} to {width} or more to have it"
            ]
        if inputs < width:
            return [
                f"rows have {inputs} features, fewer than the layer's {width} columns, so they cannot reach all that "
                "the layer can output, and the DFT layer's guarantee is lost; a smaller head.slack needs fewer"
            ]
        return []

    def _who_is_beyond(self) -> list[str]:
        sizes = self.sizes
        if not sizes["beyond"]:
            return []
        advice = f"head.active = {sizes['most_runs']} would include them"
        if sizes["most_runs"] > _largest_degree(sizes["labels"]):
            advice = f"{sizes['labels']} labels are too few to include them"
        return [
            f"{sizes['beyond']} rows seen in training have more than {sizes['degree']} runs of active labels, which "
            f"the guarantee does not cover; {advice}"
        ]


def _largest_degree(labels: int) -> int:
    return (labels - 1) // 2
