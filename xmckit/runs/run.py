"""`Run`: one run folder. It reads every file of the folder; nothing else opens them by name."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xmckit import store
from xmckit.errors import PluginError, StorageError, UsageError
from xmckit.runs import layout
from xmckit.runs.records import (
    RUN_FORMAT,
    ComponentFacts,
    Description,
    Diagnostics,
    Example,
    FeaturesFacts,
    HeadFacts,
    LabelFacts,
    Manifest,
    Metrics,
    StageRecord,
    ValueOrigin,
    VerdictSummary,
    check_diagnostics,
    check_verdicts,
)
from xmckit.runs.sequence import next_in_sequence

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Dataset, Matrix
    from xmckit.protocols import Featurizer
    from xmckit.records import TopK

Record = TypeVar("Record")


def utc_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Run:
    """One run folder. The manifest is rewritten atomically at every change; events are appended."""

    path: Path
    manifest: Manifest

    @classmethod
    def create(cls, root: Path, name: str, identity: str, recipe_text: str, resolved_text: str) -> Run:
        """Create a folder below `root`; it appears complete with its recipe or not at all."""
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
        parent = root.resolve() / _folder_name(name)
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StorageError(f"{parent} cannot be a folder for runs: a file is in its way") from None
        store.remove_stale(parent)
        manifest = Manifest(
            format=RUN_FORMAT,
            name=name,
            identity=identity,
            status="created",
            created=utc_now(),
            stages=(),
            pid=os.getpid(),
            sequence=next_in_sequence(root.resolve()),
        )
        for attempt in itertools.count():
            path = parent / (f"{stamp}-{identity[:8]}" + (f"-{attempt}" if attempt else ""))
            if path.exists():
                continue
            # The same recipe may be started twice within a second: each gets a folder of its own.
            with contextlib.suppress(FileExistsError), store.atomic_folder(path, exclusive=True) as folder:
                store.write_text(folder / layout.RECIPE, recipe_text)
                store.write_text(folder / layout.RESOLVED, resolved_text)
                files = {name: store.file_checksums(folder / name) for name in (layout.RECIPE, layout.RESOLVED)}
                (folder / layout.STAGES).mkdir()
                store.write_record(folder / layout.MANIFEST, manifest.model_copy(update={"files": files}).to_json())
                break
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run; UsageError if the folder is no run, StorageError if it is damaged or newer."""
        path = Path(path).resolve()
        file = path / layout.MANIFEST
        if not is_run(path):
            if os.path.lexists(path / layout.RESOLVED):
                raise StorageError(
                    f"{file}: no such file. `xmckit runs check --repair {path}` writes it again; then "
                    f"`xmckit run --resume {path}` takes the stages that are there."
                )
            raise UsageError(
                f"{path} is not a run folder: it has no {layout.MANIFEST}. `xmckit runs ls` lists the runs."
            )
        content = store.read_json(file, dict[str, Any])
        if type(content.get("format")) is int and content["format"] != RUN_FORMAT:
            raise StorageError(
                f"{path} was written in run format {content['format']} and this xmckit reads format {RUN_FORMAT}. "
                f"Run {path / layout.RESOLVED} again, or use the version of xmckit that made it."
            )
        manifest = store.check_type(file, content, Manifest)
        store.compare_record(file, content)  # after the types: they name the field that is wrong
        return cls(path, manifest)

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self.manifest.name

    @property
    def root(self) -> Path:
        """The folder whose cache this run shares; a run that was moved out of it keeps a cache of its own."""
        at_home = self.path.parent.name == _folder_name(self.name)
        return self.path.parent.parent if at_home else self.path

    @property
    def status(self) -> str:
        """The status in the manifest; `killed` for a run under way whose process is gone."""
        status = self.manifest.status
        under_way = status in ("created", "running")
        return "killed" if under_way and not store.process_alive(self.manifest.pid) else status

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    def path_from(self, folder: Path) -> str:
        """Return the path by which a file in `folder` refers to this run."""
        return Path(os.path.relpath(self.path, folder)).as_posix()

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest, in memory and on disk."""
        if unknown := changes.keys() - Manifest.model_fields.keys():
            raise TypeError(f"a manifest has no {', '.join(sorted(unknown))}")
        self.manifest = self.manifest.model_copy(update=changes)
        store.write_record(self.path / layout.MANIFEST, self.manifest.to_json())

    def record_copies(self) -> None:
        """Write the checksums of the stage files at the top of the run folder into the manifest."""
        files: dict[str, Any] = {}
        for stage in self.stages:
            names = layout.COPIES_AT_TOP.get(stage.name, ())
            listed = store.read_record(self.stage_folder(stage) / layout.STAGE_RECORD).get("files", {}) if names else {}
            files |= {name: listed[name] for name in names if isinstance(listed.get(name), dict)}
        self.update(files={**self.own_files, **files})

    @property
    def own_files(self) -> dict[str, Any]:
        """The checksums of the files at the top that no stage makes."""
        copies = {name for names in layout.COPIES_AT_TOP.values() for name in names}
        return {name: entry for name, entry in (self.manifest.files or {}).items() if name not in copies}

    def event(self, what: str, **facts: Any) -> None:
        line = json.dumps({"time": utc_now(), "event": what, **facts}, ensure_ascii=False)
        self._append(layout.EVENTS, line)

    def log(self, message: str) -> None:
        self._append(layout.LOG, f"{utc_now()} {message}")

    def _append(self, name: str, line: str) -> None:
        store.append_line(self.path / name, line)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        busy = f"{self.path} is being worked on by another process; wait for it or stop it"
        return store.locked(self.path / layout.LOCK, busy)

    # -- files at the top --------------------------------------------------------------------------------------------

    @property
    def resolved_recipe(self) -> Path:
        return self.path / layout.RESOLVED

    @property
    def report(self) -> Path:
        return self.path / layout.REPORT

    def recipe_text(self) -> str:
        return store.read_text(self.path / layout.RECIPE)

    def origins(self) -> list[ValueOrigin]:
        """Read where each value of the recipe came from."""
        return store.read_json(self.path / layout.ORIGINS, list[ValueOrigin])

    def write_origins(self, origins: Sequence[Mapping[str, str]]) -> None:
        """Keep the origins of the recipe's values, unless an earlier attempt at this run has."""
        path = self.path / layout.ORIGINS
        if not path.is_file():
            store.write_json(path, origins)
        if layout.ORIGINS not in self.own_files:
            self.update(files={**(self.manifest.files or {}), layout.ORIGINS: store.file_checksums(path)})

    @property
    def has_metrics(self) -> bool:
        return (self.path / layout.METRICS).is_file()

    def metrics(self) -> Metrics:
        return read_metrics(self.path)

    @property
    def has_verdicts(self) -> bool:
        return (self.path / layout.VERDICTS).is_file()

    def verdicts(self) -> VerdictSummary:
        return read_verdicts(self.path)

    def head_facts(self) -> list[HeadFacts]:
        return store.read_json(self.path / layout.HEAD_FACTS, list[HeadFacts])

    def predictions(self) -> TopK:
        """Read the model's ranking of the test rows."""
        from xmckit.records import TopK

        arrays = store.read_arrays(self.path / layout.PREDICTIONS, "indices", "scores")
        return TopK(arrays["indices"], arrays["scores"])

    def predicted_sets(self) -> csr_matrix | None:
        """Read the label sets that the model gives the test rows; None if the run did not keep them."""
        path = self.path / layout.SETS
        return store.read_csr(path) if path.is_file() else None

    # -- stages ------------------------------------------------------------------------------------------------------

    @property
    def stages(self) -> list[StageRecord]:
        return list(self.manifest.stages)

    def stage(self, name: str) -> StageRecord:
        """Return the record of a finished stage."""
        for record in self.manifest.stages:
            if record.name == name:
                return record
        raise StorageError(
            f"{self.path} has no finished stage '{name}': continue with `xmckit run --resume {self.path}`"
        )

    def stage_folder(self, stage: str | StageRecord) -> Path:
        """Return the folder of a finished stage."""
        record = self.stage(stage) if isinstance(stage, str) else stage
        folder = self.path / record.folder
        if not folder.is_dir():
            raise StorageError(f"{folder} is missing: make it again with `xmckit run --resume {self.path}`")
        return folder

    @property
    def label_stages(self) -> list[StageRecord]:
        return [stage for stage in self.stages if stage.kind == "label-preprocessor"]

    @property
    def index_stages(self) -> list[StageRecord]:
        """The stages that built the indexes of the final model."""
        return [stage for stage in self.stages if stage.name.startswith(layout.INDEX_PREFIX)]

    @property
    def head_stages(self) -> list[StageRecord]:
        return [stage for stage in self.stages if stage.kind == "head"]

    @property
    def head_names(self) -> list[str]:
        return [stage.section for stage in self.head_stages]

    def index_folder(self, name: str) -> Path:
        """Return the folder that the index `name` was saved in."""
        return self.stage_folder(layout.INDEX_PREFIX + name) / layout.INDEX

    def label_facts(self) -> list[LabelFacts]:
        return self._facts(self.label_stages, layout.LABELS_RECORD, LabelFacts)

    def index_facts(self) -> list[ComponentFacts]:
        return self._facts(self.index_stages, layout.INDEX_RECORD, ComponentFacts)

    def _facts(self, stages: Sequence[StageRecord], file: str, shape: type[Record]) -> list[Record]:
        """Read the facts of components; the name of each is that of its section in this run."""
        facts = []
        for stage in stages:
            path = self.stage_folder(stage) / file
            content = {**store.read_json(path, dict[str, Any]), "name": stage.section}
            facts.append(store.check_type(path, content, shape))
        return facts

    def features_stage(self, seen_by: str = "labels") -> str:
        """Return the name of the features stage that the stage `seen_by` sees.

        `seen_by` is `index-…` or `head-…`; `labels` stands for all label stages, which see the first features.
        """
        return (self.manifest.features or {}).get(seen_by, layout.FEATURES)

    def features_folder(self, seen_by: str = "labels") -> Path:
        return self.stage_folder(self.features_stage(seen_by))

    def features_facts(self, stage: str) -> FeaturesFacts:
        """Read `use`, `columns` and `as_in_data` of a features stage."""
        return store.read_json(self.stage_folder(stage) / layout.FEATURES_RECORD, FeaturesFacts)

    # -- what a model and its training rows are loaded from -----------------------------------------------------------

    def dataset(self) -> Dataset:
        from xmckit.data.saved import load_dataset

        return load_dataset(self.stage_folder(layout.DATA))

    def label_names(self) -> list[str]:
        """Read the names of the labels, or their numbers where they have no names."""
        from xmckit.data.saved import load_label_names

        return load_label_names(self.stage_folder(layout.DATA))

    @property
    def train_folder(self) -> Path:
        """The folder of the data's training rows, for `xmckit.data.saved`."""
        return self.stage_folder(layout.DATA) / "train"

    def description(self) -> dict[str, Any]:
        """Read what `xmckit data info` says about the data."""
        return dict(store.read_json(self.stage_folder(layout.DATA) / layout.DESCRIPTION, Description))

    @property
    def can_report(self) -> bool:
        """Whether the run keeps what a report needs."""
        return (self.stage_folder(layout.SCORE) / layout.DIAGNOSTICS).is_file()

    def diagnostics(self) -> Diagnostics:
        """Read the numbers behind the report's charts."""
        path = self.stage_folder(layout.SCORE) / layout.DIAGNOSTICS
        return store.read_json(path, Diagnostics, check_diagnostics)

    def examples(self) -> list[Example]:
        return store.read_json(self.stage_folder(layout.SCORE) / layout.EXAMPLES, list[Example])

    def head_folder(self, stage: StageRecord) -> Path:
        """Return the folder that the head of a stage was saved in."""
        return self.stage_folder(stage) / layout.HEAD

    def load_head(self, stage: StageRecord, context: Context) -> Any:
        return context.load("head", stage.use, self.head_folder(stage))

    def load_featurizer(self, stage: str, context: Context) -> Featurizer:
        """Load the featurizer of a features stage."""
        folder = self.stage_folder(stage) / layout.FEATURIZER
        featurizer: Featurizer = context.load("featurizer", self.features_facts(stage)["use"], folder)
        return featurizer

    def training_rows(self, seen_by: str = "labels") -> tuple[Matrix, csr_matrix]:
        """Read (X, Y) of the training rows as the stage `seen_by` sees them, the validation share included."""
        from xmckit.data.saved import load_split

        stage = self.features_stage(seen_by)
        if self.features_facts(stage)["as_in_data"]:
            X = load_split(self.train_folder).matrix
        else:
            X = store.read_matrix(self.stage_folder(stage) / layout.TRAIN_FEATURES)
        relabelled = self.label_stages
        source = self.stage_folder(relabelled[-1]) if relabelled else self.train_folder
        return X, store.read_csr(source / "Y.npz")

    def test_features(self, stage: str, dataset: Dataset) -> Matrix:
        """Read the features of the test rows from a features stage; `dataset` is the run's."""
        if self.features_facts(stage)["as_in_data"]:
            return dataset.test.matrix
        return store.read_matrix(self.stage_folder(stage) / layout.TEST_FEATURES)

    def explain_missing(self, context: Context) -> Context:
        """Return a context whose `resolve` says where a missing component of the run came from."""
        from xmckit.registry import how_to_have

        sources: dict[str, str] = {}
        for stage in self.manifest.stages:
            sources.update(stage.identity.get("sources", {}))

        def resolve(kind: str, name: str) -> Any:
            try:
                return context.resolve(kind, name)
            except PluginError as error:
                source = sources.get(f"{kind}:{name}")
                came_from = f", which came from {how_to_have(source)}" if source is not None else ""
                raise PluginError(f"{self.path} needs {kind}:{name}{came_from}. {error}") from error

        return context.using(resolve=resolve)


