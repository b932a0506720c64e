"""Compare the tables and figures of the four papers with our own results, in docs/reproduced.md.

`measure` runs the studies and `page` writes the page from `published.toml` and the results. One module per paper makes
its exhibits: `amos`, `grivas`, `liu`, `shen`.
"""
