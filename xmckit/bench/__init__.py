"""Suites of recipes and peers over data sets and seeds: every cell a child process, a run folder and a JSON.

`suite` reads suites, `runner` runs what is not done yet, `child` is what runs in the child process, `peers` are other
programs, `results` collects cells and compares their rows, `tables` and `plots` show them.
"""
