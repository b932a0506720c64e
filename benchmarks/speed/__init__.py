"""Compare the speed of xmckit with the strongest alternatives, each in one run on one machine.

`measure` runs all other modules and `page` writes docs/speed.md (`make bench`).
"""
