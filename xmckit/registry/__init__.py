"""The plugin manager: discover, isolate, block, resolve, and say which plugin is at fault.

The core's own components come first, then installed plugins (entry-point group `xmckit`, in the order of their
distribution and name), then files given by `--plugin`. Each is loaded by itself: one that raises on import, gives a
name that is taken, or targets something that does not exist is set aside with its reason, and nothing else breaks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from xmckit import __version__, hookspecs
from xmckit.errors import PluginError, nearest
from xmckit.hookspecs import API_VERSION, ENTRY_POINT_GROUP, OLDEST_API_VERSION, PROJECT, Component
from xmckit.kinds import KINDS, load
from xmckit.registry import builtin
from xmckit.registry.entry_points import EntryPoint, entry_points
from xmckit.registry.locations import Location, NotThere, defined_at, file_of, find_target, one_line, raised_at
from xmckit.registry.trace import Step, print_step

if TYPE_CHECKING:
    from pathlib import Path

    from xmckit.context import Context, Progress

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CORE = "xmckit"
_SHOWN: set[str] = set()  # Python's own memory of warnings is lost whenever somebody changes a filter


@dataclass(frozen=True)
class Plugin:
    """One plugin as it was found. `problem` says why it was set aside, `blocked` why it was not loaded.

    `at` is the place in its code that the problem is about, where there is one. `deprecated` says what of it will cease
    to work.
    """

    name: str
    origin: str  # "core", "installed" or "file"
    distribution: str = ""
    version: str = ""
    file: str = ""
    problem: str = ""
    blocked: str = ""
    at: Location | None = None
    deprecated: tuple[tuple[Location, str], ...] = ()

    @property
    def full_name(self) -> str:
        """By which it can be told from a plugin of the same name in another distribution."""
        return f"{self.distribution}:{self.name}" if self.distribution else self.name

    @property
    def where(self) -> str:
        return str(self.at) if self.at else self.file

    @property
    def described(self) -> str:
        home = f"{self.distribution} {self.version}".strip()
        return f"plugin '{self.name}' ({', '.join(part for part in (home, self.where) if part)})"

    @property
    def source(self) -> str:
        """What somebody has to install, or to name on the command line, to have this plugin; see `how_to_have`."""
        return (
            f"--plugin {os.path.basename(self.file)}"
            if self.origin == "file"
            else f"{self.distribution}=={self.version}"
        )


@dataclass(frozen=True)
class Registered:
    """A component and the plugin that offers it."""

    kind: str
    component: Component
    plugin: Plugin

    @property
    def described(self) -> str:
        return f"{self.kind}:{self.component.name} of {self.plugin.described}"


class _Faulty(Exception):
    """Why a plugin is set aside, and the place in its code that this is about."""

    def __init__(self, reason: str, at: Location | None = None):
        super().__init__(reason)
        self.at = at


class Registry:
    """All components that can be used, by kind and name, and every plugin that was found."""

    def __init__(
        self,
        *,
        allow: Sequence[str] | None = None,
        disable: Sequence[str] = (),
        files: Sequence[Path] = (),
        faulty: Sequence[Plugin] = (),
        listener: Callable[[Step], None] | None = None,
    ):
        """`allow` and `disable` name plugins, distributions or `DISTRIBUTION:PLUGIN`; `allow=None` is all, `allow=[]`
        none but the core.

        Those in `faulty` are set aside as they are, without an import. `listener` hears of every step as it is done;
        `steps` keeps them.
        """
        self.plugins: list[Plugin] = []
        self.steps: list[Step] = []
        self._listener = listener
        self._faulty = {(plugin.full_name, plugin.file): plugin for plugin in faulty}
        self._registered: dict[tuple[str, str], Registered] = {}
        self._holders: list[tuple[Any, Plugin]] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs.specifications())
        self._load(_core(), lambda: builtin)
        found = list(_entry_points())
        for entry, plugin in found:
            reason = _blocked(plugin, allow, disable)
            if reason:
                self.plugins.append(replace(plugin, blocked=reason))
            else:
                self._load(plugin, entry.load, entry)
        for file in dict.fromkeys(files):
            self._load(_of_file(file), functools.partial(_module_from, file))
        known = {name for _, plugin in found for name in (plugin.name, plugin.distribution, plugin.full_name)}
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
            error = str(raised) if isinstance(raised, _Faulty) else one_line(raised)
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

    def _load(self, plugin: Plugin, imported: Callable[[], Any], entry: EntryPoint | None = None) -> None:
        if (plugin.full_name, plugin.file) in self._faulty:
            self.plugins.append(self._faulty[plugin.full_name, plugin.file])
            return
        try:
            with self._noted(Step(plugin.name, "import", plugin.file or plugin.name, 0.0)):
                module = imported()
        except KeyboardInterrupt:
            way_out = f"; XMCKIT_DISABLE_PLUGINS={plugin.name} leaves it out" if plugin.origin == "installed" else ""
            raise KeyboardInterrupt(
                f"{plugin.described} was being imported. If it hangs, `xmckit doctor` says where{way_out}."
            ) from None
        except BaseException as error:  # noqa: BLE001  a plugin may raise anything; it is named, not hidden
            self._set_aside(plugin, _why_not_imported(error, plugin, entry))
            return
        plugin = replace(plugin, file=getattr(module, "__file__", None) or plugin.file)
        try:
            plugin = self._register(plugin, module)
            registered = self._collect(plugin, module)
        except _Faulty as fault:
            self._set_aside(plugin, fault)
            return
        self._holders.append((module, plugin))
        self._registered.update(registered)
        self.plugins.append(plugin)
        self._show_deprecated(plugin)

    def _set_aside(self, plugin: Plugin, fault: _Faulty) -> None:
        self.plugins.append(replace(plugin, problem=str(fault), at=fault.at))

    def _register(self, plugin: Plugin, module: Any) -> Plugin:
        """Let pluggy look at the plugin's hooks; the plugin is returned with what it was warned of."""
        for known, holder in self._holders:
            if known is module:
                raise _Faulty(
                    f"its module is registered already, as {holder.described}: leave out one of the two entry points"
                )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._manager.register(module, name=f"{plugin.origin}:{plugin.distribution}:{plugin.name}")
                self._manager.check_pending()
            except (pluggy.PluginValidationError, ValueError) as error:
                self._forget(module)
                raise _why_not_registered(error, module) from None
        told = tuple((Location(one.filename, one.lineno), str(one.message)) for one in caught)
        return replace(plugin, deprecated=told)

    def _forget(self, module: Any) -> None:
        if self._manager.is_registered(module):
            self._manager.unregister(module)

    def _show_deprecated(self, plugin: Plugin) -> None:
        """To the user, who chose the plugin: Python shows a DeprecationWarning to nobody else than its author."""
        for at, told in plugin.deprecated:
            message = f"{plugin.described}: {told}"
            if message not in _SHOWN:
                _SHOWN.add(message)
                warnings.warn_explicit(message, FutureWarning, at.file, at.line or 1)

    def _collect(self, plugin: Plugin, module: Any) -> dict[tuple[str, str], Registered]:
        """Ask one plugin what it offers; _Faulty if anything about it is wrong."""
        try:
            collected: dict[tuple[str, str], Registered] = {}
            for name, kind in KINDS.items():
                for component in self._ask(plugin, module, kind.hook, collected, name):
                    collected[name, component.name] = Registered(name, component, plugin)
            return collected
        except _Faulty:
            self._forget(module)
            raise

    def _ask(
        self, plugin: Plugin, module: Any, hook: str, collected: Mapping[tuple[str, str], Registered], kind: str
    ) -> Iterator[Component]:
        """What the plugin gives for one hook, each record checked."""
        others = [other for other in self._manager.get_plugins() if other is not module]
        caller = self._manager.subset_hook_caller(hook, others)
        at = next((defined_at(own.function) for own in caller.get_hookimpls()), None)
        try:
            with self._noted(Step(plugin.name, "hook", hook, 0.0)) as answers:
                answers.extend(_records(answer, hook) for answer in caller())
                if at is not None and not answers:
                    raise _Faulty(f"its {hook}() gave None, expected {_EXPECTED}")
        except _Faulty as fault:
            raise _Faulty(str(fault), at) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001  see above
            raise _Faulty(f"its {hook}() raised {one_line(error)}", raised_at(error, plugin.file) or at) from None
        for component in itertools.chain.from_iterable(answers):
            try:
                _check_component(component, hook, plugin)
                if kind == "command" and component.name.count(".") > 1:
                    raise _Faulty(f"its {hook}() gave the name '{component.name}', expected at most one dot")
                if plugin.origin != "core":  # the core's own are tested once, not at every start
                    find_target(component.target)
            except (_Faulty, NotThere) as fault:
                raise _Faulty(str(fault), at) from None
            taken = self._registered.get((kind, component.name)) or collected.get((kind, component.name))
            if taken is not None:
                raise _Faulty(f"it offers {kind}:{component.name}, {_already(taken.plugin, plugin)}", at)
            yield component

    @property
    def problems(self) -> list[Plugin]:
        """The plugins that were set aside."""
        return [plugin for plugin in self.plugins if plugin.problem]

    def names(self, kind: str) -> list[str]:
        return sorted(name for of, name in self._registered if of == kind)

    def all(self) -> list[Registered]:
        """Every component, by kind in the order of `xmckit.kinds.KINDS`, then by name."""
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
            blocked = [f"{plugin.name} ({plugin.blocked})" for plugin in self.plugins if plugin.blocked]
            left_out = f" Not loaded: {', '.join(blocked)}." if blocked else ""
            raise PluginError(
                f"no {kind} named '{name}'{nearest(name, known)} (known: {', '.join(known)}).{aside}{left_out}"
            )
        return found

    def resolve(self, kind: str, name: str) -> Any:
        """The component itself, imported; PluginError names the plugin when it fails or breaks its contract."""
        registered = self.component(kind, name)
        component = registered.component
        try:
            with self._importing(registered):
                target = load(component.target)
        except (Exception, SystemExit) as error:
            hint = f" Install what it needs: pip install '{component.requires}'" if component.requires else ""
            at = place_of(error, registered)
            place = f" ({at})" if at else ""
            raise PluginError(
                f"{registered.described} cannot be imported from {component.target}: {one_line(error)}{place}.{hint}"
            ) from error
        missing = _missing_promises(kind, target)
        if missing:
            raise PluginError(
                f"{registered.described}: {component.target} ({self.locate(kind, name)}) lacks {', '.join(missing)}"
            )
        return target

    def at_fault(self, error: BaseException) -> tuple[Plugin, Location] | None:
        """The plugin from whose code an error comes, and where; None where it is from the core alone."""
        others = (plugin for plugin in self.plugins if plugin.origin != "core")
        return next(((plugin, at) for plugin in others if (at := raised_at(error, plugin.file))), None)

    def offered(self, kind: str) -> list[Component]:
        """The components of a kind in the order in which they were given: the core's first."""
        return [item.component for item in self._registered.values() if item.kind == kind]

    def locate(self, kind: str, name: str) -> Location:
        registered = self.component(kind, name)
        try:
            return find_target(registered.component.target)
        except NotThere as fault:  # it was there when the plugin was loaded
            raise PluginError(f"{registered.described}: {fault}") from None


