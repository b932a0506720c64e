"""TorchHead: encoder → affine projection (P, b) → classifier, with training, prediction and storage.

A subclass overrides some of `plan`, `make_classifier`, `start`, `loss`, `logits`, `structure` and `facts`, and sets by
`ranking` how it outputs label sets, so that the mathematics of an output layer fits in one small file. A head that does
not learn from single rows also overrides `examples`, `batch_loss` and `validation_scores`. With an index, any head with
a linear classifier learns from shortlists and outputs labels from them (see `shortlist`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Groups, Matrix, Split, as_csr
from xmckit.errors import DataError, UsageError
from xmckit.nn import outputs
from xmckit.nn.batches import Targets, as_inputs
from xmckit.nn.encoders import WIDTH, initialised_linear
from xmckit.nn.head_params import LinearParams, LinearThresholdParams, RankingParams
from xmckit.nn.head_storage import load_indexes, load_network, read_state, save_head
from xmckit.nn.network import Classifier, Network, SupportsRows, choose_device, drop_out, with_new_labels
from xmckit.nn.new_labels import new_label_rows
from xmckit.nn.prediction import Predictor
from xmckit.nn.shortlist import Chosen, Indexes, Shortlisted, ShortlistedRows
from xmckit.nn.threads import Threads, use_threads
from xmckit.nn.training import Epoch, Examples, best_epoch, train, training_rows, without_stored_zeros
from xmckit.nn.validation import Validation
from xmckit.params import Configured, Params, Spec
from xmckit.protocols import LabelIndex, NamedIndex, SupportsFacts, offers
from xmckit.records import Alternating, LinearDecision, TopK

LISTED_AT_ONCE = 1 << 26  # candidates of validation rows that are kept for all epochs


class _RefitPlan(NamedTuple):
    """What `refit` takes over from `fit`, because it trains without validation rows."""

    epochs: int
    threshold: float
    history: tuple[Epoch, ...]


class TorchHead(Configured, ABC):
    """A head over all labels, trained with mini-batches. The module's text says what to override."""

    Params: ClassVar[type[Params]] = LinearThresholdParams
    needs: ClassVar[frozenset[str]] = frozenset({"shortlist"})
    index_optional: ClassVar[bool] = True

    def __init__(self, **params: Any):
        super().__init__(**params)
        self.sizes: dict[str, int] = {}
        self.threshold = 0.0
        self.history: tuple[Epoch, ...] = ()
        self._refit_plan: _RefitPlan | None = None
        self._network: Network | None = None
        self._indexes: Indexes | None = None
        self.workers = 1
        self.device = torch.device("cpu")

    # What a subclass may override

    @property
    def ranking(self) -> bool:
        """Whether a row's output is its best `sizes["output"]` labels, and not the labels above the threshold."""
        return isinstance(self.params, RankingParams)

    @property
    def probabilistic(self) -> bool:
        """Whether training makes σ(z) the probability of a label; losses that rank only compare the labels of a row."""
        return not self.ranking

    def plan(self, train: Split, context: Context) -> dict[str, int]:
        """Return the sizes that `make_classifier` needs; they are stored, so that `load` needs no training rows."""
        sizes = {"inputs": int(train.matrix.shape[1]), "labels": train.labels}
        if isinstance(self.params, LinearParams):
            sizes["width"] = self.params.dim
        if self.ranking:
            sizes["output"] = _output_size(self.params.k, train)
        return sizes

    def size_names(self) -> set[str]:
        """Return the names of the sizes that `plan` returns; a stored head must have all of them."""
        return {"inputs", "labels", "width"} | ({"output"} if self.ranking else set())

    def encoder_width(self, sizes: dict[str, int]) -> int:
        """Return the width of an encoder with `width = "auto"`."""
        return WIDTH

    def make_classifier(self, sizes: dict[str, int]) -> Any:
        """Return a module like `Classifier`: `width`, `start`, `forward(x, threads)` and, if it is linear, `matrix()`.

        See `SupportsMatrix`. Training with an index also needs `rows(labels)`: see `SupportsRows`.
        """
        return Classifier(sizes["labels"], sizes["width"])

    def logits(self, classifier: Any, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """Return rows × labels of z for vectors x of the classifier's width."""
        result: torch.Tensor = classifier(x, threads)
        return result

    def start(self, network: Network, train: Split, generator: torch.Generator) -> None:
        """Set the classifier's first weights; those of encoder and projection are already set."""
        network.classifier.start(train, generator)

    @abstractmethod
    def loss(self, classifier: Any, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return the loss of one batch of vectors x."""

    def shortlist_loss(self, chosen: Chosen, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return the loss over the labels of a shortlist; targets number the labels as the rows of `chosen`."""
        return self.loss(chosen, x, targets, threads)

    def examples(self, train: Split) -> Examples[Any]:
        """Return what training draws batches from."""
        return training_rows(train)

    def batch_loss(
        self,
        network: Network,
        batch: Any,
        targets: Targets,
        drop: Callable[[torch.Tensor], torch.Tensor],
        threads: Threads,
    ) -> torch.Tensor:
        """Return the loss of one batch of `examples`; `drop` is the dropout of the encoder's outputs."""
        if isinstance(batch, Shortlisted):
            W, b = network.classifier.rows(batch.labels)
            x = network.projection(drop(network.encoder(batch.rows)))
            return self.shortlist_loss(Chosen(W, b + batch.shift), x, targets, threads)
        return self.loss(network.classifier, network.projection(drop(network.encoder(batch))), targets, threads)

    def validation_scores(self, validation: Split, threads: Threads) -> Iterator[tuple[np.ndarray, csr_matrix]]:
        """Yield blocks of logits and true labels; early stopping and the choice of the threshold use them."""
        for rows, scores in self._predictor.all_logits(self.check_inputs(validation.matrix), threads):
            yield scores, validation.Y[rows]

    def structure(self, classifier: Any) -> Alternating | None:
        """Return the structure of W for `decision`; it holds only if nothing is folded into W."""
        return None

    def rounding(self, classifier: Any) -> float | None:
        """Return c if logits are within c·(‖w‖·‖x‖ + |b|) of W·x + b; None if they are a float32 product of W and x.

        See `xmckit.decisions`.
        """
        return None

    def check_stored(self, classifier: Any) -> None:
        """Raise DataError if loaded weights, finite and in the right shapes, do not fit this head."""

    # For subclasses, besides `sizes`, `threshold`, `history`, `workers` (threads of prediction) and `device`

    @property
    def network(self) -> Network:
        """The network; UsageError before `fit` or `load`."""
        if self._network is None:
            raise UsageError(f"this {type(self).__name__} has not been fitted: call fit or load first")
        return self._network

    def check_inputs(self, X: Matrix) -> Matrix:
        """Return rows in the form of `as_inputs`; DataError unless they have the features that `fit` saw."""
        _ = self.network  # raises an error before `fit`
        X = as_inputs(X)
        if X.shape[1] != self.sizes["inputs"]:
            raise DataError(f"the rows have {X.shape[1]} features, this head was fitted on {self.sizes['inputs']}")
        return X

    # The contract of a head

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        store.check_matrix(train.Y, "the label matrix")
        train = without_stored_zeros(train)
        examples = self.examples(train)
        self._indexes = Indexes(indexes, train.labels) if indexes else None
        self.device, self.workers = choose_device(self.params.device), context.workers
        generator = torch.Generator().manual_seed(context.seed_for("weights"))
        self.sizes = self.plan(train, context)
        try:
            network = self._new_network(generator, context)
        except ValidationError as error:
            raise UsageError(
                f"the encoder {self.params.encoder.use!r} cannot serve this head, which asks for a width of "
                f"{self.encoder_width(self.sizes)}: {store.reasons(error)}"
            ) from None
        self.start(network, train, generator)
        network.to(self.device)
        self._network, self.threshold = network, 0.0
        try:
            with use_threads(context.workers) as pool:
                if self._indexes is not None:
                    examples = self._shortlist_examples(examples, context)
                validation = self._validation(context, pool)
                self._train(network, examples, validation, context, pool)
                network.fold()
                if self._indexes is not None:
                    self._indexes.rebuild(self._predictor.label_vectors)
                self.threshold = 0.0 if self.ranking else self._choose_threshold(validation, context)
        except BaseException:
            self._network = None
            raise

    def refit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        """Call `fit` with the best number of epochs and the best threshold; `history` stays that of the first fit."""
        self._refit_plan = _RefitPlan(best_epoch(self.history), self.threshold, self.history)
        self._network = self._indexes = None  # memory need not hold two networks
        try:
            self.fit(train, indexes=indexes, context=context)
        finally:
            self._refit_plan = None

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        return outputs.join(self._map_logits(X, lambda scores: outputs.best(scores, k)), k)

    def labels(self, X: Matrix) -> csr_matrix:
        return outputs.stack_rows(self._map_logits(X, self._label_sets), self.sizes["labels"])

    def rank_and_label(self, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
        """Return `predict(X, k)` and `labels(X)` from the same logits."""
        own = type(self)
        if own.predict is not TorchHead.predict or own.labels is not TorchHead.labels:
            return self.predict(X, k), self.labels(X)
        if k < 1:
            raise UsageError(f"rank_and_label needs k of at least 1, not {k}")
        pairs = self._map_logits(X, lambda scores: (outputs.best(scores, k), self._label_sets(scores)))
        ranking = outputs.join([best for best, _ in pairs], k)
        return ranking, outputs.stack_rows([sets for _, sets in pairs], self.sizes["labels"])

    def candidates(self, X: Matrix) -> csr_matrix | None:
        """Return rows × labels with a 1 for each label that the indexes list for a row; None without an index."""
        if self._indexes is None:
            return None
        with use_threads(self.workers):
            return self._predictor.list_candidates(self.check_inputs(X), self.params.candidates)

    def features(self, X: Matrix) -> np.ndarray | None:
        if not self.network.linear:
            return None
        with use_threads(self.workers):
            return self._predictor.vectors(self.check_inputs(X))

    def decision(self) -> LinearDecision | None:
        network = self.network
        if not network.linear:
            return None
        W, b = self._predictor.layer()
        W.flags.writeable = False  # it is the memory that prediction uses
        structure = None if network.folded or self.added else self.structure(network.classifier)
        rule: Literal["sign", "topk"] = "topk" if self.ranking else "sign"
        threshold = float(np.float32(self.threshold))  # as `outputs.above` compares with it
        shifted = b.astype(np.float64) - threshold  # float32 would round the difference, and with it the decision
        as_product = network.folded or self._indexes is not None
        rounding = None if as_product else self.rounding(network.classifier)
        inputs = self.sizes["inputs"]
        return LinearDecision(W, shifted, rule, structure, self._replay, inputs, threshold, rounding)

    @property
    def added(self) -> int:
        """The number of labels that `add_labels` appended to those of training."""
        return self.sizes.get("added", 0)

    def add_labels(
        self, X: Matrix, Y: csr_matrix, train: Split, *, listed_by: Callable[[], LabelIndex] | None = None
    ) -> None:
        """Add labels from the rows `X` that have them (`Y`: rows × new labels); `train` gives some training rows.

        The trained weights do not change. Indexes that can take new labels list them too; if none can, `listed_by`
        builds one more index of all labels. Raise UsageError if the classifier is not linear.
        """
        network, indexes = self.network, self._indexes
        if not network.linear:
            raise UsageError(
                f"a {type(self).__name__} has no weights of single labels to which a label could be added: "
                "train it again"
            )
        if indexes is not None and not indexes.can_add and listed_by is None:
            raise UsageError(
                f"this {type(self).__name__} outputs only labels that its index lists, and the index was built without "
                "the new ones: train it again"
            )
        W, b = (part.detach().cpu().numpy() for part in network.classifier.matrix())
        with use_threads(self.workers):
            rows, examples = (
                self._predictor.vectors(self.check_inputs(matrix), projected=True) for matrix in (train.matrix, X)
            )
        more = [torch.from_numpy(part).to(self.device) for part in new_label_rows(W, b, rows, train.Y, examples, Y)]
        if indexes is not None:
            can_add, indexes = indexes.can_add, indexes.with_labels(X, Y)
            if not can_add and listed_by is not None:
                indexes = indexes.beside(listed_by())
        network.classifier = with_new_labels(network.classifier, self.sizes["labels"], *more)
        count = int(Y.shape[1])
        self.sizes = {**self.sizes, "labels": self.sizes["labels"] + count, "added": self.added + count}
        network.fold()
        self._indexes = indexes
        if indexes is not None:
            indexes.rebuild(self._predictor.label_vectors)

    def index_labels(self) -> list[tuple[str, int]]:
        """Return the name of each index and the number of labels that it knows; it may not know added labels."""
        if self._indexes is None:
            return []
        names = [
            index.indexer if offers(index, NamedIndex) else str(number)
            for number, index in enumerate(self._indexes.all)
        ]
        return list(zip(names, self._indexes.known, strict=True))

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        """Return what the report says about this head; `truth` holds the label sets of the test rows.

        Texts under "warnings" are also shown when a run ends.
        """
        network = self.network
        return {
            "trainable parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "of these in the output layer": sum(p.numel() for p in network.classifier.parameters() if p.requires_grad),
            "epochs": len(self.history),
            "seconds of training": self.history[-1].seconds,
            **self._index_facts(),
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """Return the facts that a user must not overlook."""
        if any(epoch.loss for epoch in self.history):
            return []
        reason = "the loss was 0 from the first epoch on"
        if self.sizes.get("output") == self.sizes["labels"]:
            reason = f"if all {self.sizes['labels']} labels are output (head.k), all weights are equally good"
        return [f"nothing was learned: {reason}"]

    def save(self, folder: Path) -> None:
        network = self.network
        super().save(folder)
        save_head(folder, network, self._indexes, self.sizes, self.threshold, self.history)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> TorchHead:
        head = super().load(folder, context=context)
        head.workers = context.workers
        head.device = choose_device(head.params.device)
        state = read_state(folder, head.size_names())
        head.sizes, head.threshold, head.history = state.sizes, state.threshold, state.history

        def new_network() -> Network:
            return head._new_network(torch.Generator().manual_seed(0), context)

        head._network = load_network(folder, new_network, state.sizes, head.check_stored).to(head.device)
        head._indexes = load_indexes(state, folder, context)
        return head

    # Training

    def _train(
        self, network: Network, examples: Examples[Any], validation: Validation | None, context: Context, pool: Threads
    ) -> None:
        noise = torch.Generator(self.device).manual_seed(context.seed_for("dropout"))
        drop = partial(drop_out, share=self.params.dropout, noise=noise)
        plan = self._refit_plan
        history = train(
            network,
            examples,
            lambda batch, targets: self.batch_loss(network, batch, targets, drop, pool),
            params=self.params.model_copy(update={"epochs": plan.epochs}) if plan else self.params,
            slower=list(network.projection.parameters()),
            validate=None if validation is None else validation.ndcg,
            context=context,
            threads=pool,
            device=self.device,
        )
        self.history = plan.history if plan else history
        best = history[best_epoch(history) - 1]
        score = "" if best.score is None else f", best nDCG@5 {best.score:.4f} in epoch {best.number}"
        context.log(f"trained for {len(history)} epochs{score}")

    def _shortlist_examples(self, rows: Any, context: Context) -> ShortlistedRows:
        """Return training rows that come in batches with candidates."""
        network, indexes = self.network, self._indexes
        assert indexes is not None
        if not offers(network.classifier, SupportsRows):
            raise UsageError(f"{type(self).__name__} learns from all labels: write index = [] in its section")

        def find_hard_labels() -> csr_matrix:
            with context.progress("looking for hard labels"):
                indexes.rebuild(self._predictor.label_vectors)
                return self._predictor.list_candidates(rows.X, self.params.hard)

        refresh = self.params.refresh if indexes.in_head_space else None
        return ShortlistedRows(rows, find_hard_labels, self.params.uniform, refresh, context.rng("shortlists"))

    def _validation(self, context: Context, pool: Threads) -> Validation | None:
        """Return what measures this head on the validation rows; None if no row has a label."""
        rows = context.validation
        if rows is None or not (Y := as_csr(rows.Y)).nnz:
            return None
        rows = replace(rows, Y=Y, weights=None)
        known = self._lasting_candidates(rows)

        def candidate_blocks() -> Iterator[tuple[csr_matrix, csr_matrix]]:
            for part, logits in self._predictor.candidate_logits(self.check_inputs(rows.matrix), pool, known):
                yield logits, rows.Y[part]

        blocks = (lambda: self.validation_scores(rows, pool)) if self._indexes is None else candidate_blocks
        return Validation(blocks, self.sizes["labels"])

    def _lasting_candidates(self, rows: Split) -> csr_matrix | None:
        """Return the rows' candidates if training does not change them and memory can hold them."""
        if self._indexes is None or self._indexes.in_head_space:
            return None
        if rows.rows * self.params.candidates * len(self._indexes.all) > LISTED_AT_ONCE:
            return None
        return self._predictor.list_candidates(self.check_inputs(rows.matrix), self.params.candidates)

    def _choose_threshold(self, validation: Validation | None, context: Context) -> float:
        if self._refit_plan is not None:
            return self._refit_plan.threshold
        if self.params.threshold != "validation":
            return float(np.float32(self.params.threshold))
        if validation is None:
            context.log("no validation row has a label: a label is output when its logit is above 0")
            return 0.0
        threshold, f1 = validation.best_threshold()
        context.log(f"a label is output when its logit is above {threshold:g} (validation micro-F1 {f1:.4f})")
        return threshold

    # Prediction

    @property
    def _predictor(self) -> Predictor:
        network, labels, candidates = self.network, self.sizes["labels"], self.params.candidates
        return Predictor(network, self._indexes, labels, candidates, self.device, self.logits)

    def _map_logits(self, X: Matrix, function: Callable[[Any], Any]) -> list[Any]:
        """Call `function` on the logits of each block of rows, and return its results."""
        X = self.check_inputs(X)
        with use_threads(self.workers) as pool:
            return [function(scores) for _, scores in self._predictor.logits(X, pool)]

    def _label_sets(self, scores: Any, counts: np.ndarray | None = None) -> csr_matrix:
        """Apply the decision rule to logits; `counts` sets how many labels a ranking head outputs for each row."""
        if not self.ranking:
            return outputs.above(scores, self.threshold)
        if counts is None:
            counts = np.full(scores.shape[0], self.sizes["output"])
        return outputs.first(outputs.best(scores, max(1, int(counts.max(initial=1)))), counts, scores.shape[1])

    def _replay(self, vectors: np.ndarray, counts: np.ndarray | None = None) -> csr_matrix:
        """Return the label sets of vectors of the decision's space, from the scorer that `labels` uses."""
        predictor = self._predictor
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != predictor.width:
            raise DataError(f"expected rows of {predictor.width} numbers, found an array of {vectors.shape}")
        with use_threads(self.workers) as pool:
            sets = [
                self._label_sets(scores, None if counts is None else np.asarray(counts)[rows])
                for rows, scores in predictor.replay_logits(vectors, pool)
            ]
        return outputs.stack_rows(sets, self.sizes["labels"])

    def _index_facts(self) -> dict[str, Any]:
        if self._indexes is None:
            return {}
        most = min(self.params.candidates * len(self._indexes.all), self.sizes["labels"])
        facts: dict[str, Any] = {"labels that a row can choose from, at most": most}
        if self.added:
            facts["labels that an index knows"] = ", ".join(f"{name} {known:,}" for name, known in self.index_labels())
        for (name, _), index in zip(self.index_labels(), self._indexes.all, strict=True):
            if offers(index, SupportsFacts):
                facts[f"index {name}"] = index.facts()
        return facts

    # The network

    def _new_network(self, generator: torch.Generator, context: Context) -> Network:
        encoder = self._new_encoder(context)
        encoder.prepare(self.sizes["inputs"], generator)
        trained = self.sizes["labels"] - self.added
        classifier = self.make_classifier({**self.sizes, "labels": trained})
        if self.added:
            rows = torch.zeros(self.added, classifier.width), torch.zeros(self.added)
            classifier = with_new_labels(classifier, trained, *rows)
        return Network(encoder, initialised_linear(encoder.width, classifier.width, generator), classifier)

    def _new_encoder(self, context: Context) -> Any:
        spec = self.params.encoder
        fields = context.resolve("encoder", spec.use).Params.model_fields
        if "width" in fields and spec.options.get("width", fields["width"].default) == "auto":
            spec = Spec(**{"use": spec.use, **spec.options, "width": self.encoder_width(self.sizes)})
        return context.build("encoder", spec)


def _output_size(k: int | str, train: Split) -> int:
    """Return how many labels a ranking head outputs for a row."""
    if k == "auto":
        labelled = int(np.count_nonzero(np.diff(train.Y.indptr)))
        return min(train.labels, -(-train.Y.nnz // labelled))
    if int(k) > train.labels:
        raise UsageError(f"k is {k}, but there are only {train.labels} labels to output")
    return int(k)
