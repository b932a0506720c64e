"""The proofs: turn the results of the search into verdicts, in float64 with error bounds or in exact arithmetic.

`prover` uses the other modules, and may import `search`, `records` and `system`; the others import numpy, torch, numba
and flint only.
"""