def how_to_have(source: str) -> str:
    """Where a component came from and what to do to have it again, from what `Plugin.source` was then."""
    if source.startswith("--plugin "):
        return f"a file of its own: give it with {source}"
    distribution, _, version = source.partition("==")
    there = _version_of(distribution)
    if not there:
        return f"the distribution {distribution} {version}, which is not installed: pip install '{source}'"
    if there != version:
        return f"the distribution {distribution} {version} (installed is {there}): pip install '{source}'"
    return f"the distribution {distribution} {version}, which is installed"


def place_of(error: BaseException, registered: Registered) -> Location | None:
    """Where in the code behind a component an error comes from; None if it has no part in it, or is the core's own."""
    if registered.plugin.origin == "core":
        return None
    homes = (registered.plugin.file, file_of(registered.component.target.partition(":")[0]))
    return next(filter(None, (raised_at(error, home) for home in homes)), None)


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


def _entry_points() -> Iterator[tuple[EntryPoint, Plugin]]:
    def order(entry: EntryPoint) -> tuple[bool, str, str]:
        return entry.distribution != _CORE, entry.distribution, entry.name

    for entry in sorted(entry_points(ENTRY_POINT_GROUP), key=order):
        yield entry, Plugin(entry.name, "installed", entry.distribution, entry.version, file_of(entry.module))


