"""Other programs, run in the same way as recipes: on the same rows and features, in a child process of their own.

A peer is a class with `Params`, `distributions` (whose versions are kept with the result), `fit`, `predict` and `save`.
A suite names one of `PEERS`, or any class as `package.module:Class`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit.errors import PluginError, UsageError
from xmckit.params import Configured, Params
from xmckit.records import TopK
from xmckit.sparse.topk import topk_csr

BLOCK = 512  # rows whose scores of all labels are held at once


class Peer(Configured, ABC):
    """What a suite runs besides recipes."""

    distributions: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        """Train; files may be kept in the existing, empty `folder`."""

    @abstractmethod
    def predict(self, X: csr_matrix, k: int) -> TopK: ...

    @abstractmethod
    def size(self) -> int:
        """Bytes of the model on disk, or in memory for a program that has no way to store it."""


class Pecos(Peer):
    """XR-Linear, called directly."""

    distributions = ("libpecos",)

    class Params(Params):
        leaf_size: int = Field(100, ge=1, description="Labels in a leaf of the tree, at most.")
        beam: int = Field(10, ge=1, description="Nodes that are followed.")
        splits: int = Field(16, ge=2, description="Children of a node.")
        negatives: Literal["tfn", "man", "tfn+man"] = Field("tfn", description="Negative sampling scheme.")

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        from pecos.xmc import Indexer, LabelEmbeddingFactory
        from pecos.xmc.xlinear import XLinearModel

        options = self.params
        self._threads, self._labels, self._folder = threads, Y.shape[1], folder
        self._seen, Y = seen_labels(Y)
        embeddings = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=threads)
        chain = Indexer.gen(
            embeddings, nr_splits=options.splits, max_leaf_size=options.leaf_size, seed=seed, threads=threads
        )
        trained = XLinearModel.train(
            X, Y.tocsc(), C=chain, nr_splits=options.splits, beam_size=options.beam,
            negative_sampling_scheme=options.negatives, threads=threads,
        )  # fmt: skip
        trained.save(str(folder))
        self._model = XLinearModel.load(str(folder), is_predict_only=True)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        found = self._model.predict(
            X, only_topk=k, beam_size=self.params.beam, post_processor="l3-hinge", threads=self._threads
        )
        shape = (found.shape[0], self._labels)
        return topk_csr(csr_matrix((found.data, self._seen[found.indices], found.indptr), shape=shape), k)

    def size(self) -> int:
        return bytes_below(self._folder)


class NapkinXC(Peer):
    """A probabilistic label tree, as it comes."""

    distributions = ("napkinxc",)

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        from napkinxc.models import PLT

        self._folder = folder
        lists = [Y.indices[start:end].tolist() for start, end in zip(Y.indptr[:-1], Y.indptr[1:], strict=True)]
        self._model = PLT(str(folder), seed=seed, threads=threads)
        self._model.fit(X, lists)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        found = self._model.predict_proba(X, top_k=k)
        indices = np.full((len(found), k), -1, dtype=np.int32)
        scores = np.full((len(found), k), -np.inf, dtype=np.float32)
        for row, best in enumerate(found):
            for place, (label, score) in enumerate(best[:k]):
                indices[row, place], scores[row, place] = label, score
        return TopK(indices, scores)

    def size(self) -> int:
        return bytes_below(self._folder)


class _Dense(Peer):
    """A program that holds a weight for every pair of a label and a feature."""

    class Params(Params):
        most: float = Field(3e8, gt=0, description="Refuse more weights than this: labels × features.")

    def check_size(self, X: csr_matrix, Y: csr_matrix) -> None:
        if X.shape[1] * Y.shape[1] > self.params.most:
            raise UsageError(
                f"{Y.shape[1]:,} labels × {X.shape[1]:,} features are more than the {self.params.most:,.0f} weights "
                "that the suite lets this peer hold"
            )


class LibMultiLabel(_Dense):
    """LibMultiLabel's linear one-versus-rest over LIBLINEAR."""

    distributions = ("libmultilabel", "liblinear-multicore")

    class Params(_Dense.Params):
        liblinear: str = Field("-s 1 -B 1 -e 0.0001 -q", description="LIBLINEAR's options; -B 1 is the bias.")

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        import psutil

        self.check_size(X, Y)
        self._labels = Y.shape[1]
        self._seen, Y = seen_labels(Y)
        # It takes as many threads as the machine has cores, whatever it is told.
        psutil.cpu_count = lambda logical=True: threads
        self._model = _libmultilabel_linear().train_1vsrest(Y, X, False, self.params.liblinear, verbose=False)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        return best_of_blocks(self._model.predict_values, X, k, self._seen)

    def size(self) -> int:
        return int(np.asarray(self._model.weights).nbytes)


