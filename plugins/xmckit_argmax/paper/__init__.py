"""The questions of Grivas et al. (2024): their linear program, answers at a tolerance, alternating layers, counts.

`chebyshev` (by `highs`), `tolerance` and `radius` are about the paper's radius; `alternating` counts arcs; `counting`
counts label sets. These modules may use `proofs`, `solver` and `system`.
"""