def _core() -> Plugin:
    return Plugin(_CORE, "core", _CORE, __version__, builtin.__file__)


def _of_file(file: Path) -> Plugin:
    return Plugin(file.stem, "file", file=str(file))


def _version_of(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _blocked(plugin: Plugin, allow: Sequence[str] | None, disable: Sequence[str]) -> str:
    names = {plugin.name, plugin.distribution, plugin.full_name}
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
    same = found is not None and found.origin is not None and os.path.realpath(found.origin) == str(file)
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


def _why_not_imported(error: BaseException, plugin: Plugin, entry: EntryPoint | None) -> _Faulty:
    """What somebody should know whose plugin could not be imported."""
    if entry is not None and not entry.module:
        said = f"its entry point is '{entry.value}', expected package.module or package.module:attribute"
        return _Faulty(said, entry.at)
    if entry is not None and isinstance(error, ModuleNotFoundError) and _is_part_of(error.name, entry.module):
        return _Faulty(
            f"its entry point names the module {entry.module}, which is not there: install {plugin.distribution} again",
            entry.at,
        )
    raised = raised_at(error, plugin.file)
    if entry is not None and entry.attribute and isinstance(error, AttributeError) and not raised:
        return _Faulty(f"its entry point names {entry.value}, which is not there: {error}", entry.at)
    newer = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == _CORE
    hint = f". This is xmckit {__version__}: is the plugin for another one?" if newer else ""
    return _Faulty(f"it raised on import: {one_line(error)}{hint}", raised)


def _is_part_of(missing: str | None, module: str) -> bool:
    return missing is not None and f"{module}.".startswith(f"{missing}.")


def _why_not_registered(error: Exception, module: Any) -> _Faulty:
    text = one_line(error)
    found = re.search(r"hook '(\w+)'", text)
    at = defined_at(getattr(module, found.group(1), None) or (lambda: None)) if found else None
    if found and "unknown hook" in text:
        hook, known = found.group(1), [kind.hook for kind in KINDS.values()]
        return _Faulty(
            f"it implements '{hook}', which is no hook of xmckit{nearest(hook, known)} (this is version "
            f"{API_VERSION} of the contracts)",
            at,
        )
    return _Faulty(f"its hooks do not fit: {text}", at)


_MOST = 10_000  # components of one hook of one plugin
_EXPECTED = "xmckit.Component records: return a list of them, or yield each"


def _records(answer: Any, hook: str) -> list[Component]:
    """What a hook gave, as a list; a record that is not one is found later."""
    if isinstance(answer, (str, bytes, Mapping)) or not hasattr(answer, "__iter__"):
        raise _Faulty(f"its {hook}() gave {answer!r}, which is not iterable as {_EXPECTED}")
    records = list(itertools.islice(answer, _MOST + 1))
    if len(records) > _MOST:
        raise _Faulty(f"its {hook}() gave more than {_MOST} components: does it ever end?")
    return records


def _check_component(component: object, hook: str, plugin: Plugin) -> None:
    if not isinstance(component, Component):
        raise _Faulty(f"its {hook}() gave {component!r}, expected {_EXPECTED}")
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
    if not OLDEST_API_VERSION <= component.api_version <= API_VERSION:
        raise _Faulty(_other_version(component, plugin))


def _other_version(component: Component, plugin: Plugin) -> str:
    """Why a component for other contracts cannot be used, and what to do."""
    written = f"{component.name} was written for version {component.api_version} of the contracts and this xmckit"
    if component.api_version > API_VERSION:
        older = f", or install an older {plugin.distribution}" if plugin.distribution else ""
        return f"{written} has version {API_VERSION}: upgrade xmckit (pip install --upgrade xmckit){older}"
    remedy = (
        f"upgrade the plugin (pip install --upgrade {plugin.distribution}), or install an older xmckit"
        if plugin.distribution
        else "upgrade the plugin: `xmckit plugins new` writes one of today to compare with"
    )
    return f"{written} takes versions from {OLDEST_API_VERSION} to {API_VERSION}: {remedy}"


def _missing_promises(kind: str, target: Any) -> list[str]:
    """What the kind's protocol asks for and the target does not have: methods, and parameters that they are given."""
    if kind == "command":
        return [] if hasattr(target, "main") else ["main(): a click command is expected"]
    protocol = load(KINDS[kind].protocol)
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = [f"{name}()" for name in methods if not callable(getattr(target, name, None))]
    for name in methods:
        missing += [f"{one} in {name}()" for one in not_taken(getattr(protocol, name), getattr(target, name, None))]
    if not hasattr(target, "Params"):
        missing.append("Params")
    if "save" in methods and not callable(getattr(target, "load", None)):
        missing.append("load()")
    unwritten = sorted(getattr(target, "__abstractmethods__", ())) if inspect.isabstract(target) else []
    return missing + [f"{name}()" for name in unwritten]


def not_taken(promised: Callable[..., Any], own: Any) -> list[str]:
    """The parameters that a method is given by name and does not know; none if it cannot be asked."""
    try:
        wanted, taken = (list(inspect.signature(method).parameters.values()) for method in (promised, own))
    except (TypeError, ValueError):  # no function, or one that is not written in Python
        return []
    names = {parameter.name for parameter in taken}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        return []
    return [one.name for one in wanted if one.kind is one.KEYWORD_ONLY and one.name not in names]


def found_plugins(files: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> list[Plugin]:
    """The plugins that `registry_from_environment` would load, the core first; none of their code is run."""
    allow, disable = _asked(os.environ if environment is None else environment)
    installed = [plugin for _, plugin in _entry_points() if not _blocked(plugin, allow, disable)]
    return [_core(), *installed, *map(_of_file, dict.fromkeys(file.resolve() for file in files))]


def registry_from_environment(
    files: Sequence[Path] = (), environment: Mapping[str, str] | None = None, *, faulty: Sequence[Plugin] = ()
) -> Registry:
    """The registry as `XMCKIT_PLUGINS` (allow-list; empty = none) and `XMCKIT_DISABLE_PLUGINS` ask for it.

    `XMCKIT_TRACE`, unless it is empty or 0, prints every step to stderr as it is done. `faulty` are set aside.
    """
    environment = os.environ if environment is None else environment
    allow, disable = _asked(environment)
    return Registry(
        allow=allow,
        disable=disable,
        files=[file.resolve() for file in files],
        faulty=faulty,
        listener=print_step if environment.get("XMCKIT_TRACE", "0") not in ("", "0") else None,
    )


def _asked(environment: Mapping[str, str]) -> tuple[list[str] | None, list[str]]:
    """What the environment allows, None for everything, and what it disables."""
    allow = environment.get("XMCKIT_PLUGINS")
    return None if allow is None else _split(allow), _split(environment.get("XMCKIT_DISABLE_PLUGINS", ""))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


_default: Registry | None = None


def default_registry() -> Registry:
    """The registry of this process, made on first use."""
    global _default
    if _default is None:
        _default = registry_from_environment()
    return _default


@contextlib.contextmanager
def as_default(registry: Registry) -> Iterator[None]:
    """Make `registry` the one that `default_registry` returns (the command line does, for `--plugin`), for a while."""
    global _default
    before, _default = _default, registry
    try:
        yield
    finally:
        _default = before


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
