"""Run the checks of a kind on a component, as results or as pytest tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from xmckit.context import Context
from xmckit.errors import UsageError, nearest
from xmckit.registry import make_context
from xmckit.testing import heads
from xmckit.testing.results import FAILED, PASSED, SKIPPED, XFAILED, CheckResult

if TYPE_CHECKING:
    import pytest

_CHECKS: dict[str, tuple[Sequence[Callable[[Any], str]], Callable[..., Any]]] = {
    "head": (heads.CHECKS, heads.HeadSubject),
}


@dataclass(frozen=True)
class Case:
    """One component to check: its kind, its registered name or its class, and the parameters to give it.

    `indexers` are specs of indexers whose indexes a head is given. `expected_failures` maps names of checks to the
    reason why they fail; such a check must fail, or it is reported as failed itself.
    """

    kind: str
    component: str | type
    params: Mapping[str, Any] = field(default_factory=dict)
    context: Context | None = None
    indexers: Sequence[Any] = ()
    expected_failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        named = self.component if isinstance(self.component, str) else self.component.__name__
        options = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.kind}:{named}({options})" if options else f"{self.kind}:{named}"

    @cached_property
    def checks(self) -> list[Check]:
        if self.kind not in _CHECKS:
            raise UsageError(f"there are no checks for the kind '{self.kind}' yet, only for {', '.join(_CHECKS)}")
        functions, _ = _CHECKS[self.kind]
        known = [function.__name__ for function in functions]
        for name in self.expected_failures:
            if name not in known:
                raise UsageError(f"no check is called '{name}'{nearest(name, known)}")
        return [Check(self, function) for function in functions]

    @cached_property
    def subject(self) -> Any:
        context = self.context or make_context(workers=2)
        cls = context.resolve(self.kind, self.component) if isinstance(self.component, str) else self.component
        _, subject = _CHECKS[self.kind]
        return subject(cls, self.params, context, self.indexers)


@dataclass(frozen=True)
class Check:
    """One check of one case; `run` gives its result, calling it is the body of a pytest test."""

    case: Case
    function: Callable[[Any], str]

    @property
    def name(self) -> str:
        return self.function.__name__

    def run(self) -> CheckResult:
        reason = self.case.expected_failures.get(self.name)
        try:
            detail = self.function(self.case.subject)
        except heads.NotApplicable as why:
            return CheckResult(self.name, SKIPPED, str(why))
        except Exception as error:  # noqa: BLE001  # whatever a component raises is the finding
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            if reason is not None:
                return CheckResult(self.name, XFAILED, f"{reason} ({detail})")
            return CheckResult(self.name, FAILED, detail, None if isinstance(error, AssertionError) else error)
        if reason is not None:
            return CheckResult(self.name, FAILED, f"was expected to fail ({reason}) but passed")
        return CheckResult(self.name, PASSED, detail)

    def __call__(self) -> None:
        import pytest

        result = self.run()
        if result.status == SKIPPED:
            pytest.skip(result.detail)
        if result.status == XFAILED:
            pytest.xfail(result.detail)
        if result.status == FAILED:
            raise AssertionError(result.detail) from result.error


def check_component(
    kind: str,
    component: str | type,
    params: Mapping[str, Any] | None = None,
    *,
    context: Context | None = None,
    indexers: Sequence[Any] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Every check of the kind on one component, given by its registered name or its class."""
    case = Case(kind, component, params or {}, context, indexers, expected_failures or {})
    return [check.run() for check in case.checks]


def parametrize_with_checks(cases: Iterable[Case | tuple[Any, ...]]) -> pytest.MarkDecorator:
    """A pytest decorator: one test per case and check.

    @parametrize_with_checks([("head", "bsl"), Case("head", MyHead, {"width": 3})])
    def test_contract(check):
        check()
    """
    import pytest

    complete = [case if isinstance(case, Case) else Case(*case) for case in cases]
    checks = [check for case in complete for check in case.checks]
    if not checks:
        raise UsageError("no components to check: a suite in which nothing runs shows nothing")
    return pytest.mark.parametrize("check", checks, ids=[f"{check.case.name}-{check.name}" for check in checks])