class ScikitLearn(_Dense):
    """scikit-learn's one-versus-rest."""

    distributions = ("scikit-learn",)

    class Params(_Dense.Params):
        estimator: Literal["logistic", "sgd"] = Field(
            "logistic", description="LIBLINEAR's logistic regression, or SGD."
        )
        C: float = Field(10.0, gt=0, description="Of logistic regression: larger is less regularised.")

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        from joblib import parallel_config
        from sklearn.linear_model import LogisticRegression, SGDClassifier
        from sklearn.multiclass import OneVsRestClassifier

        self.check_size(X, Y)
        self._seen, Y = seen_labels(Y)
        if self.params.estimator == "sgd":
            each: Any = SGDClassifier(loss="log_loss", random_state=seed)
        else:
            each = LogisticRegression(C=self.params.C, solver="liblinear", random_state=seed)
        # Threads, since LIBLINEAR releases the GIL: processes would hide their memory and their time.
        with parallel_config(backend="threading", n_jobs=threads):
            self._model = OneVsRestClassifier(each, n_jobs=threads).fit(X, Y)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        return best_of_blocks(self._scores, X, k, self._seen)

    def _scores(self, X: csr_matrix) -> np.ndarray:
        found = np.asarray(self._model.decision_function(X))
        return found.reshape(X.shape[0], -1)

    def size(self) -> int:
        return int(sum(getattr(one, "coef_", np.zeros(0)).nbytes for one in self._model.estimators_))


PEERS: dict[str, type[Peer]] = {
    "pecos": Pecos,
    "napkinxc": NapkinXC,
    "libmultilabel": LibMultiLabel,
    "scikit-learn": ScikitLearn,
}


def peer_class(use: str) -> type[Peer]:
    """The peer of this name, or the class at `package.module:Class`."""
    if use in PEERS:
        return PEERS[use]
    module, _, name = use.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"there is no peer at {use}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Peer)):
        raise PluginError(f"{use} is not a class of xmckit.bench.peers.Peer")
    return found


def params_of(use: str) -> type[Params]:
    return peer_class(use).Params


def seen_labels(Y: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """The labels that training rows have, and Y without the others, which no program can learn."""
    seen = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
    return seen, csr_matrix(Y[:, seen])


def best_of_blocks(scores: Callable[[csr_matrix], np.ndarray], X: csr_matrix, k: int, labels: np.ndarray) -> TopK:
    """The best labels where a program scores all of them: a block of rows at a time."""
    blocks = []
    depth = min(k, len(labels))
    for start in range(0, X.shape[0], BLOCK):
        found = np.asarray(scores(X[start : start + BLOCK]), dtype=np.float32)
        best = np.argpartition(-found, depth - 1, axis=1)[:, :depth]
        order = np.argsort(-np.take_along_axis(found, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        blocks.append(TopK(labels[best].astype(np.int32), np.take_along_axis(found, best, axis=1)))
    return TopK.of_blocks(blocks)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _libmultilabel_linear() -> Any:
    """LibMultiLabel's module of one-versus-rest, by itself: its package also imports what only its trees need."""
    spec = importlib.util.find_spec("libmultilabel")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'libmultilabel'")
    file = Path(spec.origin).parent / "linear" / "linear.py"
    found = importlib.util.spec_from_file_location("xmckit_bench_libmultilabel", file)
    if found is None or found.loader is None:
        raise ModuleNotFoundError(f"libmultilabel has no {file.name}")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
