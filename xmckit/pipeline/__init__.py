"""The stages of a run, in order: data, features, labels, index, head, score, verify, report.

Each stage is cached by content (see `runs`). This file says what each stage reads and writes; what it computes is in
the components that the recipe names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xmckit import exhibits, store
from xmckit.context import Context, Progress, cpu_count, silent
from xmckit.errors import (
    DataError,
    PluginError,
    UsageError,
    XmckitError,
    blaming,
    component_of,
    is_of_the_machine,
)
from xmckit.hookspecs import API_VERSION
from xmckit.pipeline.rows import Featured, Fit, Lazy, Rows, nothing, test_rows, training_rows
from xmckit.recipe import Recipe, Section, input_paths, load_recipe, nested_specs
from xmckit.registry import Registry, default_registry, place_of
from xmckit.registry.locations import one_line
from xmckit.report import write_report
from xmckit.runs import CACHE, Planned, Run, Stage, Stages, provenance
from xmckit.runs.layout import ORIGINS

if TYPE_CHECKING:
    from xmckit.data.model import Dataset, Matrix, Split

DEFAULT_ROOT = Path("runs")
Value = TypeVar("Value")

# stage -> its files that a person looks for at the top of the run folder
_AT_THE_TOP = {
    "score": ("predictions.npz", "sets.npz", "metrics.json", "facts.json"),
    "verify": ("verdicts.json", "certificates.npz"),
}


@dataclass(frozen=True)
class Result:
    """What a run gave: its folder and the content of its metrics.json."""

    run: Run
    metrics: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def warnings(self) -> list[str]:
        """What label stages, indexes and heads want their user to know, such as a guarantee that does not hold."""
        told = [*self.run.label_facts(), *self.run.index_facts(), *store.read_json(self.path / "facts.json")]
        return [f"{one['name']}: {text}" for one in told for text in one["facts"].get("warnings", ())]

    @property
    def report(self) -> Path:
        return self.run.path / "report.html"


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
    announce: Callable[[dict[str, Any]], None] = lambda record: None,
    argv: Sequence[str] = (),
) -> Result:
    """Run a recipe from data to report. `resume` names a run folder to go on with instead of making a new one.

    `started` hears of the run's folder as soon as it is there, `announce` of each stage that is finished.
    """
    registry = registry or default_registry()
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, sets=sets, registry=registry, data_roots=data_roots)
    identity = store.canonical_sha256(recipe.resolved())
    root = Path(root)
    if resume is None:
        folder = Run.create(root, recipe.name, identity, recipe.text, recipe.to_toml())
    else:
        folder = Run.open(Path(resume))
        root = folder.root
        if folder.manifest["identity"] != identity:
            raise UsageError(
                f"{folder.path} was made by another recipe, or the parameters of its components have changed since. "
                f"Leave the recipe out to go on with the run's own, or run {folder.path / 'resolved.toml'} anew."
            )
        if folder.status == "done" and not is_current(folder, plan(recipe, root=root, registry=registry)):
            raise UsageError(
                f"{folder.path} is done, and its data, code or libraries have changed since: its results stay as they "
                f"are. Run {folder.path / 'resolved.toml'} to have new ones."
            )
    with folder.locked():
        started(folder)
        try:
            stages = Stages(folder, root / CACHE, announce)
            pipeline = _Pipeline(recipe, registry, stages, progress)
            folder.update(
                status="running",
                pid=os.getpid(),
                argv=list(argv or sys.argv),
                seed=recipe.seed,
                heads=len(recipe.heads),
                top=recipe.score.top,
                ensemble=recipe.ensemble,
                workers=pipeline.context.workers,
                api_version=API_VERSION,
                versions=pipeline.versions(),
                machine=provenance.machine(),
                title=recipe.report_title or recipe.title,
            )
            if not (folder.path / ORIGINS).is_file():
                store.write_json(folder.path / ORIGINS, recipe.written())
            folder.event("start")
            last = pipeline.stages_in_order()
            for stage, names in _AT_THE_TOP.items():
                for name in names if stage in last else ():
                    store.link_file(last[stage].folder / name, folder.path / name)
            write_report(folder)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            if not isinstance(error.__cause__ or error, (XmckitError, KeyboardInterrupt)):
                folder.log(traceback.format_exc())
            folder.update(status=status, error=f"{type(error).__name__}: {error}")
            folder.event(status, error=str(error))
            raise
        folder.manifest.pop("error", None)
        folder.update(status="done")
        folder.event("done")
        return Result(folder, last["score"].value)


def plan(
    recipe: Recipe, *, root: str | Path = DEFAULT_ROOT, registry: Registry | None = None, progress: Progress = silent
) -> list[dict[str, Any]]:
    """What `run` would do, stage by stage, and which stages it would take from the cache. Nothing is written."""
    stages = Planned(Path(root) / CACHE)
    _Pipeline(recipe, registry or default_registry(), stages, progress).stages_in_order()
    return stages.steps


def is_current(run: Run, steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run is what the stages of a plan would give: same recipe, data, code and libraries."""
    return [stage["key"] for stage in run.manifest["stages"]] == [step["key"] for step in steps]


