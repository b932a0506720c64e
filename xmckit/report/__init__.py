"""Pages that people look at, each one HTML file that needs nothing else: of a run, of a comparison, of a suite."""

from xmckit.report.comparison_page import write_comparison as write_comparison
from xmckit.report.run_report import write_report as write_report
from xmckit.report.suite_page import write_suite as write_suite

__all__ = ["write_comparison", "write_report", "write_suite"]
