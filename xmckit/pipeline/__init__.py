"""Run a recipe from data to report, or plan what a run would do.

    data ─▶ features ─▶ labels ─▶ index ─▶ head ─▶ score ─▶ verify ─▶ report

Each stage is a file in `stages/`, a subclass of `stage.Stage` that says what it depends on, what it makes and how that
is read back. `do_stages` below is their order. To add a stage, write such a file, give its folder and files names in
`xmckit.runs.layout`, and call it in `do_stages`. The package imports all of the core but `cli`, `bench`, `analysis` and
`model`; public: `run`, `plan`, `is_current`, `Result`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit import store
from xmckit.context import Progress, silent
from xmckit.errors import UsageError, XmckitError, is_machine_error
from xmckit.hookspecs import API_VERSION
from xmckit.pipeline.cache import PlannedStage, StagePlanner, StageRunner, check_cache
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import Stage
from xmckit.recipe import Recipe, load_recipe
from xmckit.registry import Registry, default_registry
from xmckit.runs import DEFAULT_ROOT, Metrics, Run, StageRecord, layout, provenance

if TYPE_CHECKING:
    from xmckit.pipeline.stages.score import ScoreStage

__all__ = ["DEFAULT_ROOT", "Result", "is_current", "plan", "run"]


@dataclass(frozen=True)
class Result:
    """A finished run: its folder and the content of its metrics.json."""

    run: Run
    metrics: Metrics

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def report(self) -> Path:
        return self.run.report

    @property
    def warnings(self) -> list[str]:
        """What label stages, indexes and heads want their user to know, such as a guarantee that does not hold."""
        run = self.run
        reported: list[Mapping[str, Any]] = [*run.label_facts(), *run.index_facts(), *run.head_facts()]
        return [f"{one['name']}: {text}" for one in reported for text in one["facts"].get("warnings", ())]


def run(
    recipe: Recipe | str | Path,
    *,
    sets: Sequence[str] = (),
    root: str | Path = DEFAULT_ROOT,
    resume: str | Path | None = None,
    registry: Registry | None = None,
    data_roots: Sequence[Path] = (),
    progress: Progress = silent,
    started: Callable[[Run], None] = lambda run: None,
    announce: Callable[[StageRecord], None] = lambda record: None,
    argv: Sequence[str] = (),
) -> Result:
    """Run a recipe from data to report. `resume` names a run folder to continue instead of creating one.

    `started` is called with the run as soon as its folder exists, `announce` with the record of each finished stage.
    """
    registry = registry or default_registry()
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, sets=sets, registry=registry, data_roots=data_roots)
    folder = _open_or_create(recipe, Path(root), resume, registry)
    with folder.locked():
        started(folder)
        try:
            stages = StageRunner(folder, folder.root / layout.CACHE, announce)
            setup = Setup(recipe, registry, progress, folder.log)
            _record_start(folder, setup, argv)
            metrics = do_stages(setup, stages).value
        except BaseException as error:
            _record_failure(folder, error)
            raise
        folder.update(status="done", error=None)
        folder.event("done")
        return Result(folder, metrics)


def plan(
    recipe: Recipe, *, root: str | Path = DEFAULT_ROOT, registry: Registry | None = None, progress: Progress = silent
) -> list[PlannedStage]:
    """List what `run` would do, stage by stage, and which stages the cache has. Nothing is written."""
    stages = StagePlanner(Path(root) / layout.CACHE)
    do_stages(Setup(recipe, registry or default_registry(), progress, log=lambda message: None), stages)
    return stages.steps


def is_current(run: Run, steps: Sequence[PlannedStage]) -> bool:
    """Return whether a run is what the stages of a plan would give: same recipe, data, code and libraries."""
    return [stage.key for stage in run.stages] == [step.key for step in steps]


def do_stages(setup: Setup, stages: StageRunner | StagePlanner) -> ScoreStage:
    """Run or plan every stage in order; return the score stage.

    A stage's value is read only if another stage needs it.
    """
    from xmckit.pipeline.rows import FitInputs, FitRows, TrainingRows
    from xmckit.pipeline.stages.data import DataStage
    from xmckit.pipeline.stages.features import FeaturesStage
    from xmckit.pipeline.stages.head import HeadStage
    from xmckit.pipeline.stages.index import IndexStage
    from xmckit.pipeline.stages.labels import LabelsStage
    from xmckit.pipeline.stages.report import ReportStage
    from xmckit.pipeline.stages.score import ScoreStage
    from xmckit.pipeline.stages.verify import VerifyStage

    recipe, context = setup.recipe, setup.context
    data = DataStage(setup)
    stages.note(data=data.fingerprint)
    stages.do(data)

    features = {section.name: stages.do(FeaturesStage(setup, section, data)) for section in recipe.features}
    if len(features) > 1:
        stages.note(features=setup.features_seen({name: stage.name for name, stage in features.items()}))

    first = next(iter(features.values()))
    relabelled = None
    for position in range(len(recipe.labels)):
        relabelled = stages.do(LabelsStage(setup, position, data, first, relabelled))

    rows = {name: TrainingRows(data, stage, relabelled, context) for name, stage in features.items()}
    parts = {name: FitRows(one, recipe.validation, context) for name, one in rows.items()}
    rounds = [parts, {name: FitRows(one, None, context) for name, one in rows.items()}] if recipe.refit else [parts]
    fits = []
    for fit_rows in rounds:
        on_part = recipe.refit and fit_rows is parts
        indexes = [
            stages.do(IndexStage(setup, position, section, fit_rows[recipe.seen_by(section)], on_part=on_part))
            for position, section in enumerate(recipe.index)
        ]
        fits.append(FitInputs(fit_rows, indexes))

    heads = [stages.do(HeadStage(setup, position, fits)) for position in range(len(recipe.heads))]
    score = stages.do(ScoreStage(setup, data, features, heads))
    last: list[Stage[Any]] = [score]
    if recipe.verify is not None:
        verify = VerifyStage(setup, recipe.verify, data, features, heads, fits[-1].rows, parts)
        last.append(stages.do(verify))
    stages.do(ReportStage(setup, last))
    return score


def _open_or_create(recipe: Recipe, root: Path, resume: str | Path | None, registry: Registry) -> Run:
    """Create a run folder, or open the one to resume; UsageError if its results would not be this recipe's."""
    identity = store.canonical_sha256(recipe.resolved())
    if resume is None:
        check_cache(root / layout.CACHE)  # before there is a folder of a run that could only fail
        return Run.create(root, recipe.name, identity, recipe.text, recipe.to_toml())
    folder = Run.open(Path(resume))
    if folder.manifest.identity != identity:
        raise UsageError(
            f"{folder.path} was made by another recipe, or the parameters of its components have changed since. "
            f"Leave the recipe out to resume with the run's own, or start a new run of {folder.resolved_recipe}."
        )
    if folder.is_done and not is_current(folder, plan(recipe, root=folder.root, registry=registry)):
        raise UsageError(
            f"{folder.path} is done, and its data, code or libraries have changed since: its results stay as they "
            f"are. Run {folder.resolved_recipe} to get new ones."
        )
    return folder


def _record_start(folder: Run, setup: Setup, argv: Sequence[str]) -> None:
    recipe = setup.recipe
    folder.update(
        status="running",
        pid=os.getpid(),
        argv=list(argv or sys.argv),
        seed=recipe.seed,
        heads=len(recipe.heads),
        top=recipe.score.top,
        ensemble=recipe.ensemble,
        workers=setup.context.workers,
        api_version=API_VERSION,
        versions=setup.versions(),
        machine=provenance.machine(),
        title=recipe.report_title or recipe.title,
        files=folder.own_files,  # without those of an earlier attempt, which this one replaces
    )
    folder.write_origins(recipe.written())
    folder.event("start")


def _record_failure(folder: Run, error: BaseException) -> None:
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    try:
        if not isinstance(error.__cause__ or error, (XmckitError, KeyboardInterrupt)):
            folder.log(traceback.format_exc())
        folder.update(status=status, error=f"{type(error).__name__}: {error}")
        folder.event(status, error=str(error))
    except OSError as second:
        if not (is_machine_error(error) and is_machine_error(second)):
            raise
        # The disk is too full even for this; the first error says so, and a run whose process is gone was killed.
