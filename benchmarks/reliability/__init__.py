"""Attack the toolkit and count what got through; each module writes `results/<its name>.json`."""