def _content_sha256(path: Path) -> str:
    """Of a file, or of all files in a folder."""
    try:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return store.canonical_sha256([[str(file.relative_to(path)), store.file_sha256(file)] for file in files])
    except OSError as error:
        raise DataError(f"this file cannot be read: {error}", path=path) from None


class _Pipeline:
    """The stages of one recipe. `stages` runs them (`Stages`) or only lists them (`Planned`)."""

    def __init__(self, recipe: Recipe, registry: Registry, stages: Stages | Planned, progress: Progress):
        self.recipe, self.registry, self.stages = recipe, registry, stages
        # Data and features must not follow the run's seed: seeds are compared on the same rows.
        self.data_seed: int = recipe.data.extra["seed"]
        self._label_names: Lazy[Any] = nothing()
        self.context = Context(
            seed=recipe.seed,
            workers=recipe.workers or cpu_count(),
            progress=progress,
            executor=registry.resolve("executor", recipe.executor.use)(**recipe.executor.params),
            resolve=registry.resolve,
            names=registry.names,
            log=stages.log,
        )

    def stages_in_order(self) -> dict[str, Stage[Any]]:
        """Every stage up to the report, by name; a stage's value is made only when something asks for it."""
        recipe = self.recipe
        data = self._data()
        self._label_names = Lazy(lambda: data.value.label_names)
        features = {section.name: self._features(data, section) for section in recipe.features}
        if len(features) > 1:
            self.stages.note(features=self._who_sees({name: stage.name for name, stage in features.items()}))
        relabelled = self._labels(data, next(iter(features.values()))) if recipe.labels else None
        whole = training_rows(data, features, relabelled, self.context)
        parts = {name: rows.carved(recipe.validation, self.context) for name, rows in whole.items()}
        rounds = [("part-index", parts), ("index", whole)] if recipe.refit else [("index", parts)]
        fits = [
            Fit(rows, [self._index(called, place, section, rows) for place, section in enumerate(recipe.index)])
            for called, rows in rounds
        ]
        heads = [self._head(position, section, fits) for position, section in enumerate(recipe.heads)]
        last = {"score": self._score(data, features, heads)}
        if recipe.verify is not None:
            asked: dict[str, Mapping[str, Lazy[Any]]] = {
                "train": {name: rows.train for name, rows in fits[-1].rows.items()},
                "validation": {name: rows.validation for name, rows in parts.items()},
                "test": test_rows(data, features),
            }
            last["verify"] = self._verify(data, features, heads, asked[recipe.verify.extra["assignments"]])
        return last

    def _who_sees(self, stages: Mapping[str, str]) -> dict[str, str]:
        """The stage of features that label stages, each index and each head see, by the name of their stages."""
        recipe = self.recipe
        seeing = {f"index-{section.name}": section for section in recipe.index}
        seeing |= {f"head-{section.name}": section for section in recipe.heads}
        seen = {name: stages[recipe.seen_by(section)] for name, section in seeing.items()}
        return {"labels": next(iter(stages.values())), **seen}

    def versions(self) -> dict[str, str]:
        recipe = self.recipe
        verify = [recipe.verify] if recipe.verify else []
        versions: dict[str, str] = {}
        for section in [recipe.data, *recipe.features, *recipe.labels, *recipe.index, *recipe.heads, *verify]:
            home = self.registry.component(section.kind, section.use).plugin.distribution
            versions.update(provenance.library_versions(home))
        return dict(sorted(versions.items()))

    # -- what a stage depends on ---------------------------------------------------------------------------------

    def _identity(
        self, section: Section, inputs: Sequence[str], also: Sequence[tuple[str, str]] = (), **more: Any
    ) -> dict[str, Any]:
        """Everything that can change the stage's output; `also` are (kind, name) that its parameters do not name."""
        params = self.registry.resolve(section.kind, section.use).Params
        used = [(section.kind, section.use), *nested_specs(params, section.params, self.registry), *also]
        registered = [self.registry.component(kind, use) for kind, use in used]
        versions: dict[str, str] = {}
        for item in registered:
            versions.update(provenance.library_versions(item.plugin.distribution))
        # data sets say themselves what of their files matters
        paths = [] if section.kind == "dataset" else input_paths(params, section.params, self.registry)
        if paths:
            more["files"] = {str(path): _content_sha256(path) for path in paths}
        return {
            "kind": section.kind,
            "use": section.use,
            "sources": {f"{item.kind}:{item.component.name}": item.plugin.source for item in registered},
            "params": section.params,
            "api_version": API_VERSION,
            "inputs": list(inputs),
            "code": {f"{item.kind}:{item.component.name}": provenance.code_of(item) for item in registered},
            "versions": dict(sorted(versions.items())),
            **more,
        }

    def _do(
        self,
        name: str,
        identity: dict[str, Any],
        produce: Callable[[Path, Context], Value],
        restore: Callable[[Path], Value],
    ) -> Stage[Value]:
        def blamed() -> contextlib.AbstractContextManager[None]:
            return blaming(identity["kind"], identity["use"]) if "use" in identity else contextlib.nullcontext()

        def made(folder: Path, scratch: Path) -> Value:
            with self._named(), blamed():
                return produce(folder, self.context.using(folder=scratch))

        def restored(folder: Path) -> Value:  # while a later stage is made, which is not to blame
            with blamed():
                return restore(folder)

        return self.stages.do(name, identity, made, restored)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the body for which a component is blamed says which it is, of which plugin, and where."""
        try:
            yield
        except Exception as error:
            told = self._told(error)
            if told is None:
                raise
            raise told from error

    def _told(self, error: Exception) -> PluginError | None:
        who = component_of(error)
        if who is None or is_of_the_machine(error):
            return None
        registered = self.registry.component(*who)
        if isinstance(error, PluginError):
            return PluginError(f"{error} ({registered.described}, {self.registry.locate(*who)})")
        at = None if isinstance(error, XmckitError) else place_of(error, registered)
        if at is None:  # about the data, or a mistake of our own
            return None
        said = f"{' '.join(who)} raised {one_line(error)}"
        return PluginError(f"{said} ({registered.described}, {at}); the run's log.txt has the traceback")

    def _build(self, section: Section) -> Any:
        return self.registry.resolve(section.kind, section.use)(**section.params)

    # -- the stages ----------------------------------------------------------------------------------------------

    def _data(self) -> Stage[Dataset]:
        from xmckit.components.metrics import propensity_constants
        from xmckit.data.describe import describe
        from xmckit.data.saved import load_dataset, save_dataset
        from xmckit.pipeline.output_checks import checked_dataset, checked_fingerprint

        section = self.recipe.data
        source = self._build(section)
        asked: list[tuple[str, str]] = []

        def resolve(kind: str, name: str) -> Any:
            target = self.registry.resolve(kind, name)
            asked.append((kind, name))
            return target

        # What the source asks for while it looks at its input, such as the reader of a format, is behind its rows too.
        with self._named(), blaming(section.kind, section.use):
            found = source.fingerprint(context=self.context.using(seed=self.data_seed, resolve=resolve))
            prints = checked_fingerprint(found, section.use)
        self.stages.note(data=prints)

        def produce(folder: Path, context: Context) -> Dataset:
            dataset = checked_dataset(source.read(context=context.using(seed=self.data_seed)), section.use)
            propensity_constants(dataset.propensity)
            if dataset.train.rows == 0 or dataset.labels == 0:
                raise DataError(f"{dataset.name} has {dataset.train.rows} training rows and {dataset.labels} labels")
            save_dataset(dataset, folder)
            store.write_json(folder / "description.json", describe(dataset))
            return dataset

        identity = self._identity(section, [], asked, fingerprint=prints, seed=self.data_seed)
        return self._do("data", identity, produce, load_dataset)

    def _features(self, data: Stage[Dataset], section: Section) -> Stage[Featured]:
        from xmckit.pipeline.output_checks import check_saved, checked_features, untouched

        def produce(folder: Path, context: Context) -> Featured:
            seeded = context.using(seed=self.data_seed)
            featurizer = self._build(section)
            with untouched(f"featurizer {section.use}", data.value.train):
                featurizer.fit(data.value.train, context=seeded)

            def features_of(split: Split) -> Matrix:
                with untouched(f"featurizer {section.use}", split):
                    X = featurizer.transform(split, context=seeded)
                return checked_features(X, split, section.use)

            featured = Featured(featurizer, features_of(data.value.train), features_of(data.value.test))
            (folder / "featurizer").mkdir()
            featurizer.save(folder / "featurizer")
            check_saved(folder / "featurizer", f"featurizer {section.use}")
            same = featured.train is data.value.train.X and featured.test is data.value.test.X
            told = {"use": section.use, "as_in_data": same, "columns": int(featured.train.shape[1])}
            store.write_json(folder / "features.json", told)
            if not same:
                store.write_matrix(folder / "X.trn.npz", featured.train)
                store.write_matrix(folder / "X.tst.npz", featured.test)
            return featured

        def restore(folder: Path) -> Featured:
            featurizer = self.context.load("featurizer", section.use, folder / "featurizer")
            if store.read_json(folder / "features.json")["as_in_data"]:
                return Featured(featurizer, data.value.train.matrix, data.value.test.matrix)
            return Featured(featurizer, *(store.read_matrix(folder / f"X.{part}.npz") for part in ("trn", "tst")))

        def one_of_several(folder: Path, context: Context) -> Featured:
            try:
                return produce(folder, context)
            except DataError as error:
                raise DataError(f"features {section.name}: {error}") from error

        identity = self._identity(section, [data.key], seed=self.data_seed)
        if len(self.recipe.features) == 1:
            return self._do("features", identity, produce, restore)
        return self._do(f"features-{section.name}", identity, one_of_several, restore)

    def _labels(self, data: Stage[Dataset], features: Stage[Featured]) -> tuple[str, Lazy[Split]]:
        """The key and the training rows after all label stages."""
        from xmckit.data.saved import load_split
        from xmckit.pipeline.stages.labels import relabel
        from xmckit.runs.layout import LABELS_STAGE

        key, train = features.key, Lazy(lambda: replace(data.value.train, X=features.value.train))
        for position, section in enumerate(self.recipe.labels):

            def produce(
                folder: Path, context: Context, section: Section = section, position: int = position,
                before: Lazy[Split] = train,
            ) -> Split:  # fmt: skip
                seeded = context.using(seed=context.seed_for("labels", position))
                own = data.value.train.Y
                return relabel(folder, self._build(section), section.use, before.value, own, context=seeded)

            def restore(folder: Path, before: Lazy[Split] = train) -> Split:
                stored = load_split(folder)
                return replace(before.value, Y=stored.Y, weights=stored.weights, groups=stored.groups)

            stage = self._do(
                f"{LABELS_STAGE}{section.name}",
                self._identity(section, [key], seed=self.context.seed_for("labels", position)),
                produce,
                restore,
            )
            key, train = stage.key, Lazy(functools.partial(getattr, stage, "value"))
        return key, train

    def _trained(self, context: Context, kind: str, position: int, rows: Rows) -> Context:
        return context.using(
            seed=context.seed_for(kind, position),
            validation=rows.validation.value,
            label_names=self._label_names.value,
            label_rows=lambda: rows.labels.value,
        )

    def _trained_identity(
        self, section: Section, inputs: Sequence[str], position: int, share: Sequence[Any]
    ) -> dict[str, Any]:
        return self._identity(section, inputs, seed=self.context.seed_for(section.kind, position), validation=share)

    def _index(self, called: str, position: int, section: Section, seen: Mapping[str, Rows]) -> Stage[Any]:
        from xmckit.components.indexes import named_index
        from xmckit.pipeline.output_checks import check_saved, untouched

        rows = seen[self.recipe.seen_by(section)]

        def produce(folder: Path, context: Context) -> Any:
            who = f"indexer {section.use}"
            with untouched(who, rows.train.value):
                index = self._build(section).build(
                    rows.train.value, context=self._trained(context, "indexer", position, rows)
                )
            named_index(index, section.use)
            (folder / "index").mkdir()
            index.save(folder / "index")
            check_saved(folder / "index", who)
            store.write_json(folder / "index.json", _told_by_index(index, section.use))
            return index

        return self._do(
            f"{called}-{section.name}",
            self._trained_identity(section, rows.keys, position, rows.share),
            produce,
            lambda folder: named_index(self.context.load("indexer", section.use, folder / "index"), section.use),
        )

    def _head(self, position: int, section: Section, fits: Sequence[Fit]) -> Stage[Any]:
        """Trained on the first of `fits`, and where there is another, once more on that."""
        from xmckit.pipeline.output_checks import check_saved, untouched

        names = [index.name for index in self.recipe.index]
        places = [names.index(name) for name in section.extra.get("index", names)]
        used = [[fit.indexes[place] for place in places] for fit in fits]
        seen = [fit.rows[self.recipe.seen_by(section)] for fit in fits]

        def produce(folder: Path, context: Context) -> Any:
            head, who = self._build(section), f"head {section.use}"
            for again, (rows, indexes) in enumerate(zip(seen, used, strict=True)):
                with untouched(who, rows.train.value):
                    (head.refit if again else head.fit)(
                        rows.train.value,
                        indexes=[_for_one_head(index) for index in indexes],
                        context=self._trained(context, "head", position, rows),
                    )
            (folder / "head").mkdir()
            head.save(folder / "head")
            check_saved(folder / "head", who)
            return head

        return self._do(
            f"head-{section.name}",
            self._trained_identity(
                section,
                [*seen[0].keys, *(index.key for indexes in used for index in indexes)],
                position,
                [*seen[0].share, *(["refit"] if len(fits) > 1 else [])],
            ),
            produce,
            lambda folder: self.context.load("head", section.use, folder / "head"),
        )

    def _score(
        self, data: Stage[Dataset], features: Mapping[str, Stage[Featured]], heads: Sequence[Stage[Any]]
    ) -> Stage[Any]:
        from xmckit.pipeline.stages.score import score

        recipe = self.recipe
        first = features[recipe.features[0].name]
        sections = [*recipe.score.metrics, *([recipe.score.baseline] if recipe.score.baseline else [])]
        identity = {
            "kind": "score",
            "inputs": _keys([data, *features.values(), *heads]),
            "names": [section.name for section in recipe.heads],
            "ensemble": recipe.ensemble if len(heads) > 1 else None,
            "k": list(recipe.score.k),
            "top": recipe.score.top,
            "propensity": recipe.score.propensity,
            "components": [self._identity(section, []) for section in sections],
        }

        def produce(folder: Path, context: Context) -> Any:
            return score(
                folder,
                recipe,
                data.value,
                [head.value for head in heads],
                [features[recipe.seen_by(section)].value.test for section in recipe.heads],
                (first.value.train, first.value.test),
                build=self._build,
                context=context,
            )

        return self._do("score", identity, produce, lambda folder: store.read_json(folder / "metrics.json"))

    def _verify(
        self,
        data: Stage[Dataset],
        features: Mapping[str, Stage[Featured]],
        heads: Sequence[Stage[Any]],
        rows: Mapping[str, Lazy[Split | None]],
    ) -> Stage[Any]:
        from xmckit.verification.verify import verify

        section = self.recipe.verify
        assert section is not None
        inputs = _keys([data, *features.values(), *heads])
        uses = {head.name: head.use for head in self.recipe.heads}

        def produce(folder: Path, context: Context) -> Any:
            seen = {head.name: rows[self.recipe.seen_by(head)].value for head in self.recipe.heads}
            asked = seen[self.recipe.heads[0].name]
            if asked is None:
                raise DataError("verify.assignments is 'validation', but too few rows were there to keep any for it")
            named = list(zip(uses, [head.value for head in heads], strict=True))
            most = section.extra["most"]
            X = {name: split.matrix for name, split in seen.items() if split is not None}
            return verify(folder, self._build(section), named, asked, X=X, most=most, uses=uses, context=context)

        return self._do(
            "verify",
            self._identity(section, inputs, extra=dict(section.extra), seed=self.recipe.seed, names=list(uses)),
            produce,
            lambda folder: store.read_json(folder / "verdicts.json"),
        )


def _keys(stages: Sequence[Stage[Any]]) -> list[str]:
    return [stage.key for stage in stages]


def _told_by_index(index: Any, use: str) -> dict[str, Any]:
    """What an index tells about itself, and the sizes of its clusters where it has some."""
    shown = exhibits.stored(index, use)
    if hasattr(index, "clusters") and hasattr(index, "label_of") and not hasattr(index, "exhibits"):
        shown = exhibits.stored_all(exhibits.leaf_exhibits(index.clusters, index.label_of), use)
    return {"facts": dict(index.facts()) if hasattr(index, "facts") else {}, "exhibits": shown}


def _for_one_head(index: Stage[Any]) -> Any:
    """The index, one of its own where a head fills it with its vectors: two heads must not share that."""
    return index.another() if getattr(index.value, "query_space", None) == "head" else index.value
