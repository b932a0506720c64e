"""Run stages or plan them, and keep the finished ones for later runs.

A finished stage lives in `runs/.cache/<key>` and is linked into every run that needs it. The key covers the stage's
parameters, its inputs' keys, the content of the code behind it and library versions, so an edited plugin is never
served a stale result.

A process that takes a stage from the cache, makes it or deletes it holds the lock `runs/.cache/<key>.lock`: of two that
want the same stage, the second waits and then takes what the first has made. Where there are no locks both make it, and
the first to finish wins: a complete folder is never removed, and what was moved aside by mistake comes back.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from xmckit import store
from xmckit.errors import StorageError
from xmckit.pipeline.stage import Stage
from xmckit.runs import Run, StageRecord, layout
from xmckit.runs.records import RUN_FORMAT
from xmckit.runs.resources import Measured

AnyStage = TypeVar("AnyStage", bound=Stage[Any])
_ATTEMPTS = 3  # to take a stage from a cache that others change; one is enough where there are locks


@dataclass
class StageRunner:
    """Runs stages in order, each once for all runs below the same root."""

    run: Run
    cache: Path
    announce: Callable[[StageRecord], None] = lambda record: None
    count: int = 0

    def __post_init__(self) -> None:
        path = self.run.path
        check_cache(self.cache)
        for folder in (self.cache, self.run.root, path, path / layout.STAGES, path / layout.PLOTS):
            store.remove_stale(folder)
        for lock in self.cache.glob("*.lock"):  # of killed processes
            with store.turn(lock, None):
                pass

    def do(self, stage: AnyStage) -> AnyStage:
        """Take the stage from the run or the cache, or make it in a folder that appears when it is complete."""
        identity = stage.identity()
        key = stage.key = _key_of(identity)
        if not stage.cached:
            stage.folder = self.run.path
            with self._scratch(stage.name, key) as scratch:
                stage.make(stage.folder, scratch)
            self.run.record_copies()
            return stage
        folder = stage.folder = self.run.path / layout.STAGES / f"{self.count}-{stage.name}"
        reused = self._is_complete(folder, stage)
        if not reused:
            self.cache.mkdir(parents=True, exist_ok=True)
            with store.turn(lock_file(self.cache / key), lambda: self._waiting(stage)):
                reused = self._take_or_make(stage, identity)
        # The stage may have been made under another name.
        here = {"name": stage.name, "folder": str(folder.relative_to(self.run.path)), "reused": reused}
        path = folder / layout.STAGE_RECORD
        content = {name: value for name, value in store.read_record(path).items() if name not in ("files", "checksum")}
        record: StageRecord = store.check_type(path, {**content, **here}, StageRecord)
        self.run.update(stages=[*self.run.stages[: self.count], record])
        self.run.event("stage", name=stage.name, reused=reused, seconds=record.seconds)
        self.announce(record)
        self.count += 1
        return stage

    def _take_or_make(self, stage: Stage[Any], identity: dict[str, Any]) -> bool:
        """Put the stage into the run, from the cache or new; return whether it was in the cache."""
        cached = self.cache / stage.key
        for _ in range(_ATTEMPTS):
            reused = self._is_complete(cached, stage)
            if not reused:
                store.remove_folder(cached, keep=lambda moved: is_complete(moved, stage.key))
                self._make(stage, identity)
            # An earlier attempt may have left one that was made by code that has changed since.
            with (
                contextlib.suppress(FileNotFoundError),  # somebody deletes the cache where there are no locks
                store.atomic_folder(stage.folder, replace=True, sync=False) as temporary,
            ):
                store.link_tree(cached, temporary)
            if is_complete(stage.folder, stage.key):
                return reused
        raise StorageError(
            f"{cached}: another process removes or changes this folder while the stage {stage.name} is linked from it; "
            f"stop that process, then continue with `xmckit run --resume {self.run.path}`"
        )

    def _is_complete(self, folder: Path, stage: Stage[Any]) -> bool:
        """Return whether a folder holds the finished stage; log what is wrong with one that does not."""
        why = why_incomplete(folder, stage.key)
        if why and os.path.lexists(folder):
            self.run.log(f"{folder} is not the finished stage {stage.name} ({why}): it is made again")
            self.run.event("stage-damaged", name=stage.name, folder=str(folder), why=why)
        return not why

    @contextlib.contextmanager
    def _waiting(self, stage: Stage[Any]) -> Iterator[None]:
        self.run.log(f"waiting for another process that makes the stage {stage.name}")
        self.run.event("stage-wait", name=stage.name)
        with stage.setup.context.progress(f"waiting for another process that makes {stage.name}"):
            yield

    def _make(self, stage: Stage[Any], identity: dict[str, Any]) -> None:
        self.run.event("stage-start", name=stage.name)
        with store.atomic_folder(self.cache / stage.key) as folder:
            with self._scratch(stage.name, stage.key) as scratch, Measured() as cost:
                stage.make(folder, scratch)
            store.seal(
                folder,
                {
                    "name": stage.name,
                    "key": stage.key,
                    "identity": identity,
                    "seconds": round(cost.seconds, 3),
                    "cpu_seconds": round(cost.cpu_seconds, 3),
                    "peak_bytes": cost.peak_bytes,
                    "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
                },
            )

    @contextlib.contextmanager
    def _scratch(self, name: str, key: str) -> Iterator[Path]:
        """Yield a folder in the run that is removed when the stage is done.

        After an error or a kill it stays: for the person who reads a component's message, and for the next attempt at
        the same stage, which may resume from it.
        """
        everything = self.run.path / layout.SCRATCH
        scratch = everything / name / key[:16]
        for outdated in set((everything / name).glob("*")) - {scratch}:
            shutil.rmtree(outdated, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            yield scratch
        except BaseException:
            for folder in (scratch, scratch.parent, everything):
                if not any(folder.iterdir()):
                    folder.rmdir()
            raise
        shutil.rmtree(everything)

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest."""
        self.run.update(**facts)


