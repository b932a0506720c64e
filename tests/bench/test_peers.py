"""Other programs on rows that are easy to learn, called as a suite's child process calls them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from xmckit import PluginError, UsageError
from xmckit.bench import child
from xmckit.bench.peers import PEERS, Pecos, best_of_blocks, peer_class, seen_labels
from xmckit.runs import StageRecord

NEEDED = {
    "pecos": "pecos", "napkinxc": "napkinxc", "libmultilabel": "liblinear", "scikit-learn": "sklearn",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    """Each label has a feature of its own; label 3 has no training row."""
    rng = np.random.default_rng(0)
    Y = (rng.random((300, 8)) < 0.25).astype(np.float32)
    Y[:, 3] = 0
    Y[Y.sum(axis=1) == 0, 0] = 1
    X = np.hstack([Y, rng.random((300, 4)) * 0.1]).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return csr_matrix(X), csr_matrix(Y)


@pytest.mark.filterwarnings("ignore")  # the programs' own
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_learns_what_is_easy(name, rows, tmp_path, monkeypatch):
    pytest.importorskip(NEEDED[name], reason=f"{name} is not installed: pip install xmckit[peers]")
    if name == "libmultilabel":
        psutil = pytest.importorskip("psutil", reason="LibMultiLabel asks psutil for the number of cores")
        pytest.importorskip("libmultilabel", reason="LibMultiLabel is not installed: pip install xmckit[peers]")
        monkeypatch.setattr(psutil, "cpu_count", psutil.cpu_count)  # put back what the peer changes
    X, Y = rows
    peer = peer_class(name)()
    peer.fit(X[:250], Y[:250], seed=0, threads=1, folder=tmp_path)
    found = peer.predict(X[250:], 3)
    truth = Y[250:].toarray()
    assert found.indices.shape == found.scores.shape == (50, 3)
    assert truth[np.arange(50), found.indices[:, 0]].mean() > 0.9
    assert 3 not in found.indices
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert peer.size() > 0


@pytest.mark.parametrize("name", ["libmultilabel", "scikit-learn"])
def test_more_weights_than_the_suite_allows_are_refused(name, rows, tmp_path):
    pytest.importorskip("psutil", reason="LibMultiLabel asks psutil for the number of cores")
    peer = PEERS[name](most=95)
    with pytest.raises(UsageError, match=r"8 labels × 12 features are more than the 95"):
        peer.fit(*rows, seed=0, threads=1, folder=tmp_path)


def test_the_best_of_blocks_are_those_of_a_full_sort():
    rng = np.random.default_rng(1)
    X = csr_matrix(rng.random((1100, 6)))
    labels = np.array([5, 2, 9, 7, 0, 3])
    found = best_of_blocks(lambda block: block.toarray(), X, 4, labels)
    order = np.argsort(-X.toarray(), axis=1)[:, :4]
    assert np.array_equal(found.indices, labels[order])
    assert best_of_blocks(lambda block: block.toarray(), X[:3], 50, labels).indices.shape == (3, 6)


def test_labels_without_rows_are_left_out(rows):
    seen, kept = seen_labels(rows[1])
    assert seen.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert np.array_equal(kept.toarray(), rows[1].toarray()[:, seen])


def test_a_peer_is_found_by_name_or_as_a_class():
    assert peer_class("pecos") is Pecos
    assert peer_class("xmckit.bench.peers:Pecos") is Pecos
    with pytest.raises(PluginError, match="no_such"):
        peer_class("no_such:Thing")
    with pytest.raises(PluginError, match="not a subclass"):
        peer_class("os:path")


@pytest.mark.parametrize(("use", "hinted"), [("napkinxc", True), ("mine:Own", False)])
def test_a_peer_that_is_not_installed_says_how_to_install_it(monkeypatch, tmp_path, use, hinted):
    def fails(job, folder):
        raise ModuleNotFoundError("No module named 'x'")

    monkeypatch.setattr(child, "run_peer", fails)
    found = child.outcome({"kind": "peer", "use": use}, tmp_path)
    assert found["reason"] == "not installed"
    assert found["error"].startswith("No module named 'x'")
    assert ('pip install "xmckit[peers]"' in found["error"]) == hinted


def test_processor_time_of_stages_that_another_cell_ran_counts():
    kinds = [("dataset", True), ("featurizer", True), ("head", True), ("score", False)]
    stages = [
        StageRecord(
            name="name",
            key="key",
            identity={"kind": kind},
            seconds=0.0,
            peak_bytes=0,
            folder="folder",
            reused=reused,
            cpu_seconds=2.0**place,
        )
        for place, (kind, reused) in enumerate(kinds)
    ]
    assert child.cpu_of_reused(stages) == 4.0
