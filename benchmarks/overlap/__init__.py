"""Measure overlapping clusters (Liu et al., 2021): labels in several leaves of a tree.

`measure` and `page` write docs/overlap.md, which also shows the results of the other modules.
"""
