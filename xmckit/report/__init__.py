"""HTML pages of runs, comparisons and suites; each page is one file that loads nothing else.

Public: the three functions below. Imports runs, store and errors; the objects that a page shows are passed in.
"""

from xmckit.report.comparison_page import write_comparison
from xmckit.report.run_report import write_report
from xmckit.report.suite_page import write_suite

__all__ = ["write_comparison", "write_report", "write_suite"]
