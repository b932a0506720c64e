"""The result of a check, and the count of checks that really ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

Status = Literal["passed", "failed", "skipped", "xfailed"]


@dataclass(frozen=True)
class CheckResult:
    """One check of one component. `detail` says what the check found, or why it did not apply; `error` is an error that
    the component raised. An expected failure is `xfailed`.
    """

    name: str
    status: Status
    detail: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    component: str = field(default="", compare=False)
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{self.status:7} {self.name}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class Summary:
    """Counts by status. `ran` leaves out skipped checks. A suite in which nothing passed is a failure."""

    passed: int
    failed: int
    skipped: int
    xfailed: int

    @property
    def ran(self) -> int:
        return self.passed + self.failed + self.xfailed

    @property
    def ok(self) -> bool:
        return self.passed > 0 and self.failed == 0

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped, {self.xfailed} xfailed"
        if self.passed or self.failed:
            return counts
        return f"{counts}: no check {'passed' if self.ran else 'ran'}, which is a failure"


def summarise(results: Iterable[CheckResult]) -> Summary:
    counts = Counter(result.status for result in results)
    return Summary(**{status: counts[status] for status in get_args(Status)})
