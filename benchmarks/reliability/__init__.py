"""Attack the toolkit and count what got through; each module writes benchmarks/results/reliability_<its name>.json."""
