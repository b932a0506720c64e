"""Measure which label sets the output layers of trained heads can produce (Grivas et al., 2024).

`measure` and `page` write the tables of docs/argmaxability.md; `bottleneck` computes figures 2 and 5 of the paper.
"""
