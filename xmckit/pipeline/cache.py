"""Run stages or plan them, and keep the finished ones for later runs.

A finished stage lives in `runs/.cache/<key>` and is linked into every run that needs it. The key covers the stage's
parameters, its inputs' keys, the content of the code behind it and library versions, so an edited plugin is never
served a stale result.
"""

from __future__ import annotations

import contextlib
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


@dataclass
class StageRunner:
    """Runs stages in order, each once for all runs below the same root."""

    run: Run
    cache: Path
    announce: Callable[[StageRecord], None] = lambda record: None
    count: int = 0

    def __post_init__(self) -> None:
        path = self.run.path
        for folder in (self.cache, path, path / layout.STAGES, path / layout.PLOTS):
            store.remove_stale(folder)

    def do(self, stage: AnyStage) -> AnyStage:
        """Take the stage from the run or the cache, or make it in a folder that appears when it is complete."""
        identity = stage.identity()
        key = stage.key = _key_of(identity)
        if not stage.cached:
            stage.folder = self.run.path
            with self._scratch(stage.name, key) as scratch:
                stage.make(stage.folder, scratch)
            return stage
        folder = stage.folder = self.run.path / layout.STAGES / f"{self.count}-{stage.name}"
        cached = self.cache / key
        reused = is_complete(folder, key) or is_complete(cached, key)
        if not reused:
            store.remove_folder(cached)
            self._make(stage, identity)
        if not is_complete(folder, key):
            # An earlier attempt may have left one that was made by code that has changed since.
            with store.atomic_folder(folder, replace=True) as temporary:
                store.link_tree(cached, temporary)
        # The stage may have been made under another name.
        here = {"name": stage.name, "folder": str(folder.relative_to(self.run.path)), "reused": reused}
        path = folder / layout.STAGE_RECORD
        content = {name: value for name, value in store.read_json(path).items() if name != "files"}
        record: StageRecord = store.check_type(path, {**content, **here}, StageRecord)
        self.run.update(stages=[*self.run.stages[: self.count], record])
        self.run.event("stage", name=stage.name, reused=reused, seconds=record.seconds)
        self.announce(record)
        self.count += 1
        return stage

    def _make(self, stage: Stage[Any], identity: dict[str, Any]) -> None:
        self.run.event("stage-start", name=stage.name)
        self.cache.mkdir(parents=True, exist_ok=True)
        with store.atomic_folder(self.cache / stage.key) as folder:
            with self._scratch(stage.name, stage.key) as scratch, Measured() as cost:
                stage.make(folder, scratch)
            files = _sizes(folder)
            store.write_json(
                folder / layout.STAGE_RECORD,
                {
                    "name": stage.name,
                    "key": stage.key,
                    "identity": identity,
                    "seconds": round(cost.seconds, 3),
                    "cpu_seconds": round(cost.cpu_seconds, 3),
                    "peak_bytes": cost.peak_bytes,
                    "bytes": sum(files.values()),
                    "files": files,
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
    """Return whether `folder` holds the finished stage of this key, with every file that it had when it was made.

    A stage that somebody cut short, edited in place or partly deleted is made again rather than served.
    """
    try:
        record = store.read_json(folder / layout.STAGE_RECORD)
    except (StorageError, NotADirectoryError, IsADirectoryError):  # damaged, or not there
        return False
    if not isinstance(record, dict) or record.get("key") != key:
        return False
    return {name: size for name, size in _sizes(folder).items() if name != layout.STAGE_RECORD} == record.get("files")


def empty_cache(root: Path) -> int:
    """Delete the finished stages that runs below `root` share; return their number.

    What a process is writing at this moment stays, and so does a folder that only has the same name.
    """
    cache = root / layout.CACHE
    store.remove_stale(cache)
    stages = [folder for folder in cache.glob("*") if re.fullmatch(r"[0-9a-f]{64}", folder.name)]
    for folder in stages:
        store.remove_folder(folder)
    if cache.is_dir() and not any(cache.iterdir()):
        cache.rmdir()
    return len(stages)


def _key_of(identity: dict[str, Any]) -> str:
    return store.canonical_sha256({"format": RUN_FORMAT, "identity": identity})


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
