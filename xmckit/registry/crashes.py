"""Set aside installed plugins whose import ends the process: by `os._exit`, or by a crash in C.

While a process imports installed plugins, a note in the user's cache folder names the current one, and the process
removes it in the end. A note of a process that is gone names the plugin in which it died. That alone does not blame the
plugin, since anything can end a process: the next start imports it in a child process. If the child dies as well, a
record sets the plugin aside. Otherwise the record is a suspicion, which a successful import removes, and which a second
death in a row confirms. A record counts until the plugin changes, or until `xmckit doctor` can import it.

Nothing here is needed for work: where the folder cannot be written, plugins are imported without notes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmckit.registry.locations import Location

if TYPE_CHECKING:
    from xmckit.registry.plugins import Plugin

_NOTE, _RECORD = "importing-", "crash-"
_HOST = re.sub(r"\W", "", os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")) or "host"
TWICE = "its import ended the process twice in a row, though not when it was imported alone"


def journal_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of this Python's notes, in the user's cache folder; empty if the system names none."""
    if sys.platform == "win32":
        cache = environment.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        cache = os.path.expanduser("~/Library/Caches")
    else:
        cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "xmckit", f"plugins-{_code(sys.prefix)}") if os.path.isabs(cache) else ""


class ImportJournal:
    """The notes and records of one folder; without a folder, it does nothing."""

    def __init__(self, folder: str):
        self.folder = folder
        self.news: list[Plugin] = []  # plugins that this process set aside
        self._note: int | None = None
        self._suspects: set[str] = set()  # names of records

    @property
    def _note_path(self) -> str:
        return os.path.join(self.folder, f"{_NOTE}{_HOST}-{os.getpid()}-{id(self):x}")

    # Notes ------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def importing(self, plugin: Plugin) -> Iterator[None]:
        """Note that the block imports the plugin; `close` removes the note."""
        self._write_note(os.fsencode(f"{plugin.full_name}\n{plugin.file}\n"))
        yield
        record = _record_name(plugin)
        if record in self._suspects:
            self._remove(record)

    def _write_note(self, text: bytes) -> None:
        if not self.folder:
            return
        try:
            if self._note is None:
                self._note = self._open_note()
            os.lseek(self._note, 0, os.SEEK_SET)
            os.write(self._note, text)  # one step, so that no note is half-written
        except OSError:
            self.folder = ""

    def _open_note(self) -> int:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        try:
            return os.open(self._note_path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.folder, exist_ok=True)
            return os.open(self._note_path, flags, 0o600)

    def close(self) -> None:
        """Remove the note: this process has survived the imports."""
        if self._note is not None:
            path, number, self._note = self._note_path, self._note, None
            os.close(number)
            with contextlib.suppress(OSError):
                os.unlink(path)

    # Records ----------------------------------------------------------------------------------------------------------

    def faulty_plugins(
        self, installed: Callable[[], Sequence[Plugin]], try_import: Callable[[Plugin], Plugin]
    ) -> list[Plugin]:
        """Return the plugins to set aside. `try_import` tries one in a child process and returns it with its fault."""
        try:
            names = os.listdir(self.folder) if self.folder else []
        except OSError:
            return []
        notes = [name for name in names if name.startswith(_NOTE) and _is_left_behind(name)]
        if not notes and not any(name.startswith(_RECORD) for name in names):
            return []
        plugins = {_record_name(plugin): plugin for plugin in installed()}
        blamed = {self._follow_up(name, plugins, try_import) for name in notes}
        faulty = self._read_records(plugins)
        self.news = [plugin for plugin in faulty if _record_name(plugin) in blamed]
        return faulty

    def _follow_up(self, note: str, plugins: Mapping[str, Plugin], try_import: Callable[[Plugin], Plugin]) -> str:
        """Find out whether the plugin of a note ends processes, and record the answer; return the record's name."""
        try:
            with open(os.path.join(self.folder, note), "rb") as stream:
                full_name, file = os.fsdecode(stream.read()).split("\n")[:2]
        except (OSError, ValueError):  # another process follows it up, or the disk was full
            full_name = file = ""
        self._remove(note)
        record = _code(f"{full_name}\n{file}", _RECORD)
        plugin = plugins.get(record)
        if plugin is None:
            return ""
        tried = try_import(plugin)
        earlier = self._read_record(record)
        suspected = earlier is not None and earlier["fingerprint"] == _fingerprint(plugin)
        self._write_record(plugin, tried.problem or (TWICE if suspected else ""), tried.at)
        return record

    def _read_records(self, plugins: Mapping[str, Plugin]) -> list[Plugin]:
        faulty = []
        for name in sorted(os.listdir(self.folder)):
            record = self._read_record(name) if name.startswith(_RECORD) else None
            if record is None:
                continue
            plugin = plugins.get(name)
            if plugin is None or record["fingerprint"] != _fingerprint(plugin):
                self._remove(name)
            elif not record["problem"]:
                self._suspects.add(name)
            else:
                at = Location(*record["at"]) if record["at"] else None
                advice = "it is left out until it changes; `xmckit doctor` tries it again"
                faulty.append(replace(plugin, problem=f"{record['problem']} ({record['when']}): {advice}", at=at))
        return faulty

    def forget(self, plugin: Plugin) -> None:
        """Remove the record of a plugin that works again."""
        if self.folder:
            self._remove(_record_name(plugin))

    def _read_record(self, name: str) -> dict[str, Any] | None:
        """Return a record; None, and no file any more, if it is damaged."""
        import json

        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as stream:
                record = json.load(stream)
            fields = (record["fingerprint"], record["problem"], record["when"], record["at"])
            if all(isinstance(field, str) for field in fields[:3]) and (fields[3] is None or len(fields[3]) == 2):
                return dict(record)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass  # damaged: as if it had never been written
        self._remove(name)
        return None

    def _write_record(self, plugin: Plugin, problem: str, at: Location | None) -> None:
        from datetime import datetime, timezone
        from pathlib import Path

        from xmckit import store

        record = {
            "plugin": plugin.full_name,
            "file": plugin.file,
            "fingerprint": _fingerprint(plugin),
            "problem": problem,
            "at": [at.file, at.line] if at else None,
            "when": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        }
        with contextlib.suppress(OSError):
            store.write_json(Path(self.folder, _record_name(plugin)), record)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, name))


