"""Check components of every kind against their contracts: the core's own and those of any plugin.

    from xmckit.testing import check_component, summarise

    results = check_component("head", "bsl")
    assert summarise(results).ok, "\\n".join(map(str, results))

`parametrize_with_checks` gives one pytest test per check; `xmckit plugins check head:bsl` does the same on the command
line. Imports the registry and what is below it; public are the names below. `xmckit.kinds` lists the checks of a kind.
"""

from __future__ import annotations

from xmckit.testing.assertions import NotApplicable
from xmckit.testing.results import CheckResult, Summary, summarise
from xmckit.testing.suite import Case, Check, cases_named, check_component, parametrize_with_checks

__all__ = [
    "Case", "Check", "CheckResult", "NotApplicable", "Summary", "cases_named", "check_component",
    "parametrize_with_checks", "summarise",
]  # fmt: skip
