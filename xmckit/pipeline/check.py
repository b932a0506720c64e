"""Read every stored file of runs and of the cache that they share, list what is damaged, and repair it.

A damaged stage is restored from a sound copy with the same key, in the cache or in another run, or dropped, so that
`xmckit run --resume` makes it again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.context import Progress, silent
from xmckit.errors import StorageError, UsageError, XmckitError, one_line
from xmckit.pipeline.cache import check_cache, is_stage_key, lock_file
from xmckit.runs import Run, find_runs, layout
from xmckit.runs.records import RUN_FORMAT, Manifest
from xmckit.runs.run import utc_now
from xmckit.runs.sequence import read_number


@dataclass
class Damage:
    """A damaged file; `run` is empty in the cache, `repair` says what was done about it, empty if nothing was."""

    run: str
    stage: str
    file: str
    why: str
    repair: str = ""


@dataclass
class CheckReport:
    """What was read, what is damaged, what has no checksums, and what to do next."""

    runs: int = 0
    cached_stages: int = 0
    files: int = 0
    bytes: int = 0
    without_checksums: list[str] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged any more."""
        return all(damage.repair for damage in self.damaged)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.is_sound}


@dataclass
class _StageFolder:
    """The folder of a stage in a run or in the cache, and what is wrong with it."""

    path: Path
    run: str
    name: str
    key: str | None  # None of what `xmckit verify` wrote
    record: dict[str, Any] | None = None  # None if it cannot be read
    damaged: list[Damage] = field(default_factory=list)


def check_runs(root: Path, runs: Sequence[Path], *, repair: bool = False, progress: Progress = silent) -> CheckReport:
    """Check these run folders and the stages of `root`'s cache; repair what is damaged if asked to."""
    cache = root / layout.CACHE
    check_cache(cache)
    cached = sorted(path for path in cache.glob("*") if is_stage_key(path.name))
    checker = _Checker(repair)
    total = sum(_size(folder) for folder in [*runs, *cached])
    with progress("reading stored files", total=total) as bar:
        checker.advance = bar.advance
        for folder in cached:
            checker.check_cached(folder)
        for folder in runs:
            checker.check_run(folder)
    if repair:
        checker.repair_stages()
        checker.repair_tops()
    return checker.report