def _record_name(plugin: Plugin) -> str:
    return _code(f"{plugin.full_name}\n{plugin.file}", _RECORD)


def _code(text: str, prefix: str = "") -> str:
    return f"{prefix}{zlib.crc32(os.fsencode(text)):08x}"


def _is_left_behind(note: str) -> bool:
    """Return whether the process that wrote the note is gone."""
    from xmckit.store.files import process_alive

    host, _, process = note.removeprefix(_NOTE).rpartition("-")[0].rpartition("-")
    return host == _HOST and process.isdigit() and not process_alive(int(process))


def _fingerprint(plugin: Plugin) -> str:
    """Return a text that changes with the plugin's version and files, with Python, and when packages are installed."""
    folder, name = os.path.split(plugin.file)
    files = [plugin.file]
    if name == "__init__.py":
        files = [
            os.path.join(here, file)
            for here, folders, names in os.walk(folder)
            for file in names
            if os.path.basename(here) != "__pycache__"
        ]
        folder = os.path.dirname(folder)
    facts = [plugin.version, sys.version, f"{_stamp(folder)[0]}", *(f"{file} {_stamp(file)}" for file in sorted(files))]
    return _code("\n".join(facts))


def _stamp(path: str) -> tuple[int, int]:
    """Return the time of the last change and the size; zeros if there is no such file."""
    try:
        facts = os.stat(path)
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size
