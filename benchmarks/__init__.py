"""Measure xmckit: one package per study, suites of recipes and peers, and the results of both.

Each study runs as a module from the root of the repository (`python -m benchmarks.heads.measure --help`), writes to
`results/` and may import `common`, other studies, `xmckit` and the plugins. Nothing imports this package but its tests.
"""
