"""TorchHead: encoder → affine projection (P, b) → classifier, with training, prediction and storage.

A head of its own overrides some of `plan`, `make_classifier`, `start`, `loss`, `logits`, `structure` and `facts`, and
says by `ranking` how it outputs label sets; the mathematics of an output layer then fits in one small file. A head that
does not learn from single rows also overrides `examples`, `batch_loss` and `validation_scores`. With an index, any head
whose classifier is linear learns from and outputs shortlists (see `shortlist`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit import store
from xmckit.components.indexes import named_index
from xmckit.components.metrics import rank_metrics
from xmckit.context import Context
from xmckit.data.model import Groups, Matrix, Split, as_csr
from xmckit.errors import DataError, UsageError
from xmckit.nn import outputs
from xmckit.nn.batches import Targets, as_batch, as_inputs
from xmckit.nn.encoders import WIDTH, initialised_linear
from xmckit.nn.head_params import LinearParams, LinearThresholdParams, RankingParams
from xmckit.nn.head_state import read_state
from xmckit.nn.losses import linear
from xmckit.nn.network import Classifier, Network, Widened, with_more
from xmckit.nn.new_labels import new_rows
from xmckit.nn.shortlist import (
    ROWS_AT_ONCE,
    Chosen,
    Indexes,
    Shortlisted,
    ShortlistedRows,
    all_labels,
    pair_logits,
)
from xmckit.nn.threads import Threads, threads
from xmckit.nn.thresholds import Histogram
from xmckit.nn.training import Epoch, Examples, Schedule, best_epoch, train, training_rows, without_stored_zeros
from xmckit.params import PARAMS, Configured, Params, Spec, reasons
from xmckit.protocols import LabelIndex
from xmckit.records import Alternating, LinearDecision, TopK
from xmckit.sparse.topk import csr_pattern

LOGITS_AT_ONCE = 1 << 24
LISTED_AT_ONCE = 1 << 26  # candidates of validation rows that are kept for all epochs
# Adam moves every entry of a matrix by about the learning rate, so a matrix whose entries act together on all rows, as
# the projection's do, moves its output far more per step than the table of features or one label's row.
PROJECTION_RATE = 0.03
WEIGHTS, STATE = "weights.safetensors", "state.json"


@dataclass(frozen=True)
class _HeldOut:
    """Validation rows with labels and, where they stay the same, the rows' candidates."""

    rows: Split
    lists: csr_matrix | None


class _Decided(NamedTuple):
    """What validation rows decided, while training goes on without them."""

    epochs: int
    threshold: float
    history: tuple[Epoch, ...]


