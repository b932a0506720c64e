"""Wrap other programs as peers, which run like recipes: on the same rows and features, in their own child process.

A peer is a subclass of `Peer` with `Params`, `distributions` (the result stores their versions), `fit`, `predict` and
`size`. A suite names one of `PEERS`, or a class as `package.module:Class`.
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

BLOCK = 512  # rows per block; a block holds the scores of all labels


class Peer(Configured, ABC):
    """The interface of a program that a suite compares with recipes."""

    distributions: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        """Train; `folder` exists, is empty, and may hold the files of the model."""

    @abstractmethod
    def predict(self, X: csr_matrix, k: int) -> TopK:
        """Return the best k labels of each row."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes of the model on disk, or in memory if the program cannot store it."""


class Pecos(Peer):
    """XR-Linear, called directly through the API of PECOS."""

    distributions = ("libpecos",)

    class Params(Params):
        leaf_size: int = Field(100, ge=1, description="Largest number of labels in a leaf of the tree.")
        beam: int = Field(10, ge=1, description="Nodes that the search keeps on each level.")
        splits: int = Field(16, ge=2, description="Number of children of a node.")
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
        scores = self._model.predict(
            X, only_topk=k, beam_size=self.params.beam, post_processor="l3-hinge", threads=self._threads
        )
        shape = (scores.shape[0], self._labels)
        return topk_csr(csr_matrix((scores.data, self._seen[scores.indices], scores.indptr), shape=shape), k)

    def size(self) -> int:
        return folder_bytes(self._folder)


class NapkinXC(Peer):
    """A probabilistic label tree of napkinXC with its default options."""

    distributions = ("napkinxc",)

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        from napkinxc.models import PLT

        self._folder = folder
        lists = [Y.indices[start:end].tolist() for start, end in zip(Y.indptr[:-1], Y.indptr[1:], strict=True)]
        self._model = PLT(str(folder), seed=seed, threads=threads)
        self._model.fit(X, lists)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        rankings = self._model.predict_proba(X, top_k=k)
        indices = np.full((len(rankings), k), -1, dtype=np.int32)
        scores = np.full((len(rankings), k), -np.inf, dtype=np.float32)
        for row, ranking in enumerate(rankings):
            for rank, (label, score) in enumerate(ranking[:k]):
                indices[row, rank], scores[row, rank] = label, score
        return TopK(indices, scores)

    def size(self) -> int:
        return folder_bytes(self._folder)


class _DensePeer(Peer):
    """A program that stores a weight for each pair of a label and a feature."""

    class Params(Params):
        most: float = Field(3e8, gt=0, description="Largest number of weights, labels × features.")

    def check_size(self, X: csr_matrix, Y: csr_matrix) -> None:
        """Raise UsageError if the model would have more weights than `most`."""
        if X.shape[1] * Y.shape[1] > self.params.most:
            raise UsageError(
                f"{Y.shape[1]:,} labels × {X.shape[1]:,} features are more than the {self.params.most:,.0f} weights "
                "that the suite allows for this peer"
            )


class LibMultiLabel(_DensePeer):
    """LibMultiLabel's linear one-versus-rest classifiers, trained by LIBLINEAR."""

    distributions = ("libmultilabel", "liblinear-multicore")

    class Params(_DensePeer.Params):
        liblinear: str = Field("-s 1 -B 1 -e 0.0001 -q", description="Options of LIBLINEAR; -B 1 adds a bias.")

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        import psutil

        self.check_size(X, Y)
        self._labels = Y.shape[1]
        self._seen, Y = seen_labels(Y)
        # LibMultiLabel uses as many threads as psutil counts cores, and ignores other settings.
        psutil.cpu_count = lambda logical=True: threads
        self._model = _libmultilabel_linear().train_1vsrest(Y, X, False, self.params.liblinear, verbose=False)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        return best_of_blocks(self._model.predict_values, X, k, self._seen)

    def size(self) -> int:
        return int(np.asarray(self._model.weights).nbytes)


class ScikitLearn(_DensePeer):
    """scikit-learn's one-versus-rest classifiers."""

    distributions = ("scikit-learn",)

    class Params(_DensePeer.Params):
        estimator: Literal["logistic", "sgd"] = Field(
            "logistic", description="LIBLINEAR's logistic regression, or SGD."
        )
        C: float = Field(10.0, gt=0, description="Inverse regularisation of logistic regression.")

    def fit(self, X: csr_matrix, Y: csr_matrix, *, seed: int, threads: int, folder: Path) -> None:
        from joblib import parallel_config
        from sklearn.linear_model import LogisticRegression, SGDClassifier
        from sklearn.multiclass import OneVsRestClassifier

        self.check_size(X, Y)
        self._seen, Y = seen_labels(Y)
        if self.params.estimator == "sgd":
            estimator: Any = SGDClassifier(loss="log_loss", random_state=seed)
        else:
            estimator = LogisticRegression(C=self.params.C, solver="liblinear", random_state=seed)
        # Threads are enough, because LIBLINEAR releases the GIL; memory and time of processes would not be measured.
        with parallel_config(backend="threading", n_jobs=threads):
            self._model = OneVsRestClassifier(estimator, n_jobs=threads).fit(X, Y)

    def predict(self, X: csr_matrix, k: int) -> TopK:
        return best_of_blocks(self._scores, X, k, self._seen)

    def _scores(self, X: csr_matrix) -> np.ndarray:
        return np.asarray(self._model.decision_function(X)).reshape(X.shape[0], -1)

    def size(self) -> int:
        return int(sum(getattr(one, "coef_", np.zeros(0)).nbytes for one in self._model.estimators_))


PEERS: dict[str, type[Peer]] = {
    "pecos": Pecos,
    "napkinxc": NapkinXC,
    "libmultilabel": LibMultiLabel,
    "scikit-learn": ScikitLearn,
}


def peer_class(use: str) -> type[Peer]:
    """Return the peer with this name, or the class at `package.module:Class`."""
    if use in PEERS:
        return PEERS[use]
    module, _, name = use.partition(":")
    try:
        peer = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"cannot import the peer {use}: {error}") from None
    if not (isinstance(peer, type) and issubclass(peer, Peer)):
        raise PluginError(f"{use} is not a subclass of xmckit.bench.peers.Peer")
    return peer


def seen_labels(Y: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """Return the labels with training rows, and the columns of Y for them; no program can learn the others."""
    seen = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
    return seen, csr_matrix(Y[:, seen])


def best_of_blocks(scores: Callable[[csr_matrix], np.ndarray], X: csr_matrix, k: int, labels: np.ndarray) -> TopK:
    """Return the best k of `labels` for a program that scores all of them; score one block of rows at a time."""
    blocks = []
    depth = min(k, len(labels))
    for start in range(0, X.shape[0], BLOCK):
        block = np.asarray(scores(X[start : start + BLOCK]), dtype=np.float32)
        best = np.argpartition(-block, depth - 1, axis=1)[:, :depth]
        order = np.argsort(-np.take_along_axis(block, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        blocks.append(TopK(labels[best].astype(np.int32), np.take_along_axis(block, best, axis=1)))
    return TopK.of_blocks(blocks)


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _libmultilabel_linear() -> Any:
    """Import only LibMultiLabel's one-versus-rest module; its package also imports what only its trees need."""
    package = importlib.util.find_spec("libmultilabel")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'libmultilabel'")
    file = Path(package.origin).parent / "linear" / "linear.py"
    spec = importlib.util.spec_from_file_location("xmckit_bench_libmultilabel", file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"libmultilabel has no {file.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