class _Checker:
    def __init__(self, repair: bool):
        self.report = CheckReport()
        self.advance: Callable[[int], None] = lambda count: None
        self._repair = repair
        self._known: dict[tuple[int, ...], str] = {}
        self._stages: list[_StageFolder] = []
        self._runs: list[Run] = []
        self._tops: list[tuple[Run, Damage]] = []

    # -- look --------------------------------------------------------------------------------------------------------

    def check_cached(self, folder: Path) -> None:
        self.report.cached_stages += 1
        self._check_stage(_StageFolder(folder, "", folder.name[:16], folder.name))

    def check_run(self, folder: Path) -> None:
        self.report.runs += 1
        run: Run | None
        try:
            run = Run.open(folder)
        except (StorageError, UsageError) as error:
            self._add(Damage(str(folder), "", layout.MANIFEST, _reason(folder / layout.MANIFEST, error)), [])
            run = self._open_damaged(folder)
        if run is None:
            return
        self._runs.append(run)
        if not store.has_checksums(store.read_json(run.path / layout.MANIFEST)):
            self.report.without_checksums.append(str(run.path))
        for name, entry in (run.manifest.files or {}).items():
            path = run.path / name
            why = _top_flaw(path, entry, self._known)
            self._count(path)
            if why:
                damage = Damage(str(run.path), "", name, why)
                self._tops.append((run, damage))
                self._add(damage, [])
        for stage in run.stages:
            self._check_stage(_StageFolder(run.path / stage.folder, str(run.path), stage.name, stage.key))
        for folder in sorted((run.path / layout.VERIFY).glob(f"[!.]*/{layout.STAGE_RECORD}")):
            name = f"{layout.VERIFY}/{folder.parent.name}"
            self._check_stage(_StageFolder(folder.parent, str(run.path), name, None))

    def _open_damaged(self, folder: Path) -> Run | None:
        """Return the run of a damaged manifest, if it can still be read; with repair it is written again."""
        path = folder / layout.MANIFEST
        damage = self.report.damaged[-1]
        try:
            manifest: Manifest | None = store.check_type(path, store.read_json(path), Manifest)
        except StorageError:
            manifest = None
        if not self._repair:
            return Run(folder, manifest) if manifest is not None else None
        with self._locked(folder, damage) as mine:
            if not mine:
                return None
            try:
                manifest = manifest or _new_manifest(folder)
            except XmckitError as error:
                damage.why += f"; not repaired, because the recipe beside it cannot be used: {one_line(error)}"
                return None
            run = Run(folder, manifest)
            run.update(status="interrupted", error=f"{layout.MANIFEST} was damaged; `xmckit runs check` wrote it again")
            damage.repair = "written again"
            self._resume(run)
            return run

    def _check_stage(self, stage: _StageFolder) -> None:
        self._stages.append(stage)
        flaws = list(self._flaws(stage, self._add_file))
        if stage.record is not None:
            self._count(stage.path / layout.STAGE_RECORD)
            if stage.run == "":
                stage.name = str(stage.record.get("name", stage.name))
            if not store.has_checksums(stage.record):
                self.report.without_checksums.append(str(stage.path))
        for name, why in flaws:
            self._add(Damage(stage.run, stage.name, name, why), stage.damaged)

    def _flaws(
        self, stage: _StageFolder, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with a stage now, and keep its record; `advance` gets the size of each file."""
        folder = stage.path
        if folder.is_symlink():
            yield "", f"a symbolic link to {os.readlink(folder)}"
            return
        if not folder.is_dir():
            yield "", "the folder is missing"
            return
        try:
            stage.record = store.read_record(folder / layout.STAGE_RECORD)
        except (StorageError, IsADirectoryError) as error:
            yield layout.STAGE_RECORD, _reason(folder / layout.STAGE_RECORD, error)
            return
        if stage.record.get("key") != stage.key:
            yield layout.STAGE_RECORD, "it is the record of another stage"
        for flaw in store.folder_flaws(folder, stage.record, thorough=True, advance=advance, known=self._known):
            yield flaw.file, flaw.why

    def _add_file(self, size: int) -> None:
        self.report.files += 1
        self.report.bytes += size
        self.advance(size)

    def _add(self, damage: Damage, also: list[Damage]) -> None:
        self.report.damaged.append(damage)
        also.append(damage)

    def _count(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._add_file(path.stat().st_size)

    # -- repair ------------------------------------------------------------------------------------------------------

    def repair_stages(self) -> None:
        """Restore or drop the damaged stages; those of the cache first, from which runs may be restored."""
        for stage in self._stages:
            if stage.damaged:
                lock = self._turn(stage) if stage.run == "" else self._locked(Path(stage.run), *stage.damaged)
                with lock as mine:
                    if mine:
                        self._repair_stage(stage)

    def _repair_stage(self, stage: _StageFolder) -> None:
        is_sound = not list(self._flaws(stage))  # another process has made it again since it was read
        source = None if is_sound else self._sound_copy(stage)
        if is_sound:
            done = "made again by another process"
        elif source is not None:
            with store.atomic_folder(stage.path, replace=True) as fresh:
                store.link_tree(source, fresh)
            done = f"restored from {source}"
        else:
            store.remove_folder(stage.path)
            done = "dropped"
            if stage.key is None:
                self._next(
                    f"xmckit verify {stage.run}", f"makes {stage.name} again, with the options of the first time"
                )
            elif stage.run:
                run = Run.open(Path(stage.run))
                left = [record for record in run.stages if record.name != stage.name]
                error = f"the stage {stage.name} was damaged; `xmckit runs check` dropped it"
                run.update(stages=left, status="interrupted", error=error)
                self._resume(run)
        for damage in stage.damaged:
            damage.repair = done
        if is_sound or source is not None:
            stage.damaged = []

    def _sound_copy(self, stage: _StageFolder) -> Path | None:
        """Return the folder of a stage with the same key in which nothing is damaged."""
        for other in self._stages if stage.key is not None else ():
            if other.key == stage.key and other.path != stage.path and not other.damaged and other.path.is_dir():
                return other.path
        return None

    def repair_tops(self) -> None:
        """Restore the damaged files at the top of run folders from the stages that made them."""
        for run, damage in self._tops:
            makers = [stage for stage, names in layout.COPIES_AT_TOP.items() if damage.file in names]
            sound = {stage.name: stage.path for stage in self._stages if stage.run == damage.run and not stage.damaged}
            with self._locked(run.path, damage) as mine:
                if not mine:
                    continue
                now = Run.open(run.path)
                files = now.manifest.files or {}
                if damage.file in files and not _top_flaw(run.path / damage.file, files[damage.file], self._known):
                    damage.repair = "made again by another process"
                elif makers and makers[0] in sound:
                    store.link_file(sound[makers[0]] / damage.file, run.path / damage.file)
                    damage.repair = f"restored from {sound[makers[0]]}"
                elif makers or damage.file == layout.ORIGINS:
                    (run.path / damage.file).unlink(missing_ok=True)
                    kept = {name: entry for name, entry in files.items() if name != damage.file}
                    now.update(files=kept, status="interrupted", error=f"{damage.file} was damaged")
                    damage.repair = "dropped"
                    self._resume(run)
                else:
                    self._next(
                        f"xmckit run {run.name}", f"for {run.path}, whose {damage.file} has no copy; then delete it"
                    )

    @contextlib.contextmanager
    def _locked(self, folder: Path, *damaged: Damage) -> Iterator[bool]:
        """Keep other processes from the run; False if one is at work, which the reasons of `damaged` then say."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(store.locked(folder / layout.LOCK, "a process is working on this run"))
            except UsageError as error:
                for damage in damaged:
                    damage.why += f"; not repaired: {error}"
                yield False
                return
            yield True

    @contextlib.contextmanager
    def _turn(self, stage: _StageFolder) -> Iterator[bool]:
        with store.turn(lock_file(stage.path), None) as mine:
            if not mine:
                for damage in stage.damaged:
                    damage.why += "; not repaired: a process is making or taking this stage"
            yield mine

    def _resume(self, run: Run) -> None:
        self._next(f"xmckit run --resume {run.path}", "makes what is missing again")

    def _next(self, command: str, why: str) -> None:
        text = f"{command}   # {why}"
        if text not in self.report.next:
            self.report.next.append(text)


def _new_manifest(folder: Path) -> Manifest:
    """Return the manifest of a run of which only the recipe is known: `--resume` takes its stages one by one."""
    from xmckit.recipe import load_recipe

    recipe = load_recipe(folder / layout.RESOLVED)
    return Manifest(
        format=RUN_FORMAT,
        name=recipe.name,
        identity=store.canonical_sha256(recipe.resolved()),
        status="interrupted",
        created=utc_now(),
        stages=(),
        sequence=read_number(folder / layout.MANIFEST) or _likely_sequence(folder),
        files={name: store.file_checksums(folder / name) for name in (layout.RECIPE, layout.RESOLVED)},
    )


def _top_flaw(path: Path, entry: Any, known: dict[tuple[int, ...], str]) -> str:
    """Return what is wrong with a file at the top of a run, empty if nothing is."""
    return store.file_flaw(path, entry, known=known) if path.is_file() else "missing"


def _likely_sequence(folder: Path) -> int | None:
    """Return the number of the newest run with a smaller name: of equal numbers, the larger name counts as newer."""
    earlier = [run.manifest.sequence or 0 for run in find_runs(folder.parent.parent) if run.path.name < folder.name]
    return max(earlier, default=0) or None


def _reason(path: Path, error: Exception) -> str:
    """Return what is wrong with a file, without its path and without the advice to run this check."""
    text = str(error) if isinstance(error, XmckitError) else one_line(error)
    reason = text.removeprefix(f"{path}: ").removeprefix("this file is damaged or not xmckit's (")
    return reason.split("). ")[0].split(". `")[0]


def _size(folder: Path) -> int:
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterable[int]:
    for below, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(below, name)).st_size
