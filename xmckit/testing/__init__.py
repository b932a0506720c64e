"""The contracts as checks, for first-party and third-party components of every kind alike.

    from xmckit.testing import check_component, summarise

    results = check_component("head", "bsl")
    assert summarise(results).ok, "\\n".join(map(str, results))

or, as one pytest test per check, `parametrize_with_checks`; on the command line, `xmckit plugins check head:bsl`.
"""

from __future__ import annotations

from xmckit.testing.assertions import NotApplicable
from xmckit.testing.results import CheckResult, Summary, summarise
from xmckit.testing.suite import Case, Check, cases_named, check_component, parametrize_with_checks

__all__ = [
    "Case", "Check", "CheckResult", "NotApplicable", "Summary", "cases_named", "check_component",
    "parametrize_with_checks", "summarise",
]  # fmt: skip
