"""The core's own components: featurizers, metrics, the popularity baseline, executors, and the rules of ensembles.

It may import data, sparse and the root modules below them, and no torch. Components reach other code through the
registry (`registry/builtin.py` lists them); `metrics` and `ensembles` also offer functions to the rest of the core.
"""
