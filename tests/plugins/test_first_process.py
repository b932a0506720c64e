"""The same seed gives the same bits in the process that compiles the kernels and in those that load them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LML = """
import hashlib, torch
from xmckit_heads.lml.operator import lml
for width in (50, 1000):
    x = (3 * torch.randn(64, width, generator=torch.Generator().manual_seed(width))).requires_grad_(True)
    y = lml(x, 5.0)
    y.square().sum().backward()
    print(*(hashlib.sha256(part.detach().numpy().tobytes()).hexdigest() for part in (y, x.grad)))
"""
ARGMAX = """
import hashlib, numpy as np
from scipy.sparse import csr_matrix
from xmckit import Context, LinearDecision
from xmckit_argmax.verifier import ArgmaxVerifier
rng = np.random.default_rng(0)
for labels, columns in ((8, 3), (60, 24)):
    decision = LinearDecision(rng.standard_normal((labels, columns)), rng.standard_normal(labels))
    sets = csr_matrix((rng.random((60, labels)) < 3 / labels).astype(np.float32))
    verdicts = ArgmaxVerifier().verify(decision, sets, context=Context()).verdicts
    witnesses = [verdict.witness.tobytes() for verdict in verdicts if verdict.witness is not None]
    print(len(witnesses), hashlib.sha256(b"".join(witnesses)).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [LML, ARGMAX], ids=["lml", "argmax"])
def test_a_process_that_compiles_computes_as_those_that_load(tmp_path, code):
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = [
        subprocess.run([sys.executable, "-c", code], env=variables, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))  # the second process had something to load
    assert outputs[0] == outputs[1]
