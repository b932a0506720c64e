"""`Run`: one run folder. It reads every file of the folder; nothing else opens them by name."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit import store
from xmckit.errors import PluginError, StorageError, UsageError
from xmckit.runs import layout
from xmckit.runs.records import RUN_FORMAT, HeadFacts, LabelFacts, Manifest, Metrics, StageRecord, VerdictSummary

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Dataset, Matrix
    from xmckit.protocols import Featurizer
    from xmckit.records import TopK
    from xmckit.runs.records import ComponentFacts


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
        manifest = Manifest(RUN_FORMAT, name, identity, "created", utc_now(), stages=(), pid=os.getpid())
        for attempt in itertools.count():
            path = parent / (f"{stamp}-{identity[:8]}" + (f"-{attempt}" if attempt else ""))
            if path.exists():
                continue
            # The same recipe may be started twice within a second: each gets a folder of its own.
            with contextlib.suppress(FileExistsError), store.atomic_folder(path, exclusive=True) as folder:
                store.write_text(folder / layout.RECIPE, recipe_text)
                store.write_text(folder / layout.RESOLVED, resolved_text)
                store.write_json(folder / layout.MANIFEST, manifest.to_json())
                (folder / layout.STAGES).mkdir()
                break
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run; UsageError if the folder is no run, StorageError if it is damaged or newer."""
        path = Path(path).resolve()
        file = path / layout.MANIFEST
        if not is_run(path):
            raise UsageError(
                f"{path} is not a run folder: it has no {layout.MANIFEST}. `xmckit runs ls` lists the runs."
            )
        content = store.read_json(file)
        if not isinstance(content, dict) or "format" not in content:
            raise store.damaged(file, "no format")
        if content["format"] != RUN_FORMAT:
            raise StorageError(
                f"{path} was written in run format {content['format']} and this xmckit reads format {RUN_FORMAT}. "
                f"Run {path / layout.RESOLVED} again, or use the version of xmckit that made it."
            )
        return cls(path, Manifest.from_json(content, file))

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

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest, in memory and on disk."""
        self.manifest = dataclasses.replace(self.manifest, **changes)
        store.write_json(self.path / layout.MANIFEST, self.manifest.to_json())

    def event(self, what: str, **facts: Any) -> None:
        line = json.dumps({"time": utc_now(), "event": what, **facts}, ensure_ascii=False)
        self._append(layout.EVENTS, line)

    def log(self, message: str) -> None:
        self._append(layout.LOG, f"{utc_now()} {message}")

    def _append(self, name: str, line: str) -> None:
        with open(self.path / name, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

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
        return (self.path / layout.RECIPE).read_text("utf-8")

    def origins(self) -> list[dict[str, str]]:
        """Read where each value of the recipe came from: `key`, `value`, `origin`."""
        origins: list[dict[str, str]] = store.read_json(self.path / layout.ORIGINS)
        return origins

    def write_origins(self, origins: list[dict[str, str]]) -> None:
        """Keep the origins of the recipe's values, unless an earlier attempt at this run has."""
        if not (self.path / layout.ORIGINS).is_file():
            store.write_json(self.path / layout.ORIGINS, origins)

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
        facts: list[HeadFacts] = store.read_json(self.path / layout.HEAD_FACTS)
        return facts

    def predictions(self) -> TopK:
        """Read the model's ranking of the test rows."""
        from xmckit.records import TopK

        arrays = store.read_arrays(self.path / layout.PREDICTIONS, "indices", "scores")
        return TopK(arrays["indices"], arrays["scores"])

    def predicted_sets(self) -> csr_matrix | None:
        """Read the label sets that the model gives the test rows; None where the run did not keep them."""
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

    def stage_folder(self, name: str) -> Path:
        """Return the folder of a finished stage."""
        return self.path / self.stage(name).folder

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
        facts: list[LabelFacts] = self._facts(self.label_stages, layout.LABELS_RECORD)
        return facts

    def index_facts(self) -> list[ComponentFacts]:
        facts: list[ComponentFacts] = self._facts(self.index_stages, layout.INDEX_RECORD)
        return facts

    def _facts(self, stages: Sequence[StageRecord], file: str) -> Any:
        return [{"name": stage.section, **store.read_json(self.path / stage.folder / file)} for stage in stages]

    def features_stage(self, seen_by: str = "labels") -> str:
        """Return the name of the features stage that the stage `seen_by` sees.

        `seen_by` is `index-…` or `head-…`; `labels` stands for all label stages, which see the first features.
        """
        return (self.manifest.features or {}).get(seen_by, layout.FEATURES)

    def features_folder(self, seen_by: str = "labels") -> Path:
        return self.stage_folder(self.features_stage(seen_by))

    def features_facts(self, stage: str) -> dict[str, Any]:
        """Read `use`, `columns` and `as_in_data` of a features stage."""
        facts: dict[str, Any] = store.read_json(self.stage_folder(stage) / layout.FEATURES_RECORD)
        return facts

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
        description: dict[str, Any] = store.read_json(self.stage_folder(layout.DATA) / layout.DESCRIPTION)
        return description

    @property
    def can_report(self) -> bool:
        """Whether the run keeps what a report needs."""
        return (self.stage_folder(layout.SCORE) / layout.DIAGNOSTICS).is_file()

    def diagnostics(self) -> dict[str, Any]:
        """Read the numbers behind the report's charts."""
        numbers: dict[str, Any] = store.read_json(self.stage_folder(layout.SCORE) / layout.DIAGNOSTICS)
        return numbers

    def examples(self) -> list[dict[str, Any]]:
        examples: list[dict[str, Any]] = store.read_json(self.stage_folder(layout.SCORE) / layout.EXAMPLES)
        return examples

    def head_folder(self, stage: StageRecord) -> Path:
        """Return the folder that the head of a stage was saved in."""
        return self.path / stage.folder / layout.HEAD

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
        if self.features_facts(stage).get("as_in_data"):
            X = load_split(self.train_folder).matrix
        else:
            X = store.read_matrix(self.stage_folder(stage) / layout.TRAIN_FEATURES)
        relabelled = self.label_stages
        source = self.path / relabelled[-1].folder if relabelled else self.train_folder
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
                if source is None:
                    raise
                raise PluginError(
                    f"this model needs {kind}:{name}, which came from {how_to_have(source)}. {error}"
                ) from error

        return context.using(resolve=resolve)


def is_run(folder: Path) -> bool:
    return (folder / layout.MANIFEST).is_file()


def is_ensemble(folder: Path) -> bool:
    """Return whether `xmckit ensemble` wrote this folder."""
    return (folder / layout.ENSEMBLE).is_file()


def read_metrics(folder: Path) -> Metrics:
    """Read metrics.json of a run, of its score stage, or of a folder that combines runs."""
    metrics: Metrics = store.read_json(folder / layout.METRICS)
    return metrics


def read_verdicts(folder: Path) -> VerdictSummary:
    """Read verdicts.json of a run, of its verify stage, or of a folder that `xmckit verify` wrote."""
    verdicts: VerdictSummary = store.read_json(folder / layout.VERDICTS)
    return verdicts


def _folder_name(recipe: str) -> str:
    return re.sub(r"[^\w.-]+", "-", recipe).strip("-.") or "run"
