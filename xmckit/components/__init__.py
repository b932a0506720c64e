"""The core's own components: featurizers, metrics, the popularity baseline, executors; and the rules of ensembles.

They are registered in `xmckit.registry.builtin` like a plugin's. Imports data, sparse and the contracts.
"""