def open_linked(folder: Path, verb: str, path: str, identity: str) -> Run:
    """Open the run that a file in `folder` refers to by its path from there; `verb` says in errors what it does."""
    try:
        target = (folder / path).resolve()
        exists = is_run(target)
    except (ValueError, OSError, RuntimeError) as error:  # no path at all: an impossible character, or too long
        raise store.damaged(folder, f"it {verb} the run {path!r}: {error}", f"Make {folder} again.") from None
    if not exists:
        raise UsageError(f"{folder} {verb} the run {target}, which does not exist: restore it, or make {folder} again")
    run = Run.open(target)
    if run.manifest.identity != identity:
        raise UsageError(f"{folder} {verb} another run than the one that is now in {target}: make {folder} again")
    return run


def is_run(folder: Path) -> bool:
    """Return whether the folder is a run; its manifest may be damaged, or something else than a file."""
    return os.path.lexists(folder / layout.MANIFEST)


def is_ensemble(folder: Path) -> bool:
    """Return whether `xmckit ensemble` wrote this folder."""
    return (folder / layout.ENSEMBLE).is_file()


def read_metrics(folder: Path) -> Metrics:
    """Read metrics.json of a run, of its score stage, or of a folder that combines runs."""
    return store.read_json(folder / layout.METRICS, Metrics)


def read_verdicts(folder: Path) -> VerdictSummary:
    """Read verdicts.json of a run, of its verify stage, or of a folder that `xmckit verify` wrote."""
    return store.read_json(folder / layout.VERDICTS, VerdictSummary, check_verdicts)


def _folder_name(recipe: str) -> str:
    return re.sub(r"[^\w.-]+", "-", recipe).strip("-.") or "run"
