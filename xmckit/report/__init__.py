"""HTML pages of runs, comparisons and suites; each page is one file that loads nothing else.

`run_report`, `comparison_page` and `suite_page` write them; `tables` has the tables that the terminal prints too.
Imports runs, store and errors; the objects that a page shows are passed in. Nothing here is public.
"""
