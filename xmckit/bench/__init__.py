"""Run suites of recipes and peers over data sets and seeds; each cell has a child process, a folder and a JSON file.

`suite` reads suite files, `runner` runs the cells that are not done, `child` is the code of the child process, `peers`
wraps other programs, `results` collects and compares cells, `tables` and `plots` show them. Only the command line and
the reports import this package.
"""
