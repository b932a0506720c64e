"""Peers that behave, crash, hang or are not installed, for a suite to run in its child processes."""

from __future__ import annotations

import os
import time

import numpy as np

from xmckit.bench.peers import Peer
from xmckit.params import Params
from xmckit.records import TopK


class Commonest(Peer):
    """Ranks labels by their number of training rows, as the baseline does."""

    distributions = ("numpy",)

    class Params(Params):
        worst: bool = False

    def fit(self, X, Y, *, seed, threads, folder):
        assert os.environ["OMP_NUM_THREADS"] == str(threads)
        counts = np.bincount(Y.indices, minlength=Y.shape[1])
        self.order = np.argsort(counts if self.params.worst else -counts, kind="stable").astype(np.int32)
        (folder / "model.txt").write_text("twelve bytes")

    def predict(self, X, k):
        scores = -np.arange(k, dtype=np.float32)
        return TopK(np.tile(self.order[:k], (X.shape[0], 1)), np.tile(scores, (X.shape[0], 1)))

    def size(self):
        return 12


class Crashing(Commonest):
    def fit(self, X, Y, *, seed, threads, folder):
        print("about to fail", flush=True)
        os.abort()


class Hanging(Commonest):
    def fit(self, X, Y, *, seed, threads, folder):
        time.sleep(600)


class Missing(Commonest):
    def fit(self, X, Y, *, seed, threads, folder):
        import no_such_program_at_all  # noqa: F401