class TorchHead(Configured, ABC):
    """A head over all labels, trained with mini-batches. See the module's text for what to override."""

    Params: ClassVar[type[Params]] = LinearThresholdParams
    needs: ClassVar[frozenset[str]] = frozenset({"shortlist"})
    index_optional: ClassVar[bool] = True

    def __init__(self, **params: Any):
        super().__init__(**params)
        self.sizes: dict[str, int] = {}
        self.threshold = 0.0
        self.history: tuple[Epoch, ...] = ()
        self._decided: _Decided | None = None
        self._network: Network | None = None
        self._indexes: Indexes | None = None
        self._workers = 1
        self._device = torch.device("cpu")

    # What a head of its own overrides

    @property
    def ranking(self) -> bool:
        """Whether a row's output is its best `sizes["output"]` labels, and not the labels above the threshold."""
        return isinstance(self.params, RankingParams)

    @property
    def probabilistic(self) -> bool:
        """Whether training makes σ(z) the probability of a label; losses that rank only compare the labels of a row."""
        return not self.ranking

    def plan(self, train: Split, context: Context) -> dict[str, int]:
        """The sizes that `make_classifier` needs; they are stored, so that `load` needs no training rows."""
        sizes = {"inputs": int(train.matrix.shape[1]), "labels": train.labels}
        if isinstance(self.params, LinearParams):
            sizes["width"] = self.params.dim
        if self.ranking:
            sizes["output"] = _labels_to_output(self.params.k, train)
        return sizes

    def size_names(self) -> set[str]:
        """The names in what `plan` gives, all of which a stored head must have."""
        return {"inputs", "labels", "width"} | ({"output"} if self.ranking else set())

    def encoder_width(self, sizes: dict[str, int]) -> int:
        """The width of an encoder whose own is "auto"."""
        return WIDTH

    def make_classifier(self, sizes: dict[str, int]) -> Any:
        """A module like `Classifier`: `width`, `start`, `forward(x, threads)` and, if it is linear, `matrix()`.

        `rows(labels)`, which gives some rows of `matrix()`, is what training with an index asks for.
        """
        return Classifier(sizes["labels"], sizes["width"])

    def logits(self, classifier: Any, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """Rows × labels of z for vectors x of the classifier's width."""
        result: torch.Tensor = classifier(x, threads)
        return result

    def start(self, network: Network, train: Split, generator: torch.Generator) -> None:
        """Set the classifier's first weights; encoder and projection already have theirs."""
        network.classifier.start(train, generator)

    @abstractmethod
    def loss(self, classifier: Any, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """What training minimises, for one batch of vectors x."""

    def shortlist_loss(self, chosen: Chosen, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """`loss` over the labels of a shortlist; targets count them as the rows of `chosen` do."""
        return self.loss(chosen, x, targets, threads)

    def examples(self, train: Split) -> Examples[Any]:
        """What training draws batches from."""
        return training_rows(train)

    def batch_loss(
        self,
        network: Network,
        batch: Any,
        targets: Targets,
        drop: Callable[[torch.Tensor], torch.Tensor],
        threads: Threads,
    ) -> torch.Tensor:
        """What training minimises, for one batch of `examples`; `drop` is the dropout of the encoder's outputs."""
        if isinstance(batch, Shortlisted):
            W, b = network.classifier.rows(batch.labels)
            x = network.projection(drop(network.encoder(batch.rows)))
            return self.shortlist_loss(Chosen(W, b + batch.shift), x, targets, threads)
        return self.loss(network.classifier, network.projection(drop(network.encoder(batch))), targets, threads)

    def validation_scores(self, validation: Split, threads: Threads) -> Iterator[tuple[np.ndarray, csr_matrix]]:
        """Blocks of logits and the labels that are true, by which training stops and the threshold is chosen."""
        for rows, scores in self._scores(self._checked(validation.matrix), threads):
            yield scores, validation.Y[rows]

    def structure(self, classifier: Any) -> Alternating | None:
        """What `decision` says about W when no folding was needed."""
        return None

    def check_stored(self, classifier: Any) -> None:
        """DataError if weights that were loaded, finite numbers in the right shapes, are still not this head's."""

    # The contract of a head

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        csr_pattern(csr_matrix(train.Y), "the label matrix")
        train = without_stored_zeros(train)
        examples = self.examples(train)
        self._indexes = Indexes(indexes, train.labels) if indexes else None
        self._device, self._workers = self._chosen_device(), context.workers
        generator = torch.Generator().manual_seed(context.seed_for("weights"))
        self.sizes = self.plan(train, context)
        try:
            network = self._new_network(generator, context)
        except ValidationError as error:
            raise UsageError(
                f"the encoder {self.params.encoder.use!r} cannot serve this head, which asks for a width of "
                f"{self.encoder_width(self.sizes)}: {reasons(error)}"
            ) from None
        self.start(network, train, generator)
        network.to(self._device)
        self._network, self.threshold = network, 0.0
        try:
            with threads(context.workers) as pool:
                if self._indexes is not None:
                    examples = self._shortlisted(examples, context)
                held_out = self._held_out(context)
                self._train(network, examples, held_out, context, pool)
                network.fold()
                if self._indexes is not None:
                    self._indexes.rebuild(self._label_vectors)
                self.threshold = 0.0 if self.ranking else self._chosen_threshold(held_out, context, pool)
        except BaseException:
            self._network = None
            raise

    def refit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        """`fit` for as many epochs as were best, with the threshold that was best; `history` stays that of `fit`."""
        self._decided = _Decided(best_epoch(self.history), self.threshold, self.history)
        self._network = self._indexes = None  # memory need not hold two networks
        try:
            self.fit(train, indexes=indexes, context=context)
        finally:
            self._decided = None

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        X = self._checked(X)
        with threads(self._workers) as pool:
            return outputs.joined([outputs.best(scores, k) for _, scores in self._outcomes(X, pool)], k)

    def labels(self, X: Matrix) -> csr_matrix:
        X = self._checked(X)
        with threads(self._workers) as pool:
            return outputs.stacked([self._sets(scores) for _, scores in self._outcomes(X, pool)], self.sizes["labels"])

    def rank_and_label(self, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
        """`predict(X, k)` and `labels(X)` from the same logits."""
        own = type(self)
        if own.predict is not TorchHead.predict or own.labels is not TorchHead.labels:
            return self.predict(X, k), self.labels(X)
        if k < 1:
            raise UsageError(f"rank_and_label needs k of at least 1, not {k}")
        X = self._checked(X)
        with threads(self._workers) as pool:
            pairs = [(outputs.best(scores, k), self._sets(scores)) for _, scores in self._outcomes(X, pool)]
        ranked = outputs.joined([best for best, _ in pairs], k)
        return ranked, outputs.stacked([sets for _, sets in pairs], self.sizes["labels"])

    def candidates(self, X: Matrix) -> csr_matrix | None:
        """Rows × labels with a 1 for each label that the indexes let a row have; None without an index."""
        if self._indexes is None:
            return None
        with threads(self._workers):
            return self._listed(self._checked(X), self.params.candidates)

    def features(self, X: Matrix) -> np.ndarray | None:
        if not self._fitted().linear:
            return None
        with threads(self._workers):
            return self._rows_of_vectors(self._checked(X))

    def decision(self) -> LinearDecision | None:
        network = self._fitted()
        if not network.linear:
            return None
        if network.narrow:
            W, b = network.folded_W, network.folded_b
            structure = None
        else:
            W, b = network.classifier.matrix()
            structure = None if self.added else self.structure(network.classifier)
        assert W is not None
        assert b is not None
        matrix, shifted = W.detach().cpu().numpy(), b.detach().cpu().numpy() - np.float32(self.threshold)
        matrix.flags.writeable = False  # it is the memory that prediction uses
        rule: Literal["sign", "topk"] = "topk" if self.ranking else "sign"
        return LinearDecision(matrix, shifted, rule, structure, self._replay, self.sizes["inputs"])

    @property
    def added(self) -> int:
        """Labels that `add_labels` put behind those of training."""
        return self.sizes.get("added", 0)

    def add_labels(
        self, X: Matrix, Y: csr_matrix, train: Split, *, listed_by: Callable[[], LabelIndex] | None = None
    ) -> None:
        """Take on labels from the rows `X` that have them (`Y`: rows × new labels) beside some rows of training.

        What was learned stays as it is. Of the head's indexes those that can take the labels list them as well; where
        none can, `listed_by` makes one more, of the new labels. UsageError from a head whose classifier is not linear.
        """
        network, indexes = self._fitted(), self._indexes
        if not network.linear:
            raise UsageError(
                f"the labels of a {type(self).__name__} have no rows of their own that one could add to: train it anew"
            )
        listed = indexes is None or indexes.can_add
        if not listed and listed_by is None:
            raise UsageError(
                f"this {type(self).__name__} outputs only labels that its index lists, and the index was built without "
                "the new ones: train it anew"
            )
        W, b = (part.detach().cpu().numpy() for part in network.classifier.matrix())
        rows, examples = (self._projected(self._checked(matrix)) for matrix in (train.matrix, X))
        more = [torch.from_numpy(part).to(self._device) for part in new_rows(W, b, rows, train.Y, examples, Y)]
        if indexes is not None:
            indexes = indexes.with_labels(X, Y)
            if not listed and listed_by is not None:
                indexes = indexes.beside(listed_by())
        network.classifier = with_more(network.classifier, self.sizes["labels"], *more)
        count = int(Y.shape[1])
        self.sizes = {**self.sizes, "labels": self.sizes["labels"] + count, "added": self.added + count}
        network.fold()
        self._indexes = indexes
        if indexes is not None:
            indexes.rebuild(self._label_vectors)

    def index_labels(self) -> list[tuple[str, int]]:
        """Of each index its name and how many labels it knows: all, or those from before the others were added."""
        if self._indexes is None:
            return []
        names = [str(getattr(index, "indexer", number)) for number, index in enumerate(self._indexes.all)]
        return list(zip(names, self._indexes.known, strict=True))

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        """What the report says about this head; `truth` holds the label sets of the test rows.

        Texts under "warnings" are also shown when a run ends.
        """
        network = self._fitted()
        return {
            "trainable parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "of these in the output layer": sum(p.numel() for p in network.classifier.parameters() if p.requires_grad),
            "epochs": len(self.history),
            "seconds of training": self.history[-1].seconds,
            **self._shortlist_facts(),
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """What nobody should overlook in the facts."""
        if any(epoch.loss for epoch in self.history):
            return []
        reason = "the loss was 0 from the first epoch on"
        if self.sizes.get("output") == self.sizes["labels"]:
            reason = f"where all {self.sizes['labels']} labels are output (head.k), no weights are better than others"
        return [f"nothing was learned: {reason}"]

    def save(self, folder: Path) -> None:
        network = self._fitted()
        super().save(folder)
        epochs = [list(epoch) for epoch in self.history]
        kept = {
            "sizes": self.sizes,
            "threshold": self.threshold,
            "history": epochs,
            "indexes": self._save_indexes(folder),
            "known": [] if self._indexes is None else self._indexes.known,
        }
        store.write_json(folder / STATE, kept)
        store.write_tensors(folder / WEIGHTS, {name: tensor.cpu() for name, tensor in network.state_dict().items()})

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> TorchHead:
        head = super().load(folder, context=context)
        head._workers = context.workers
        head._device = head._chosen_device()
        head.sizes, head.threshold, head.history, used, known = read_state(folder / STATE)
        missing = head.size_names() - head.sizes.keys()
        if missing:
            raise store.damaged(folder / STATE, f"expected the sizes {', '.join(sorted(missing))}")
        head._network = head._stored_network(folder, context)
        if used:
            found = [context.load("indexer", use, folder / f"index-{n}") for n, use in enumerate(used)]
            named = [named_index(index, use) for index, use in zip(found, used, strict=True)]
            head._indexes = Indexes(named, head.sizes["labels"], known)
        return head

    # Training

    def _train(
        self, network: Network, examples: Examples[Any], held_out: _HeldOut | None, context: Context, pool: Threads
    ) -> None:
        noise = torch.Generator(self._device).manual_seed(context.seed_for("dropout"))

        def drop(vectors: torch.Tensor) -> torch.Tensor:
            return _dropped(vectors, self.params.dropout, noise)

        outcome = train(
            network,
            examples,
            lambda batch, targets: self.batch_loss(network, batch, targets, drop, pool),
            schedule=Schedule(
                self._decided.epochs if self._decided else self.params.epochs,
                self.params.batch,
                self.params.learning_rate,
                self.params.weight_decay,
                self.params.patience,
                slower=list(network.projection.parameters()),
                slowness=PROJECTION_RATE,
            ),
            validate=None if held_out is None else lambda: self._validation_score(held_out, pool),
            context=context,
            threads=pool,
            device=self._device,
        )
        self.history = self._decided.history if self._decided else outcome.history
        found = "" if outcome.score is None else f", best nDCG@5 {outcome.score:.4f} in epoch {outcome.best_epoch}"
        context.log(f"trained for {outcome.epochs} epochs{found}")

    def _held_out(self, context: Context) -> _HeldOut | None:
        """The validation share if it can score anything."""
        if context.validation is None:
            return None
        Y = as_csr(context.validation.Y)
        if not Y.nnz:
            return None
        return _HeldOut(replace(context.validation, Y=Y, weights=None), self._lasting_lists(context.validation))

    def _lasting_lists(self, validation: Split) -> csr_matrix | None:
        """The candidates of the validation rows where training does not change them and memory can hold them."""
        if self._indexes is None or self._indexes.in_head_space:
            return None
        if validation.rows * self.params.candidates * len(self._indexes.all) > LISTED_AT_ONCE:
            return None
        return self._listed(self._checked(validation.matrix), self.params.candidates)

    def _validation_blocks(self, held_out: _HeldOut, pool: Threads) -> Iterator[tuple[Any, csr_matrix]]:
        """Blocks of logits, of all labels or of candidates, and the labels that are true."""
        rows = held_out.rows
        if self._indexes is None:
            yield from self.validation_scores(rows, pool)
        else:
            for part, logits in self._candidate_logits(self._checked(rows.matrix), pool, held_out.lists):
                yield logits, rows.Y[part]

    def _validation_score(self, held_out: _HeldOut, pool: Threads) -> float:
        blocks = [(outputs.best(scores, 5), truth) for scores, truth in self._validation_blocks(held_out, pool)]
        truth = csr_matrix(vstack([truth for _, truth in blocks], format="csr"))
        return rank_metrics(outputs.joined([best for best, _ in blocks], 5), truth, ks=(5,))["nDCG@5"]

    def _chosen_threshold(self, held_out: _HeldOut | None, context: Context, pool: Threads) -> float:
        if self._decided is not None:
            return self._decided.threshold
        if self.params.threshold != "validation":
            return float(np.float32(self.params.threshold))
        if held_out is None:
            context.log("there is no validation share with labels: a label is output when its logit is above 0")
            return 0.0
        histogram = Histogram()
        for scores, truth in self._validation_blocks(held_out, pool):
            (histogram.add_listed if issparse(scores) else histogram.add)(scores, truth)
        threshold, f1 = histogram.best_threshold()
        context.log(f"a label is output when its logit is above {threshold:g} (validation micro-F1 {f1:.4f})")
        return threshold

    # Inference

    def _vectors(self, X: Matrix, blocks: list[slice]) -> Iterator[tuple[slice, torch.Tensor]]:
        """Blocks of rows with the vectors that the decision's matrix multiplies."""
        network = self._fitted()
        for rows in blocks:
            with torch.no_grad():
                vectors = network.encoder(as_batch(X[rows], self._device))
                if not self._folded:
                    vectors = network.projection(vectors)
            yield rows, vectors

    def _projected(self, X: Matrix) -> np.ndarray:
        """Rows × the classifier's width, also where the two matrices are folded."""
        network = self._fitted()
        with threads(self._workers), torch.no_grad():
            parts = [
                network.projection(network.encoder(as_batch(X[rows], self._device))).cpu().numpy()
                for rows in self._blocks(X.shape[0], network.classifier.width)
            ]
        return np.concatenate(parts)

    def _scores(self, X: Matrix, pool: Threads) -> Iterator[tuple[slice, np.ndarray]]:
        for rows, vectors in self._vectors(X, self._blocks(X.shape[0], self.sizes["labels"])):
            yield rows, self._scored(vectors, pool)

    def _scored(self, vectors: torch.Tensor, pool: Threads) -> np.ndarray:
        network = self._fitted()
        with torch.no_grad():
            if network.folded_W is not None and network.folded_b is not None:
                scores = linear(vectors, network.folded_W, network.folded_b, pool)
            else:
                scores = self.logits(network.classifier, vectors, pool)
        return scores.cpu().numpy()

    def _outcomes(self, X: Matrix, pool: Threads) -> Iterator[tuple[slice, Any]]:
        """Blocks of rows with the logits that the output is made of: of all labels or, with an index, of candidates."""
        return self._scores(X, pool) if self._indexes is None else self._candidate_logits(X, pool)

    def _sets(self, scores: Any, counts: np.ndarray | None = None) -> csr_matrix:
        """The label sets that the rule makes of logits; `counts` says how many labels a ranking head is to output."""
        if not self.ranking:
            return outputs.above(scores, self.threshold)
        if counts is None:
            counts = np.full(scores.shape[0], self.sizes["output"])
        return outputs.first(outputs.best(scores, max(1, int(counts.max(initial=1)))), counts, scores.shape[1])

    def _replay(self, vectors: np.ndarray, counts: np.ndarray | None = None) -> csr_matrix:
        """The label sets of vectors of the decision's space, by the scorer that `labels` uses."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self._decision_width():
            raise DataError(f"expected rows of {self._decision_width()} numbers, found an array of {vectors.shape}")
        with threads(self._workers) as pool:
            sets = []
            for rows in self._blocks(len(vectors), self.sizes["labels"]):
                scores = self._replayed(vectors[rows], pool)
                sets.append(self._sets(scores, None if counts is None else np.asarray(counts)[rows]))
        return outputs.stacked(sets, self.sizes["labels"])

    def _replayed(self, vectors: np.ndarray, pool: Threads) -> np.ndarray:
        """Logits of all labels as `labels` computes them; behind an index, as if all were candidates."""
        if self._indexes is None:
            return self._scored(torch.from_numpy(vectors).to(self._device), pool)
        return pair_logits(vectors, *self._layer(), all_labels(len(vectors), self.sizes["labels"]), pool).toarray()

    def _blocks(self, rows: int, numbers: int) -> list[slice]:
        """Rows in parts of which so many numbers each, and their vectors, fit in memory."""
        size = min(ROWS_AT_ONCE, max(1, LOGITS_AT_ONCE // max(1, numbers, self._decision_width())))
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

    @property
    def _folded(self) -> bool:
        return self._fitted().folded_W is not None

    def _decision_width(self) -> int:
        network = self._fitted()
        return int(network.encoder.width if self._folded else network.classifier.width)

    # With an index

    def _shortlisted(self, rows: Any, context: Context) -> ShortlistedRows:
        network, indexes = self._fitted(), self._indexes
        assert indexes is not None
        if not hasattr(network.classifier, "rows"):
            raise UsageError(f"{type(self).__name__} learns from all labels: say index = [] in its section")

        def hard() -> csr_matrix:
            with context.progress("looking for hard labels"):
                indexes.rebuild(self._label_vectors)
                return self._listed(rows.X, self.params.hard)

        refresh = self.params.refresh if indexes.in_head_space else None
        return ShortlistedRows(rows, hard, self.params.uniform, refresh, context.rng("shortlists"))

    def _label_vectors(self) -> np.ndarray:
        """One row a label, (W, b): its product with (x, 1) is the label's logit."""
        W, b = self._layer()
        return np.concatenate([W, b[:, None]], axis=1)

    def _rows_of_vectors(self, X: Matrix) -> np.ndarray:
        """Rows × d of what the decision's matrix multiplies."""
        blocks = self._blocks(X.shape[0], self._decision_width())
        vectors = [part.cpu().numpy() for _, part in self._vectors(X, blocks)]
        return np.concatenate(vectors) if vectors else np.empty((0, self._decision_width()), dtype=np.float32)

    def _listed(self, X: Matrix, k: int) -> csr_matrix:
        """Rows × labels with a 1 for each label that some index has among its best `k`."""
        assert self._indexes is not None
        blocks = []
        for rows in _row_blocks(X):
            part = X[rows]
            blocks.append(self._indexes.find(part, lambda: _with_one(self._rows_of_vectors(part)), k))  # noqa: B023
        return outputs.stacked(blocks, self.sizes["labels"])

    def _layer(self) -> tuple[np.ndarray, np.ndarray]:
        """(W, b) of what prediction multiplies at present."""
        network = self._fitted()
        W, b = network.classifier.matrix()
        if network.folded_W is not None and network.folded_b is not None:
            W, b = network.folded_W, network.folded_b
        return W.detach().cpu().numpy(), b.detach().cpu().numpy()

    def _candidate_logits(
        self, X: Matrix, pool: Threads, known: csr_matrix | None = None
    ) -> Iterator[tuple[slice, csr_matrix]]:
        """Blocks of rows with the logits of their candidates, which may be `known`."""
        assert self._indexes is not None
        layer = self._layer() if self._layer_is_there else None
        for rows in _row_blocks(X):
            x = self._rows_of_vectors(X[rows])
            if known is not None:
                found = known[rows]
            else:
                found = self._indexes.find(X[rows], lambda: _with_one(x), self.params.candidates)  # noqa: B023
            if layer is None and found.nnz < self.sizes["labels"]:
                yield rows, self._logits_of_few(x, found, pool)
            else:
                layer = layer or self._layer()
                yield rows, pair_logits(x, *layer, found, pool)

    @property
    def _layer_is_there(self) -> bool:
        """Whether `_layer` has only to be looked up, and not to be made."""
        return self._folded or isinstance(self._fitted().classifier, Classifier)

    def _logits_of_few(self, x: np.ndarray, found: csr_matrix, pool: Threads) -> csr_matrix:
        """`pair_logits` from no more rows of the layer than it takes."""
        labels = np.unique(found.indices)
        with torch.no_grad():
            W, b = self._fitted().classifier.rows(torch.from_numpy(labels.astype(np.int64)).to(self._device))
        places = csr_matrix(
            (found.data, np.searchsorted(labels, found.indices), found.indptr), (found.shape[0], len(labels))
        )
        logits = pair_logits(x, W.cpu().numpy(), b.cpu().numpy(), places, pool)
        return csr_matrix((logits.data, found.indices, found.indptr), shape=found.shape)

    def _save_indexes(self, folder: Path) -> list[str]:
        """The names by which what is saved here can be loaded."""
        names = []
        for number, index in enumerate(self._indexes.all if self._indexes is not None else ()):
            name = getattr(index, "indexer", None)
            if not isinstance(name, str):
                raise UsageError(f"{type(index).__name__} does not say by `indexer` which component loads it")
            (folder / f"index-{number}").mkdir()
            index.save(folder / f"index-{number}")
            names.append(name)
        return names

    def _shortlist_facts(self) -> dict[str, Any]:
        if self._indexes is None:
            return {}
        most = min(self.params.candidates * len(self._indexes.all), self.sizes["labels"])
        told: dict[str, Any] = {"labels that a row can choose from, at most": most}
        if self.added:
            told["labels that an index knows"] = ", ".join(f"{name} {known:,}" for name, known in self.index_labels())
        for (name, _), index in zip(self.index_labels(), self._indexes.all, strict=True):
            if hasattr(index, "facts"):
                told[f"index {name}"] = index.facts()
        return told

    # Building blocks

    def _fitted(self) -> Network:
        if self._network is None:
            raise UsageError(f"this {type(self).__name__} has not been fitted: call fit or load first")
        return self._network

    def _checked(self, X: Matrix) -> Matrix:
        self._fitted()
        X = as_inputs(X)
        if X.shape[1] != self.sizes["inputs"]:
            raise DataError(f"the rows have {X.shape[1]} features, this head was fitted on {self.sizes['inputs']}")
        return X

    def _new_network(self, generator: torch.Generator, context: Context) -> Network:
        encoder = self._new_encoder(context)
        encoder.prepare(self.sizes["inputs"], generator)
        known = self.sizes["labels"] - self.added
        classifier = self.make_classifier({**self.sizes, "labels": known})
        if self.added:
            room = torch.zeros(self.added, classifier.width), torch.zeros(self.added)
            classifier = with_more(classifier, known, *room)
        return Network(encoder, initialised_linear(encoder.width, classifier.width, generator), classifier)

    def _new_encoder(self, context: Context) -> Any:
        spec = self.params.encoder
        known = context.resolve("encoder", spec.use).Params.model_fields
        if "width" in known and spec.options.get("width", known["width"].default) == "auto":
            spec = Spec(**{"use": spec.use, **spec.options, "width": self.encoder_width(self.sizes)})
        return context.build("encoder", spec)

    def _stored_network(self, folder: Path, context: Context) -> Network:
        path = folder / WEIGHTS
        tensors = store.read_tensors(path)
        try:
            network = self._new_network(torch.Generator().manual_seed(0), context)
        except ValidationError as error:
            raise store.damaged(folder / PARAMS, f"the encoder's parameters: {reasons(error)}") from None
        except (RuntimeError, MemoryError, OverflowError, TypeError, UsageError) as error:
            raise store.damaged(folder / STATE, f"no network of the sizes {self.sizes}: {error}") from None
        network.fold()
        expected = network.state_dict()
        if tensors.keys() != expected.keys():
            raise store.damaged(path, f"expected the tensors {sorted(expected)}, found {sorted(tensors)}")
        for name, tensor in tensors.items():
            wanted = expected[name]
            if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
                raise store.damaged(
                    path,
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {wanted.dtype} {tuple(wanted.shape)}",
                )
            if not bool(tensor.isfinite().all()):
                raise store.damaged(path, f"{name} holds a value that is not a finite number")
        network.load_state_dict(tensors)
        try:
            classifier = network.classifier
            self.check_stored(classifier.trained if isinstance(classifier, Widened) else classifier)
        except DataError as error:
            raise store.damaged(path, str(error)) from None
        return network.to(self._device)

    def _chosen_device(self) -> torch.device:
        if self.params.device == "cpu":
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device("cuda")
        if self.params.device == "cuda":
            raise UsageError('device is "cuda" but torch finds none here: use "cpu" or "auto"')
        return torch.device("cpu")


def _dropped(vectors: torch.Tensor, share: float, noise: torch.Generator) -> torch.Tensor:
    if not share:
        return vectors
    kept = torch.rand(vectors.shape, generator=noise, device=vectors.device) >= share
    return vectors * kept / (1 - share)


def _labels_to_output(k: int | str, train: Split) -> int:
    if k == "auto":
        labelled = int(np.count_nonzero(np.diff(train.Y.indptr)))
        return min(train.labels, -(-train.Y.nnz // labelled))
    if int(k) > train.labels:
        raise UsageError(f"k is {k}, but there are only {train.labels} labels to output")
    return int(k)


def _row_blocks(X: Matrix) -> list[slice]:
    rows = int(X.shape[0])
    return [slice(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE)]


def _with_one(vectors: np.ndarray) -> np.ndarray:
    """(x, 1) for each row x: its product with (w, b) is the logit."""
    return np.concatenate([vectors, np.ones((len(vectors), 1), dtype=np.float32)], axis=1)
