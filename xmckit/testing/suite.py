"""Run the checks of a kind on a component, as results or as pytest tests."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from xmckit import store, testing
from xmckit.context import Context
from xmckit.errors import PluginError, UsageError, XmckitError, nearest, one_line
from xmckit.kinds import KINDS, load
from xmckit.protocols import SupportsConformance, offers
from xmckit.registry import make_context
from xmckit.registry.locations import Location, file_of, is_below, raised_at
from xmckit.testing import fresh_process
from xmckit.testing.assertions import NotApplicable
from xmckit.testing.results import CheckResult
from xmckit.testing.subjects import CheckFunction, kept_folder

if TYPE_CHECKING:
    import pytest

    from xmckit.registry import Registry

DECLARED = ("params", "indexers", "example", "expected_failures")
USABLE = "can_be_constructed"


def checks_of(kind: str) -> Sequence[CheckFunction]:
    """Return the checks of a kind, which stand beside its subject; UsageError if the kind has none."""
    if kind not in KINDS or not KINDS[kind].checks:
        known = [name for name, one in KINDS.items() if one.checks]
        raise UsageError(
            f"there are no checks for the kind '{kind}'{nearest(kind, known)}, only for {', '.join(known)}"
        )
    return load(f"{KINDS[kind].checks.partition(':')[0]}:CHECKS")


@dataclass(frozen=True)
class Case:
    """One component to check: its kind, its registered name or its class, and the parameters to give it.

    `indexers` are specs of indexers that build the indexes for a head. `example` is a path in the format of a reader;
    or a function that takes a folder, writes a small example there, and returns the path for a reader, the parameters
    for a data set. `expected_failures` maps names of checks to the reason why they fail; such a check must fail, or
    it is reported as failed itself.

    A component may declare all of these itself, as entries of a dictionary `conformance`; a case overrides them.
    """

    kind: str
    component: str | type
    params: Mapping[str, Any] = field(default_factory=dict)
    context: Context | None = None
    indexers: Sequence[Any] = ()
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    example: str | Path | Callable[[Path], Any] | None = None

    @property
    def name(self) -> str:
        named = self.component if isinstance(self.component, str) else self.component.__name__
        options = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.kind}:{named}({options})" if options else f"{self.kind}:{named}"

    @cached_property
    def checks(self) -> list[Check]:
        functions = checks_of(self.kind)
        self._check_expected(self.expected_failures)
        return [Check(self, function) for function in functions]

    @cached_property
    def cls(self) -> Any:
        if not isinstance(self.component, str):
            return self.component
        return self._context.resolve(self.kind, self.component)

    @cached_property
    def _context(self) -> Context:
        return self.context or make_context(workers=2)

    @cached_property
    def declaration(self) -> Mapping[str, Any]:
        """What the component itself declares about its checks."""
        declared = self.cls.conformance if offers(self.cls, SupportsConformance) else {}
        if not isinstance(declared, Mapping) or not declared.keys() <= set(DECLARED):
            raise PluginError(f"{self.name}: `conformance` is {declared!r}, expected entries {', '.join(DECLARED)}")
        self._check_expected(declared.get("expected_failures", {}))
        return declared

    @property
    def all_expected(self) -> Mapping[str, str]:
        return {**self.declaration.get("expected_failures", {}), **self.expected_failures}

    def _check_expected(self, expected: Mapping[str, str]) -> None:
        known = [function.__name__ for function in checks_of(self.kind)]
        for name, reason in expected.items():
            if name not in known:
                raise UsageError(f"no check is called '{name}'{nearest(name, known)}")
            if not isinstance(reason, str) or not reason.strip():
                raise UsageError(f"the expected failure of {name} needs a reason")

    @cached_property
    def subject(self) -> Any:
        params = {**self.declaration.get("params", {}), **self.params}
        indexers = self.indexers or self.declaration.get("indexers", ())
        example = self.example if self.example is not None else self.declaration.get("example")
        if callable(example):
            example = example(kept_folder(self))
            if isinstance(example, Mapping):
                params, example = {**example, **params}, None
        return load(KINDS[self.kind].checks)(self.kind, self.cls, params, self._context, indexers, example)

    def results(self) -> Iterator[CheckResult]:
        """Yield one result after the other; a component that cannot be constructed has a single one."""
        begin, error = time.perf_counter(), None
        try:
            _ = self.checks, self.all_expected
            problem = f"to be checked it needs {self.needs}" if self.needs else ""
            if not problem:
                self.subject.component()
        except (Exception, SystemExit) as raised:  # noqa: BLE001  # any error of a component is a result
            error, problem = raised, self.explain(raised)
        if problem:
            yield CheckResult(USABLE, "failed", problem, error, self.name, time.perf_counter() - begin)
            return
        fresh_process.prepare()
        for check in self.checks:
            yield check.run()

    @property
    def needs(self) -> str:
        """What must be given before it can be checked; empty if nothing."""
        needs = self.subject.needs()
        return f"{' and '.join(needs)} (or a `conformance` that declares it)" if needs else ""

    def explain(self, error: BaseException) -> str:
        """Return what a component raised and in which line, or what a check says about it."""
        if isinstance(error, ValidationError):
            return f"it cannot be made with these parameters: {store.reasons(error)}"
        last = traceback.extract_tb(error.__traceback__)[-1]
        by_a_check = isinstance(error, AssertionError) and is_below(last.filename, testing.__file__)
        if (by_a_check and error.__cause__ is None) or isinstance(error, XmckitError):
            return str(error)
        home = "" if isinstance(self.component, str) and "cls" not in vars(self) else file_of(self.cls.__module__)
        where = raised_at(error.__cause__ or error, home) or Location(last.filename, last.lineno)
        return f"{error if by_a_check else one_line(error)} ({where})"


@dataclass(frozen=True)
class Check:
    """One check of one case; `run` gives its result, calling it is the body of a pytest test."""

    case: Case
    function: CheckFunction

    @property
    def name(self) -> str:
        return self.function.__name__

    def run(self) -> CheckResult:
        begin = time.perf_counter()
        result = self._result()
        return replace(result, component=self.case.name, seconds=time.perf_counter() - begin)

    def _result(self) -> CheckResult:
        reason = None
        try:
            reason = self.case.all_expected.get(self.name)
            detail = self.function(self.case.subject) or ""
        except NotApplicable as why:
            if reason is not None:
                return CheckResult(self.name, "failed", f"was expected to fail ({reason}) but does not apply: {why}")
            return CheckResult(self.name, "skipped", str(why))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # any error of a component is a result
            detail = self.case.explain(error)
            if reason is not None:
                return CheckResult(self.name, "xfailed", f"{reason} ({detail})")
            cause = error.__cause__ if isinstance(error, AssertionError) else error
            return CheckResult(self.name, "failed", detail, cause)
        if reason is not None:
            return CheckResult(self.name, "failed", f"was expected to fail ({reason}) but passed")
        return CheckResult(self.name, "passed", detail)

    def __call__(self) -> None:
        import pytest

        result = self.run()
        if result.status == "skipped":
            pytest.skip(result.detail)
        if result.status == "xfailed":
            pytest.xfail(result.detail)
        if result.status == "failed":
            raise AssertionError(result.detail) from result.error


def check_component(
    kind: str,
    component: str | type,
    params: Mapping[str, Any] | None = None,
    *,
    context: Context | None = None,
    indexers: Sequence[Any] = (),
    expected_failures: Mapping[str, str] | None = None,
    example: str | Path | Callable[[Path], Any] | None = None,
) -> list[CheckResult]:
    """Run every check of the kind on one component, given by its registered name or its class."""
    case = Case(kind, component, params or {}, context, indexers, expected_failures or {}, example)
    case.checks  # noqa: B018  # raises for a mistake of the caller
    return list(case.results())


def cases_named(name: str, registry: Registry) -> list[Case]:
    """Return the components that KIND:NAME means, or NAME, which may also be a plugin or a distribution."""
    context = make_context(workers=2, registry=registry)
    kind, colon, rest = name.partition(":")
    if colon:
        registry.component(kind, rest)
        case = Case(kind, rest, context=context)
        case.checks  # noqa: B018  # raises if the kind has none
        return [case]
    names = {
        item: (item.component.name, item.plugin.name, item.plugin.distribution)
        for item in registry.all()
        if KINDS[item.kind].checks
    }
    cases = [Case(item.kind, item.component.name, context=context) for item, known in names.items() if name in known]
    if not cases:
        aside = [plugin for plugin in registry.plugins if name in (plugin.name, plugin.distribution)]
        why = "".join(f"; {plugin.description}: {plugin.problem or plugin.blocked}" for plugin in aside)
        near = nearest(name, {known for item in names.values() for known in item})
        raise PluginError(f"no component, plugin or distribution '{name}' has checks{near}{why}")
    return cases


def parametrize_with_checks(cases: Iterable[Case | tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Return a pytest decorator that makes one test per case and check.

    @parametrize_with_checks([("head", "bsl"), Case("head", MyHead, {"width": 3})])
    def test_contract(check):
        check()
    """
    import pytest

    complete = [case if isinstance(case, Case) else Case(*case) for case in cases]
    checks = [check for case in complete for check in case.checks]
    if not checks:
        raise UsageError("no components to check: a suite that runs nothing shows nothing")
    return pytest.mark.parametrize("check", checks, ids=[f"{check.case.name}-{check.name}" for check in checks])
