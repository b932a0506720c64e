"""The plugin manager: discover, isolate, block, resolve, and say which plugin is at fault.

The core's own components come first, then installed plugins (entry-point group `xmckit`, in the order of their
distribution and name), then files given by `--plugin`. Each is loaded by itself: one that raises on import, gives a
name that is taken, or targets something that does not exist is set aside with its reason, and nothing else breaks.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from xmckit import builtin, hookspecs
from xmckit.errors import PluginError, nearest
from xmckit.hookspecs import API_VERSION, ENTRY_POINT_GROUP, KINDS, OLDEST_API_VERSION, PROJECT, Component
from xmckit.tracing import Step, print_step

if TYPE_CHECKING:
    from xmckit.context import Context, Progress

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CORE = "xmckit"


@dataclass(frozen=True)
class Plugin:
    """One plugin as it was found. `problem` says why it was set aside, `blocked` why it was not loaded."""

    name: str
    origin: str  # "core", "installed" or "file"
    distribution: str = ""
    version: str = ""
    file: str = ""
    problem: str = ""
    blocked: str = ""

    @property
    def described(self) -> str:
        home = f"{self.distribution} {self.version}".strip()
        return f"plugin '{self.name}' ({', '.join(part for part in (home, self.file) if part)})"


@dataclass(frozen=True)
class Registered:
    """A component and the plugin that offers it."""

    kind: str
    component: Component
    plugin: Plugin

    @property
    def described(self) -> str:
        return f"{self.kind}:{self.component.name} of {self.plugin.described}"


@dataclass(frozen=True)
class Location:
    """Where a target is defined, found without importing it."""

    file: str
    line: int | None


class _Faulty(Exception):
    """Why a plugin is set aside."""


class Registry:
    """All components that can be used, by kind and name, and every plugin that was found."""

    def __init__(
        self,
        *,
        allow: Sequence[str] | None = None,
        disable: Sequence[str] = (),
        files: Sequence[Path] = (),
        listener: Callable[[Step], None] | None = None,
    ):
        """`allow` and `disable` name plugins or distributions; `allow=None` is all, `allow=[]` none but the core.

        `listener` hears of every step as it is done; `steps` keeps them.
        """
        self.plugins: list[Plugin] = []
        self.steps: list[Step] = []
        self._listener = listener
        self._registered: dict[tuple[str, str], Registered] = {}
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._load(Plugin(_CORE, "core", _CORE, _version_of(_CORE), builtin.__file__), lambda: builtin)
        found = list(_entry_points())
        for entry, plugin in found:
            reason = _blocked(plugin, allow, disable)
            if reason:
                self.plugins.append(replace(plugin, blocked=reason))
            else:
                self._load(plugin, entry.load)
        for file in files:
            self._load(Plugin(file.stem, "file", file=str(file)), functools.partial(_module_from, file))
        known = {name for _, plugin in found for name in (plugin.name, plugin.distribution)}
        self.unknown_names = sorted(({*(allow or ()), *disable}) - known)

    @contextlib.contextmanager
    def _noted(self, step: Step) -> Iterator[list[list[Component]]]:
        """Keep the step with its time, and with the answers put into the list or the error it ended with."""
        answers: list[list[Component]] = []
        begin, error = time.perf_counter(), ""
        try:
            with _prints_to_stderr():
                yield answers
        except BaseException as raised:
            error = _one_line(raised)
            raise
        finally:
            count = sum(map(len, answers)) if answers else None
            done = replace(step, seconds=time.perf_counter() - begin, components=count, error=error)
            self.steps.append(done)
            if self._listener is not None:
                self._listener(done)

    def _importing(self, registered: Registered) -> contextlib.AbstractContextManager[Any]:
        """Only the first time is a step: components are resolved over and over again."""
        target = registered.component.target
        if target.partition(":")[0] in sys.modules:
            return _prints_to_stderr()
        return self._noted(Step(registered.plugin.name, "component", target, 0.0))

    def _load(self, plugin: Plugin, imported: Callable[[], Any]) -> None:
        try:
            with self._noted(Step(plugin.name, "import", plugin.file or plugin.name, 0.0)):
                module = imported()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  a plugin may raise anything; it is named, not hidden
            self._set_aside(plugin, f"it raised on import: {_one_line(error)}")
            return
        plugin = replace(plugin, file=getattr(module, "__file__", None) or plugin.file)
        try:
            registered = self._collect(plugin, module)
        except _Faulty as fault:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            self._set_aside(plugin, str(fault))
            return
        self._registered.update(registered)
        self.plugins.append(plugin)

    def _set_aside(self, plugin: Plugin, problem: str) -> None:
        self.plugins.append(replace(plugin, problem=problem))

    def _collect(self, plugin: Plugin, module: Any) -> dict[tuple[str, str], Registered]:
        """Ask one plugin what it offers; _Faulty if anything about it is wrong."""
        try:
            self._manager.register(module, name=f"{plugin.origin}:{plugin.distribution}:{plugin.name}")
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise _Faulty(_explain_registration(error)) from None
        others = [other for other in self._manager.get_plugins() if other is not module]
        collected: dict[tuple[str, str], Registered] = {}
        for kind, hook in KINDS.items():
            try:
                with self._noted(Step(plugin.name, "hook", hook, 0.0)) as answers:
                    answers.extend(list(answer) for answer in self._manager.subset_hook_caller(hook, others)())
            except (Exception, SystemExit) as error:  # noqa: BLE001  see above
                raise _Faulty(f"its {hook}() raised {_one_line(error)}") from None
            for component in itertools.chain.from_iterable(answers):
                _check_component(component, hook)
                if plugin.origin != "core":  # the core's own are tested once, not at every start
                    find_target(component.target)
                key = (kind, component.name)
                taken = self._registered.get(key) or collected.get(key)
                if taken is not None:
                    raise _Faulty(f"it offers {kind}:{component.name}, {_already(taken.plugin, plugin)}")
                collected[key] = Registered(kind, component, plugin)
        return collected

    @property
    def problems(self) -> list[Plugin]:
        """The plugins that were set aside."""
        return [plugin for plugin in self.plugins if plugin.problem]

    def names(self, kind: str) -> list[str]:
        return sorted(name for of, name in self._registered if of == kind)

    def all(self) -> list[Registered]:
        """Every component, by kind in the order of `hookspecs.KINDS`, then by name."""
        order = list(KINDS)
        return sorted(self._registered.values(), key=lambda item: (order.index(item.kind), item.component.name))

    def component(self, kind: str, name: str) -> Registered:
        """The component's record, or PluginError with the nearest name and what was set aside."""
        if kind not in KINDS:
            raise PluginError(f"there is no kind '{kind}'{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
        found = self._registered.get((kind, name))
        if found is None:
            known = self.names(kind)
            aside = "".join(f" Set aside: {plugin.described}: {plugin.problem}." for plugin in self.problems)
            raise PluginError(f"no {kind} named '{name}'{nearest(name, known)} (known: {', '.join(known)}).{aside}")
        return found

    def resolve(self, kind: str, name: str) -> Any:
        """The component itself, imported; PluginError names the plugin when it fails or breaks its contract."""
        registered = self.component(kind, name)
        component = registered.component
        try:
            with self._importing(registered):
                target = _import_target(component.target)
        except (Exception, SystemExit) as error:
            hint = f" Install what it needs: pip install '{component.requires}'" if component.requires else ""
            raise PluginError(
                f"{registered.described} cannot be imported from {component.target}: {_one_line(error)}.{hint}"
            ) from error
        missing = _missing_promises(kind, target)
        if missing:
            raise PluginError(f"{registered.described}: {component.target} lacks {', '.join(missing)}")
        return target

    def offered(self, kind: str) -> list[Component]:
        """The components of a kind in the order in which they were given: the core's first."""
        return [item.component for item in self._registered.values() if item.kind == kind]

    def locate(self, kind: str, name: str) -> Location:
        registered = self.component(kind, name)
        try:
            return find_target(registered.component.target)
        except _Faulty as fault:  # it was there when the plugin was loaded
            raise PluginError(f"{registered.described}: {fault}") from None


def _already(holder: Plugin, newcomer: Plugin) -> str:
    """Why a name cannot be given a second time, and what to do about it."""
    if holder == newcomer:
        return "a name that it offers twice"
    if holder.origin == "core":
        return f"a name that {holder.described} already has and keeps: choose another"
    way_out = f"set XMCKIT_DISABLE_PLUGINS={holder.name}" if holder.origin == "installed" else "leave that file out"
    return f"a name that {holder.described} already has; to replace that one, {way_out}"


@contextlib.contextmanager
def _prints_to_stderr() -> Iterator[None]:
    """Results go to stdout; what a plugin prints while it is imported is none."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _entry_points() -> Iterator[tuple[importlib.metadata.EntryPoint, Plugin]]:
    def order(entry: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
        home = entry.dist.name if entry.dist else ""
        return home != _CORE, home, entry.name

    seen: set[tuple[str, str]] = set()
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=order):
        home = entry.dist.name if entry.dist else ""
        # An editable install beside a wheel lists the same entry twice.
        if (home, entry.name) in seen:
            continue
        seen.add((home, entry.name))
        version = entry.dist.version if entry.dist else ""
        yield entry, Plugin(entry.name, "installed", home, version, _file_of(entry.module))


def _file_of(module: str) -> str:
    """The file of a top-level package, found without running any of its code."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return ""
    return (spec.origin or "") if spec else ""


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _blocked(plugin: Plugin, allow: Sequence[str] | None, disable: Sequence[str]) -> str:
    names = {plugin.name, plugin.distribution}
    if names & set(disable):
        return "disabled by XMCKIT_DISABLE_PLUGINS"
    if allow is not None and not names & set(allow):
        return "not in XMCKIT_PLUGINS"
    return ""


def _module_from(file: Path) -> ModuleType:
    """Import one Python file as a module named after it, so that its components can say `name:Class`."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    name = file.stem
    if not name.isidentifier():
        raise ImportError(f"'{name}' is not a Python name; rename the file, for instance to my_plugin.py")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    found = None if loaded is not None else importlib.util.find_spec(name)
    # With the working folder on the path, Python would find the very same file.
    same = found is not None and found.origin is not None and Path(found.origin).resolve() == file
    if loaded is not None or (found is not None and not same):
        raise ImportError(f"a module named '{name}' exists already; rename the file")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _explain_registration(error: Exception) -> str:
    text = _one_line(error)
    unknown = re.search(r"unknown hook '(\w+)'", text)
    if unknown:
        hook = unknown.group(1)
        return f"it implements '{hook}', which is no hook of xmckit{nearest(hook, KINDS.values())}"
    return f"its hooks do not fit: {text}"


def _check_component(component: object, hook: str) -> None:
    if not isinstance(component, Component):
        raise _Faulty(f"its {hook}() gave {component!r}, expected xmckit.Component records")
    if not isinstance(component.name, str) or not _NAME.fullmatch(component.name):
        raise _Faulty(
            f"its {hook}() gave the name {component.name!r}, expected lower-case letters, digits, '-', '.', '_'"
        )
    texts = {"target": component.target, "summary": component.summary, "requires": component.requires}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise _Faulty(f"{component.name} has the {field} {value!r}, expected text")
    if not isinstance(component.api_version, int):
        raise _Faulty(f"{component.name} has the api_version {component.api_version!r}, expected a whole number")
    if component.api_version > API_VERSION:
        raise _Faulty(
            f"{component.name} was written for version {component.api_version} of the contracts and this xmckit has "
            f"version {API_VERSION}: upgrade xmckit"
        )
    if component.api_version < OLDEST_API_VERSION:
        raise _Faulty(
            f"{component.name} was written for version {component.api_version} of the contracts and this xmckit takes "
            f"version {OLDEST_API_VERSION} or newer: upgrade the plugin"
        )


def find_target(target: str) -> Location:
    """File and line of `package.module:attribute` without importing the module itself; _Faulty if it is not there."""
    module, colon, attribute = target.partition(":")
    if not colon or not module or not all(part.isidentifier() for part in attribute.split(".")):
        raise _Faulty(f"target '{target}' is not of the form package.module:attribute")
    spec = _find_module(module)
    if spec is None:
        raise _Faulty(f"target {target}: there is no module {module}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return Location(spec.origin or "", None)
    source = _source_of(spec, target)
    first = attribute.partition(".")[0]
    # A regular expression settles the usual case in microseconds; `--help` pays for every registered target.
    plain = re.search(rb"^(?:class|def) " + first.encode() + rb"\b", source, re.MULTILINE)
    if plain:
        return Location(spec.origin, source.count(b"\n", 0, plain.start()) + 1)
    try:
        names = dict(_bound_names(ast.parse(source, filename=spec.origin).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # all that ast.parse may raise
        raise _Faulty(f"target {target}: {_one_line(error)}") from None
    if first in names:
        return Location(spec.origin, names[first])
    if "*" in names or "__getattr__" in names:
        return Location(spec.origin, None)
    raise _Faulty(f"target {target}: {spec.origin} defines no {first}{nearest(first, names)}")


def _source_of(spec: ModuleSpec, target: str) -> bytes:
    """Through the module's own loader, because a package may lie in a zip file."""
    assert spec.origin is not None
    try:
        read = getattr(spec.loader, "get_data", None)
        return bytes(read(spec.origin)) if read else Path(spec.origin).read_bytes()
    except OSError as error:
        raise _Faulty(f"target {target}: {_one_line(error)}") from None


def _find_module(module: str) -> ModuleSpec | None:
    """The spec of a module. Unlike importlib's find_spec it does not run the packages above it, which may be heavy."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ValueError, ImportError):
        return None
    for depth in range(len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join([top, *parts[: depth + 1]]), spec.submodule_search_locations)
    return spec


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The names that statements at module level may bind, with their lines."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name, statement.lineno
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield (alias.asname or alias.name).partition(".")[0], statement.lineno
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for node in (node for target in targets for node in ast.walk(target)):
                if isinstance(node, ast.Name):
                    yield node.id, statement.lineno
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _bound_names(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _bound_names(handler.body)


def _import_target(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _missing_promises(kind: str, target: Any) -> list[str]:
    """The names that the kind's protocol asks for and the target does not have."""
    if kind == "command":
        return [] if hasattr(target, "main") else ["main(): a click command is expected"]
    from xmckit.protocols import PROTOCOLS

    protocol = PROTOCOLS[kind]
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = [f"{name}()" for name in methods if not callable(getattr(target, name, None))]
    if not hasattr(target, "Params"):
        missing.append("Params")
    if "save" in methods and not callable(getattr(target, "load", None)):
        missing.append("load()")
    return missing


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def registry_from_environment(files: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> Registry:
    """The registry as `XMCKIT_PLUGINS` (allow-list; empty = none) and `XMCKIT_DISABLE_PLUGINS` ask for it.

    `XMCKIT_TRACE`, unless it is empty or 0, prints every step to stderr as it is done.
    """
    environment = os.environ if environment is None else environment
    allow = environment.get("XMCKIT_PLUGINS")
    return Registry(
        allow=None if allow is None else _split(allow),
        disable=_split(environment.get("XMCKIT_DISABLE_PLUGINS", "")),
        files=[Path(file).resolve() for file in files],
        listener=print_step if environment.get("XMCKIT_TRACE", "0") not in ("", "0") else None,
    )


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


_default: Registry | None = None


def default_registry() -> Registry:
    """The registry of this process, made on first use."""
    global _default
    if _default is None:
        _default = registry_from_environment()
    return _default


def set_default_registry(registry: Registry) -> None:
    """Make `registry` the one that `default_registry` returns (the command line does, for `--plugin`)."""
    global _default
    _default = registry


def make_context(
    *,
    seed: int = 0,
    workers: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
    executor: str = "threads",
    registry: Registry | None = None,
) -> Context:
    """A context that can build every registered component; `workers=0` is one for each processor."""
    from xmckit.context import Context, cpu_count, silent

    registry = registry or default_registry()
    return Context(
        seed=seed,
        workers=workers or cpu_count(),
        progress=progress or silent,
        folder=folder,
        executor=registry.resolve("executor", executor)(),
        resolve=registry.resolve,
        names=registry.names,
    )
