"""Run folders: what is in them, and stages that appear only when they are complete.

    runs/<recipe>/<utc>-<hash>/
      recipe.toml  resolved.toml  manifest.json  events.jsonl  log.txt
      stages/<n>-<name>/…  predictions.npz  metrics.json  plots/  report.html

A finished stage lives in `runs/.cache/<key>` and is linked into every run that needs it. The key covers the stage's
parameters, its inputs' keys, the content of the code behind it and library versions, so an edited plugin is never
served a stale result.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xmckit import store
from xmckit.errors import PluginError, StorageError, UsageError
from xmckit.runs.layout import INDEX_FACTS, INDEX_STAGE, LABELS_FACTS, LABELS_STAGE
from xmckit.runs.resources import Measured

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Matrix
    from xmckit.protocols import Featurizer

FORMAT = 1
CACHE = ".cache"
_ALWAYS_IN_MANIFEST = ("name", "identity", "status", "created", "stages")
Value = TypeVar("Value")


def utc_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Run:
    """One run folder. The manifest is rewritten atomically at every change; events are appended."""

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, root: Path, name: str, identity: str, recipe_text: str, resolved_text: str) -> Run:
        """A new folder below `root`; it appears complete with its recipe or not at all."""
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
        parent = root.resolve() / _folder_name(name)
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StorageError(f"{parent} cannot be a folder for runs: a file is in its way") from None
        store.remove_stale(parent)
        manifest = {"format": FORMAT, "name": name, "identity": identity, "status": "created", "created": utc_now()}
        for attempt in itertools.count():
            path = parent / (f"{stamp}-{identity[:8]}" + (f"-{attempt}" if attempt else ""))
            if path.exists():
                continue
            # The same recipe may be started twice within a second: each gets a folder of its own.
            with contextlib.suppress(FileExistsError), store.atomic_folder(path, exclusive=True) as folder:
                store.write_text(folder / "recipe.toml", recipe_text)
                store.write_text(folder / "resolved.toml", resolved_text)
                store.write_json(folder / "manifest.json", {**manifest, "pid": os.getpid(), "stages": []})
                (folder / "stages").mkdir()
                break
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Run:
        """An existing run; StorageError when the folder is no run or one of another version."""
        path = Path(path).resolve()
        if not (path / "manifest.json").is_file():
            raise UsageError(f"{path} is not a run folder: it has no manifest.json. `xmckit runs ls` lists the runs.")
        manifest = store.read_json(path / "manifest.json")
        if not isinstance(manifest, dict) or "format" not in manifest:
            raise store.damaged(path / "manifest.json", "no format")
        if manifest["format"] != FORMAT:
            raise StorageError(
                f"{path} was written in run format {manifest['format']} and this xmckit reads format {FORMAT}. "
                f"Run {path / 'resolved.toml'} again, or use the version of xmckit that made it."
            )
        if missing := [key for key in _ALWAYS_IN_MANIFEST if key not in manifest]:
            raise store.damaged(path / "manifest.json", f"without {', '.join(missing)}")
        return cls(path, manifest)

    @property
    def root(self) -> Path:
        """The folder whose cache this run shares; a run that was moved out of it keeps a cache of its own."""
        at_home = self.path.parent.name == _folder_name(self.manifest["name"])
        return self.path.parent.parent if at_home else self.path

    def update(self, **changes: Any) -> None:
        self.manifest.update(changes)
        store.write_json(self.path / "manifest.json", self.manifest)

    def event(self, what: str, **facts: Any) -> None:
        line = json.dumps({"time": utc_now(), "event": what, **facts}, ensure_ascii=False)
        self._append("events.jsonl", line)

    def log(self, message: str) -> None:
        self._append("log.txt", f"{utc_now()} {message}")

    def _append(self, name: str, line: str) -> None:
        with open(self.path / name, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    @property
    def status(self) -> str:
        """As in the manifest, but a run that is under way and whose process is gone is `killed`."""
        status = str(self.manifest["status"])
        under_way = status in ("created", "running")
        return "killed" if under_way and not store.process_alive(int(self.manifest.get("pid", 0))) else status

    def stage_folder(self, name: str) -> Path:
        """The folder of a finished stage, by name."""
        for record in self.manifest["stages"]:
            if record["name"] == name:
                return self.path / record["folder"]
        raise StorageError(f"{self.path} has no finished stage '{name}': go on with `xmckit run --resume {self.path}`")

    @property
    def head_stages(self) -> list[dict[str, Any]]:
        """The records of the stages that trained a head, in order."""
        return [stage for stage in self.manifest["stages"] if stage["identity"]["kind"] == "head"]

    @property
    def head_names(self) -> list[str]:
        return [stage["name"].removeprefix("head-") for stage in self.head_stages]

    def label_facts(self) -> list[dict[str, Any]]:
        """What each label stage reported, in order: `name`, `facts`, `agreement`, `exhibits`."""
        return self._stage_facts(LABELS_STAGE, LABELS_FACTS)

    def index_facts(self) -> list[dict[str, Any]]:
        """What each index reported, in order: `name`, `facts`, `exhibits`."""
        return self._stage_facts(INDEX_STAGE, INDEX_FACTS)

    def _stage_facts(self, prefix: str, file: str) -> list[dict[str, Any]]:
        names = [stage["name"] for stage in self.manifest["stages"] if stage["name"].startswith(prefix)]
        return [
            {"name": name.removeprefix(prefix), **store.read_json(self.stage_folder(name) / file)} for name in names
        ]

    def features_folder(self, of: str = "labels") -> Path:
        """The folder of the features that the stage `of` saw: `index-…`, `head-…`, or `labels` for label stages, which
        see the first of several."""
        return self.stage_folder(self.manifest.get("features", {}).get(of, "features"))

    def explaining(self, context: Context) -> Context:
        """The context with a `resolve` that says where the run's components came from, those inside others too."""
        from xmckit.registry import how_to_have

        sources: dict[str, str] = {}
        for record in self.manifest["stages"]:
            sources.update(record["identity"].get("sources", {}))

        def resolve(kind: str, name: str) -> Any:
            try:
                return context.resolve(kind, name)
            except PluginError as error:
                source = sources.get(f"{kind}:{name}")
                if source is None:
                    raise
                raise PluginError(
                    f"this model needs {kind}:{name}, which came from {how_to_have(source)}. {error}"
                ) from error

        return context.using(resolve=resolve)

    def load_featurizer(self, of: str, context: Context) -> Featurizer:
        """The featurizer behind the features that the stage `of` saw."""
        folder = self.features_folder(of)
        use = store.read_json(folder / "features.json")["use"]
        featurizer: Featurizer = context.load("featurizer", use, folder / "featurizer")
        return featurizer

    def training_rows(self, of: str = "labels") -> tuple[Matrix, csr_matrix]:
        """(X, Y) of the training rows as the stage `of` saw them, the validation share included."""
        from xmckit.data.saved import load_split

        features, train = self.features_folder(of), self.stage_folder("data") / "train"
        if store.read_json(features / "features.json").get("as_in_data"):
            X = load_split(train).matrix
        else:
            X = store.read_matrix(features / "X.trn.npz")
        relabelled = [stage["name"] for stage in self.manifest["stages"] if stage["name"].startswith("labels-")]
        source = self.stage_folder(relabelled[-1]) if relabelled else train
        return X, store.read_csr(source / "Y.npz")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from working on the same run."""
        try:
            import fcntl
        except ImportError:  # no file locks on this system; two processes on one run are then the user's to avoid
            yield
            return
        with open(self.path / ".lock", "w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.path} is being worked on by another process; wait for it or stop it") from None
            yield


def _folder_name(recipe: str) -> str:
    return re.sub(r"[^\w.-]+", "-", recipe).strip("-.") or "run"


@dataclass
class Stage(Generic[Value]):
    """A finished stage. Its value is read from the folder when it is first asked for."""

    name: str
    key: str
    folder: Path
    record: dict[str, Any]
    _restore: Callable[[Path], Value] = field(repr=False)
    _value: list[Value] = field(default_factory=list, repr=False)

    @property
    def value(self) -> Value:
        if not self._value:
            self._value.append(self._restore(self.folder))
        return self._value[0]

    def another(self) -> Value:
        """A second value, for one who is going to change it."""
        return self._restore(self.folder)


@dataclass
class Stages:
    """Runs stages in order, each once for all runs below the same root."""

    run: Run
    cache: Path
    announce: Callable[[dict[str, Any]], None] = lambda record: None
    count: int = 0

    def __post_init__(self) -> None:
        for folder in (self.cache, self.run.path, self.run.path / "stages", self.run.path / "plots"):
            store.remove_stale(folder)

    def do(
        self,
        name: str,
        identity: dict[str, Any],
        produce: Callable[[Path, Path], Value],
        restore: Callable[[Path], Value],
    ) -> Stage[Value]:
        """The stage with this identity: from the run, from the cache, or made now in a folder that then appears whole.

        `produce(folder, scratch)` writes everything into `folder` and returns the value that `restore` would read.
        """
        key = _key_of(identity)
        folder = self.run.path / "stages" / f"{self.count}-{name}"
        value: list[Value] = []
        reused = is_whole(folder, key) or is_whole(self.cache / key, key)
        if not reused:
            _remove_folder(self.cache / key)
            value.append(self._produce(name, key, identity, produce))
        if not is_whole(folder, key):
            _remove_folder(folder)  # of an earlier attempt, made by code that has changed since
            with store.atomic_folder(folder) as temporary:
                store.link_tree(self.cache / key, temporary)
        # the stage may have been made under another name
        here = {"name": name, "folder": str(folder.relative_to(self.run.path))}
        record = {**store.read_json(folder / "stage.json"), **here}
        del record["files"]
        record["reused"] = reused
        self.run.update(stages=[*self.run.manifest["stages"][: self.count], record])
        self.run.event("stage", name=name, reused=reused, seconds=record["seconds"])
        self.announce(record)
        self.count += 1
        return Stage(name, key, folder, record, restore, value)

    def _produce(self, name: str, key: str, identity: dict[str, Any], produce: Callable[[Path, Path], Value]) -> Value:
        self.run.event("stage-start", name=name)
        self.cache.mkdir(parents=True, exist_ok=True)
        with store.atomic_folder(self.cache / key) as folder:
            with self._scratch(name, key) as scratch, Measured() as cost:
                value = produce(folder, scratch)
            files = _sizes(folder)
            store.write_json(
                folder / "stage.json",
                {
                    "name": name,
                    "key": key,
                    "identity": identity,
                    "seconds": round(cost.seconds, 3),
                    "cpu_seconds": round(cost.cpu_seconds, 3),
                    "peak_bytes": cost.peak_bytes,
                    "bytes": sum(files.values()),
                    "files": files,
                },
            )
        return value

    @contextlib.contextmanager
    def _scratch(self, name: str, key: str) -> Iterator[Path]:
        """A folder in the run, which is gone when its stage is done. After an error or a kill it stays: for the person
        who reads a component's message, and for the next attempt at the same stage, which may go on from there.
        """
        everything = self.run.path / "scratch"
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
        """Facts for the manifest."""
        self.run.update(**facts)

    def log(self, message: str) -> None:
        self.run.log(message)


def _key_of(identity: dict[str, Any]) -> str:
    return store.canonical_sha256({"format": FORMAT, "identity": identity})


def is_whole(folder: Path, key: str) -> bool:
    """Whether `folder` holds the finished stage of this key, with every file that it had when it was made.

    A stage that somebody cut short, edited in place or partly deleted is made again rather than served.
    """
    if not (folder / "stage.json").is_file():
        return False
    try:
        record = store.read_json(folder / "stage.json")
    except StorageError:
        return False
    if not isinstance(record, dict) or record.get("key") != key:
        return False
    return {name: size for name, size in _sizes(folder).items() if name != "stage.json"} == record.get("files")


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _remove_folder(folder: Path) -> None:
    """Remove a folder that others may look at: it is gone at once, not file by file."""
    doomed = store.temporary_beside(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(doomed)
        shutil.rmtree(doomed)


@dataclass
class Planned:
    """Takes the place of `Stages` to see what would be done: it runs nothing and writes nothing."""

    cache: Path
    steps: list[dict[str, Any]] = field(default_factory=list)

    def do(
        self,
        name: str,
        identity: dict[str, Any],
        produce: Callable[[Path, Path], Value],
        restore: Callable[[Path], Value],
    ) -> Stage[Value]:
        key = _key_of(identity)
        cached = is_whole(self.cache / key, key)
        self.steps.append(
            {
                "stage": name,
                "use": identity.get("use", ""),
                "params": identity.get("params", {}),
                "cached": cached,
                "key": key,
            }
        )
        return Stage(name, key, self.cache / key, {}, restore)

    def note(self, **facts: Any) -> None:
        pass

    def log(self, message: str) -> None:
        pass


def empty_cache(root: Path) -> int:
    """Delete the finished stages that runs below `root` share; return their number.

    Nothing else: what a process is writing at this moment stays, and so does a folder that only has the same name.
    """
    cache = root / CACHE
    store.remove_stale(cache)
    stages = [folder for folder in cache.glob("*") if re.fullmatch(r"[0-9a-f]{64}", folder.name)]
    for folder in stages:
        _remove_folder(folder)
    if cache.is_dir() and not any(cache.iterdir()):
        cache.rmdir()
    return len(stages)


def find_runs(root: Path) -> list[Run]:
    """Every run below `root`, oldest first; folders that are no run are passed over."""
    found = []
    for manifest in sorted(root.glob("[!.]*/[!.]*/manifest.json"), key=lambda path: path.parent.name):
        with contextlib.suppress(StorageError, UsageError):
            found.append(Run.open(manifest.parent))
    return found


def find_run(name: str | os.PathLike[str], root: Path) -> Run:
    """A run by its folder, by its folder's name below `root`, or the newest finished run of a recipe by its name."""
    path = Path(name)
    for about, what in (("extension.json", "a run with added labels"), ("ensemble.json", "several runs combined")):
        if (path / about).is_file():
            raise UsageError(f"{path} is {what}, not a run: name a run behind it, which {about} in that folder tells")
    if path.is_dir() and ((path / "manifest.json").is_file() or path.is_absolute()):
        return Run.open(path)
    runs = find_runs(root)
    exact = [run for run in runs if run.path.name == str(name)]
    named = [run for run in runs if run.manifest["name"] == str(name) and run.status == "done"]
    if not exact and not named:
        from xmckit.errors import nearest

        if unfinished := [run for run in runs if run.manifest["name"] == str(name)]:
            newest = unfinished[-1]
            raise UsageError(
                f"no run of '{name}' below {root} is done; the newest is {newest.status}: {newest.path} "
                f"(go on with: xmckit run --resume {newest.path})"
            )
        known = {run.manifest["name"] for run in runs} | {run.path.name for run in runs}
        raise UsageError(f"no run '{name}' below {root}{nearest(str(name), known)}; `xmckit runs ls` lists the runs")
    return (exact or named)[-1]
