"""Hold what all studies share: the loop over cells, Markdown tables, memory, synthetic data and paths.

This package imports no study.
"""
