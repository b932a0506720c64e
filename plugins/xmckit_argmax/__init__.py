"""The argmaxability verifier: which label sets an output layer can produce, with a proof of every verdict.

The packages: `search` finds, `proofs` proves, `paper` follows Grivas et al. (2024), `checker` checks all of it again,
`cli` has the commands. They import public names of `xmckit` only. Nothing here is public but the components below.
"""

from __future__ import annotations

from collections.abc import Iterator

import xmckit


@xmckit.hookimpl
def xmckit_verifiers() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "argmax",
        "xmckit_argmax.verifier:ArgmaxVerifier",
        summary="Proves for each label set that some vector makes the layer output it, or that no vector does.",
    )


@xmckit.hookimpl
def xmckit_commands() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "certificates",
        "xmckit_argmax.cli.certificates:certificates",
        summary="Check the proofs behind a run's verdicts.",
    )
    yield xmckit.Component(
        "argmax",
        "xmckit_argmax.cli.argmax:argmax",
        summary="Count and draw the label sets that a layer can output.",
    )
