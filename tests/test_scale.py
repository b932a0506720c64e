"""Studies at the size of the largest public sets; `make test-slow` runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PEAK = """
from xmckit.runs.resources import Measured
with Measured() as cost:
    {work}
print(cost.peak_bytes)
"""


def peak_bytes(work: str, setup: str = "") -> int:
    """The largest resident size of a fresh process during `work`."""
    code = setup + PEAK.format(work=work)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def test_synthetic_data_with_670_thousand_labels_fits_in_memory():
    setup = (
        "import xmckit\n"
        "from xmckit.data.synthetic import Synthetic\n"
        "source = Synthetic(rows=500_000, test_rows=150_000, features=135_000, labels=670_000, topics=1000)\n"
    )
    assert peak_bytes("source.read(context=xmckit.make_context())", setup) < 4 * 2**30


def test_metrics_of_100_thousand_rows_and_670_thousand_labels_need_little_memory():
    setup = """
import numpy as np
from scipy.sparse import csr_matrix
from xmckit.components.metrics import rank_metrics
from xmckit.protocols import TopK
rng = np.random.default_rng(0)
rows, labels, width = 100_000, 670_000, 100
truth = csr_matrix((np.ones(5 * rows, np.float32), rng.integers(0, labels, 5 * rows), np.arange(0, 5 * rows + 1, 5)),
                   (rows, labels))
truth.sum_duplicates()
truth.data[:] = 1
start = rng.integers(0, labels - 7 * width, rows)[:, None]
indices = (start + 7 * np.arange(width)).astype(np.int32)
scores = np.tile(-np.arange(width, dtype=np.float32), (rows, 1))
weights = np.ones(labels)
"""
    work = "rank_metrics(TopK(indices, scores), truth, ks=[1, 3, 5, 100], inverse_propensity=weights)"
    assert peak_bytes(work, setup) - peak_bytes("pass", setup) < 2**30


def test_a_gigabyte_of_text_is_read_within_twice_its_size(tmp_path):
    path = tmp_path / "train.txt"
    line = b"1,2,3 " + b" ".join(b"%d:0.%04d" % (7 * number, number) for number in range(90)) + b"\n"
    rows = 2**30 // len(line)
    with open(path, "wb") as stream:
        stream.write(b"%d 1000 10\n" % rows)
        for start in range(0, rows, 10_000):
            stream.write(line * min(10_000, rows - start))
    setup = (
        "from pathlib import Path\nfrom xmckit.context import Context\n"
        f"from xmckit.data.xmc_text import read_data_rows\npath = Path({str(path)!r})\n"
    )
    assert peak_bytes("read_data_rows(path, Context(workers=2))", setup) < 2 * path.stat().st_size + 2**29