@dataclass(frozen=True)
class PlannedStage:
    """A stage that a run would do, and whether the cache has it."""

    stage: str
    use: str
    params: dict[str, Any]
    cached: bool
    key: str


@dataclass
class StagePlanner:
    """Takes the place of `StageRunner` to list what would be done: it runs nothing and writes nothing."""

    cache: Path
    steps: list[PlannedStage] = field(default_factory=list)

    def do(self, stage: AnyStage) -> AnyStage:
        identity = stage.identity()
        key = stage.key = _key_of(identity)
        stage.folder = self.cache / key
        if stage.cached:
            cached = is_complete(stage.folder, key)
            step = PlannedStage(stage.name, identity.get("use", ""), identity.get("params", {}), cached, key)
            self.steps.append(step)
        return stage

    def note(self, **facts: Any) -> None:
        pass


def is_complete(folder: Path, key: str) -> bool:
    """Return whether `folder` holds the finished stage of this key, with every file that it had when it was made."""
    return not why_incomplete(folder, key)


def why_incomplete(folder: Path, key: str) -> str:
    """Return why `folder` is not the finished stage of this key, empty if it is.

    A stage that somebody cut short, edited in place or partly deleted is made again rather than served. Only files
    that were changed since are read; all others are compared with their checksums when somebody reads them.
    """
    if folder.is_symlink():
        return f"a symbolic link to {os.readlink(folder)}"
    try:
        record = store.read_record(folder / layout.STAGE_RECORD)
        if record.get("key") != key:
            return "it has the key of another stage"
        flaws = store.folder_flaws(folder, record, thorough=False)
    except (StorageError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:  # damaged, or not there
        return str(error)
    return "; ".join(f"{flaw.file}: {flaw.why}" for flaw in flaws)


def empty_cache(root: Path, busy: Callable[[Path], None] = lambda folder: None) -> int:
    """Delete the finished stages that runs below `root` share; return their number.

    What a process is writing at this moment stays, and so does a folder that only has the same name. `busy` is called
    with a stage that stays because a process is making it or taking it.
    """
    cache = root / layout.CACHE
    check_cache(cache)
    store.remove_stale(cache)
    deleted = 0
    for folder in sorted({path.with_suffix("") for path in cache.glob("*") if is_stage_key(path.stem)}):
        with store.turn(lock_file(folder), None) as mine:
            if not mine:
                busy(folder)
            elif os.path.lexists(folder):
                store.remove_folder(folder)
                deleted += 1
    return deleted


def check_cache(cache: Path) -> None:
    """Raise StorageError if the cache is a link: nothing outside the folder of runs is written or deleted."""
    if cache.is_symlink():
        raise StorageError(
            f"{cache} is a symbolic link to {os.readlink(cache)}: xmckit neither writes nor deletes through it. Remove "
            "the link; to keep runs and their cache on another disk, name a folder there with --runs."
        )


def is_stage_key(name: str) -> bool:
    """Return whether a folder of the cache with this name is a stage."""
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def lock_file(cached: Path) -> Path:
    """Return the file that a process locks while it makes, takes or deletes a stage of the cache."""
    return cached.with_name(f"{cached.name}.lock")


def _key_of(identity: dict[str, Any]) -> str:
    return store.canonical_sha256({"format": RUN_FORMAT, "identity": identity})
