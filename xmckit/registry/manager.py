"""The plugin manager: find plugins, load each in isolation, and resolve components by kind and name.

The core's own components come first, then installed plugins (entry-point group `xmckit`, in the order of their
distribution and name), then files given by `--plugin`. A plugin that raises on import, gives a name that is taken, or
targets something that does not exist is set aside with the reason; all others still work.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pluggy

from xmckit import __version__, hookspecs
from xmckit.errors import PluginError, nearest, one_line
from xmckit.hookspecs import ENTRY_POINT_GROUP, PROJECT, Component
from xmckit.kinds import KINDS, load
from xmckit.registry import builtin
from xmckit.registry.component_checks import EXPECTED, check_component, listed_components, name_taken
from xmckit.registry.contract import missing_members
from xmckit.registry.crashes import ImportJournal
from xmckit.registry.entry_points import EntryPoint, entry_points
from xmckit.registry.importing import import_fault, import_file, registration_fault, stdout_to_stderr, watch_interrupts
from xmckit.registry.locations import Location, NotThere, defined_at, file_of, find_target, raised_at
from xmckit.registry.plugins import FaultyPlugin, Plugin, Registered, place_of
from xmckit.registry.trace import Step

if TYPE_CHECKING:
    from pathlib import Path

_warned: set[str] = set()  # Python forgets which warnings it showed when a filter changes


class Registry:
    """All usable components, by kind and name, and all plugins."""

    def __init__(
        self,
        *,
        allow: Sequence[str] | None = None,
        disable: Sequence[str] = (),
        files: Sequence[Path] = (),
        faulty: Sequence[Plugin] = (),
        journal: ImportJournal | None = None,
        listener: Callable[[Step], None] | None = None,
    ):
        """Load the core, the installed plugins and `files`.

        `allow` and `disable` name plugins, distributions or `DISTRIBUTION:PLUGIN`; `allow=None` allows all, `allow=[]`
        only the core. Plugins in `faulty` are set aside without an import. `journal` notes which installed plugin
        is being imported. `listener` is called after every step; `steps` keeps all of them.
        """
        self.plugins: list[Plugin] = []
        self.steps: list[Step] = []
        self._listener = listener
        self._faulty = {(plugin.full_name, plugin.file): plugin for plugin in faulty}
        self._registered: dict[tuple[str, str], Registered] = {}
        self._holders: list[tuple[Any, Plugin]] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs.specifications())
        self._was_interrupted: Callable[[], bool] = lambda: True
        self._load(core_plugin(), lambda: builtin)
        installed = list(installed_plugins())
        self.journal = journal or ImportJournal("")
        with watch_interrupts() as self._was_interrupted, contextlib.closing(self.journal):
            for entry, plugin in installed:
                reason = why_blocked(plugin, allow, disable)
                if reason:
                    self.plugins.append(replace(plugin, blocked=reason))
                else:
                    with self.journal.importing(plugin):
                        self._load(plugin, entry.load, entry)
            for file in dict.fromkeys(files):
                self._load(file_plugin(file), functools.partial(import_file, file))
        known = {name for _, plugin in installed for name in (plugin.name, plugin.distribution, plugin.full_name)}
        self.unknown_names = sorted(({*(allow or ()), *disable}) - known)

    @contextlib.contextmanager
    def _trace_step(self, step: Step) -> Iterator[list[list[Component]]]:
        """Record the step with its time, and with the answers that the block puts into the list, or its error."""
        answers: list[list[Component]] = []
        begin, error = time.perf_counter(), ""
        try:
            with stdout_to_stderr():
                yield answers
        except BaseException as raised:
            error = str(raised) if isinstance(raised, FaultyPlugin) else one_line(raised)
            raise
        finally:
            count = sum(map(len, answers)) if answers else None
            done = replace(step, seconds=time.perf_counter() - begin, components=count, error=error)
            self.steps.append(done)
            if self._listener is not None:
                self._listener(done)

    def _load(self, plugin: Plugin, imported: Callable[[], Any], entry: EntryPoint | None = None) -> None:
        if (plugin.full_name, plugin.file) in self._faulty:
            self.plugins.append(self._faulty[plugin.full_name, plugin.file])
            return
        try:
            with self._trace_step(Step(plugin.name, "import", plugin.file or plugin.name, 0.0)):
                module = imported()
        except BaseException as error:  # noqa: BLE001  a plugin may raise anything; it is named, not hidden
            self._raise_interrupt(error, plugin)
            self._set_aside(plugin, import_fault(error, plugin, entry))
            return
        plugin = replace(plugin, file=getattr(module, "__file__", None) or plugin.file)
        holder = next((plugin for known, plugin in self._holders if known is module), None)
        if holder is not None:
            reason = f"its module is registered already, as {holder.description}: leave out one of the two entry points"
            self._set_aside(plugin, FaultyPlugin(reason))
            return
        try:
            plugin = self._register(plugin, module)
            registered = self._collect(plugin, module)
        except FaultyPlugin as fault:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            self._set_aside(plugin, fault)
            return
        self._holders.append((module, plugin))
        self._registered.update(registered)
        self.plugins.append(plugin)
        self._show_deprecated(plugin)

    def _raise_interrupt(self, error: BaseException, plugin: Plugin) -> None:
        """Raise KeyboardInterrupt with the name of the plugin if the user pressed Ctrl-C."""
        if isinstance(error, KeyboardInterrupt) and self._was_interrupted():
            way_out = f"; XMCKIT_DISABLE_PLUGINS={plugin.name} leaves it out" if plugin.origin == "installed" else ""
            raise KeyboardInterrupt(
                f"{plugin.description} was being imported. If it hangs, `xmckit doctor` says where{way_out}."
            ) from None

    def _set_aside(self, plugin: Plugin, fault: FaultyPlugin) -> None:
        self.plugins.append(replace(plugin, problem=str(fault), at=fault.at))

    def _register(self, plugin: Plugin, module: Any) -> Plugin:
        """Register the plugin with pluggy; return it with the deprecation warnings of its hooks."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._manager.register(module, name=f"{plugin.origin}:{plugin.distribution}:{plugin.name}")
                self._manager.check_pending()
            except (pluggy.PluginValidationError, ValueError) as error:
                raise registration_fault(error, module) from None
        deprecated = tuple((Location(one.filename, one.lineno), str(one.message)) for one in caught)
        return replace(plugin, deprecated=deprecated)

    def _show_deprecated(self, plugin: Plugin) -> None:
        """Warn the user, who chose the plugin: Python shows a DeprecationWarning only to its author."""
        for at, text in plugin.deprecated:
            message = f"{plugin.description}: {text}"
            if message not in _warned:
                _warned.add(message)
                warnings.warn_explicit(message, FutureWarning, at.file, at.line or 1)

    def _collect(self, plugin: Plugin, module: Any) -> dict[tuple[str, str], Registered]:
        """Call all hooks of one plugin and return its components; FaultyPlugin if anything is wrong with them."""
        collected: dict[tuple[str, str], Registered] = {}
        for name, kind in KINDS.items():
            for component in self._call_hook(plugin, module, kind.hook, collected, name):
                collected[name, component.name] = Registered(name, component, plugin)
        return collected

    def _call_hook(
        self, plugin: Plugin, module: Any, hook: str, collected: Mapping[tuple[str, str], Registered], kind: str
    ) -> Iterator[Component]:
        """Yield what the plugin gives for one hook, each record checked."""
        others = [other for other in self._manager.get_plugins() if other is not module]
        caller = self._manager.subset_hook_caller(hook, others)
        at = next((defined_at(own.function) for own in caller.get_hookimpls()), None)
        try:
            with self._trace_step(Step(plugin.name, "hook", hook, 0.0)) as answers:
                answers.extend(listed_components(answer, hook) for answer in caller())
                if at is not None and not answers:
                    raise FaultyPlugin(f"its {hook}() gave None, expected {EXPECTED}")
        except FaultyPlugin as fault:
            raise FaultyPlugin(str(fault), at) from None
        except BaseException as error:  # noqa: BLE001  see above
            self._raise_interrupt(error, plugin)
            raise FaultyPlugin(f"its {hook}() raised {one_line(error)}", raised_at(error, plugin.file) or at) from None
        for component in itertools.chain.from_iterable(answers):
            try:
                check_component(component, hook, plugin)
                if kind == "command" and component.name.count(".") > 1:
                    raise FaultyPlugin(f"its {hook}() gave the name '{component.name}', expected at most one dot")
                if plugin.origin != "core":  # the core's own are tested once, not at every start
                    find_target(component.target)
            except (FaultyPlugin, NotThere) as fault:
                raise FaultyPlugin(str(fault), at) from None
            taken = self._registered.get((kind, component.name)) or collected.get((kind, component.name))
            if taken is not None:
                raise FaultyPlugin(f"it offers {kind}:{component.name}, {name_taken(taken.plugin, plugin)}", at)
            yield component

    @property
    def problems(self) -> list[Plugin]:
        """The plugins that were set aside."""
        return [plugin for plugin in self.plugins if plugin.problem]

    def names(self, kind: str) -> list[str]:
        return sorted(name for other, name in self._registered if other == kind)

    def all(self) -> list[Registered]:
        """Return every component, by kind in the order of `xmckit.kinds.KINDS`, then by name."""
        order = list(KINDS)
        return sorted(self._registered.values(), key=lambda item: (order.index(item.kind), item.component.name))

    def component(self, kind: str, name: str) -> Registered:
        """Return the component's record, or raise PluginError with the nearest name and what was set aside."""
        if kind not in KINDS:
            raise PluginError(f"there is no kind '{kind}'{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
        registered = self._registered.get((kind, name))
        if registered is None:
            known = self.names(kind)
            aside = "".join(f" Set aside: {plugin.description}: {plugin.problem}." for plugin in self.problems)
            blocked = [f"{plugin.name} ({plugin.blocked})" for plugin in self.plugins if plugin.blocked]
            left_out = f" Not loaded: {', '.join(blocked)}." if blocked else ""
            raise PluginError(
                f"no {kind} named '{name}'{nearest(name, known)} (known: {', '.join(known)}).{aside}{left_out}"
            )
        return registered

    def resolve(self, kind: str, name: str) -> Any:
        """Import the component; PluginError names the plugin if that fails or the component breaks its contract."""
        registered = self.component(kind, name)
        component = registered.component
        step = Step(registered.plugin.name, "component", component.target, 0.0)
        # Only the first import of a target is a step: components are resolved many times.
        imported = component.target.partition(":")[0] in sys.modules
        try:
            with stdout_to_stderr() if imported else self._trace_step(step):
                target = load(component.target)
        except (Exception, SystemExit) as error:
            hint = f" Install what it needs: pip install '{component.requires}'" if component.requires else ""
            at = place_of(error, registered)
            where = f" ({at})" if at else ""
            raise PluginError(
                f"{registered.description} cannot be imported from {component.target}: {one_line(error)}{where}.{hint}"
            ) from error
        missing = missing_members(kind, target)
        if missing:
            raise PluginError(
                f"{registered.description}: {component.target} ({self.locate(kind, name)}) lacks {', '.join(missing)}"
            )
        return target

    def at_fault(self, error: BaseException) -> tuple[Plugin, Location] | None:
        """Return the plugin whose code raised an error, and where; None if only the core is involved."""
        others = (plugin for plugin in self.plugins if plugin.origin != "core")
        return next(((plugin, at) for plugin in others if (at := raised_at(error, plugin.file))), None)

    def offered(self, kind: str) -> list[Component]:
        """Return the components of a kind in the order of registration: the core's first."""
        return [item.component for item in self._registered.values() if item.kind == kind]

    def locate(self, kind: str, name: str) -> Location:
        registered = self.component(kind, name)
        try:
            return find_target(registered.component.target)
        except NotThere as fault:  # it was there when the plugin was loaded
            raise PluginError(f"{registered.description}: {fault}") from None


def installed_plugins() -> Iterator[tuple[EntryPoint, Plugin]]:
    """Yield the plugins of installed distributions, xmckit's own first."""

    def order(entry: EntryPoint) -> tuple[bool, str, str]:
        return entry.distribution != PROJECT, entry.distribution, entry.name

    for entry in sorted(entry_points(ENTRY_POINT_GROUP), key=order):
        yield entry, Plugin(entry.name, "installed", entry.distribution, entry.version, file_of(entry.module))


def core_plugin() -> Plugin:
    """Return the plugin of the core's own components."""
    return Plugin(PROJECT, "core", PROJECT, __version__, builtin.__file__)


def file_plugin(file: Path) -> Plugin:
    """Return the plugin of a file that `--plugin` names."""
    return Plugin(file.stem, "file", file=str(file))


def why_blocked(plugin: Plugin, allow: Sequence[str] | None, disable: Sequence[str]) -> str:
    """Return why a plugin is not loaded; empty if it is."""
    names = {plugin.name, plugin.distribution, plugin.full_name}
    if names & set(disable):
        return "disabled by XMCKIT_DISABLE_PLUGINS"
    if allow is not None and not names & set(allow):
        return "not in XMCKIT_PLUGINS"
    return ""
