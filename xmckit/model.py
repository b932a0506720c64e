"""A trained model in Python: `model = xmckit.load(run)`, then `model.predict(["some text"], k=5)`."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from xmckit.errors import DataError, StorageError, UsageError
from xmckit.registry import Registry, make_context
from xmckit.runs import DEFAULT_ROOT, Run, find_run, is_ensemble
from xmckit.runs.extensions import is_extension, read_extension

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Matrix, Split
    from xmckit.protocols import Featurizer, Head
    from xmckit.records import Combining, TopK


class Tag(NamedTuple):
    """A predicted label and its score: a logit (0 is even odds), or minus the mean rank in models combined by rank."""

    label: str
    score: float


class Labeller(ABC):
    """Labels texts and feature rows: the model of a run, or several combined."""

    label_names: Sequence[str]

    @abstractmethod
    def topk(self, inputs: Sequence[str] | Matrix, k: int = 5) -> TopK:
        """Do as `predict`, but return arrays of label numbers and scores."""

    @abstractmethod
    def sets(self, inputs: Sequence[str] | Matrix) -> csr_matrix:
        """Do as `labels`, but return a CSR matrix, rows × labels."""

    def predict(self, inputs: Sequence[str] | Matrix, k: int = 5) -> list[list[Tag]]:
        """Return the `k` best labels of each text (or feature row), best first.

        An ensemble returns fewer if its members, each of which lists `score.top` labels, list fewer.
        """
        best = self.topk(inputs, k)
        return [
            [Tag(self.label_names[label], score) for label, score in zip(*row, strict=True) if label >= 0]
            for row in zip(best.indices.tolist(), best.scores.tolist(), strict=True)
        ]

    def labels(self, inputs: Sequence[str] | Matrix) -> list[list[str]]:
        """Return the labels whose score passes the threshold that was chosen on the validation share."""
        sets = self.sets(inputs)
        return [
            [self.label_names[label] for label in sets.indices[start:end]]
            for start, end in zip(sets.indptr[:-1], sets.indptr[1:], strict=True)
        ]


@dataclass(frozen=True)
class Model(Labeller):
    """The heads of a run, each with its featurizer, and the names of the labels.

    Heads that see the same features share one featurizer.
    """

    featurizers: Sequence[Featurizer]
    heads: Sequence[Head]
    label_names: Sequence[str]
    context: Context
    top: int = 100  # labels that each head of an ensemble lists, as in the run
    rule: Combining = "average"  # by which several heads are combined, as in the run
    path: Path | None = None  # of the run

    def topk(self, inputs: Sequence[str] | Matrix, k: int = 5) -> TopK:
        deep = _depth(k, self.top, len(self.heads))
        X = self.all_features(inputs)
        with self._explain_misfit():
            rankings = [self._checked(head.predict(x, deep)) for head, x in zip(self.heads, X, strict=True)]
        return _combine(rankings, k, self.rule)

    def sets(self, inputs: Sequence[str] | Matrix) -> csr_matrix:
        X = self.all_features(inputs)
        with self._explain_misfit():
            sets = [head.labels(x) for head, x in zip(self.heads, X, strict=True)]
        for one in sets:
            if one.shape[1] != len(self.label_names):
                raise self._misfit(f"a head has {one.shape[1]} labels, the data has {len(self.label_names)}")
        return _combine_sets(sets)

    def _checked(self, ranking: TopK) -> TopK:
        if ranking.indices.size and (last := int(ranking.indices.max())) >= len(self.label_names):
            raise self._misfit(f"a head lists label {last}, the data has {len(self.label_names)} labels")
        return ranking

    def _misfit(self, problem: str) -> StorageError:
        where = f"{self.path}: " if self.path is not None else ""
        return StorageError(f"{where}the parts of this model do not belong together: {problem}")

    @contextlib.contextmanager
    def _explain_misfit(self) -> Iterator[None]:
        """Name the run in a head's error about rows that its featurizer made."""
        try:
            yield
        except DataError as error:
            raise self._misfit(str(error)) from error

    def features(self, inputs: Sequence[str] | Matrix, head: int = 0) -> Matrix:
        """Return the matrix that one of the heads sees."""
        return _features_of(inputs, self.featurizers[head], self.context, self.path)

    def all_features(self, inputs: Sequence[str] | Matrix | Split) -> list[Matrix]:
        """Return the matrix that each head sees; heads with the same featurizer share one."""
        distinct = {id(featurizer): featurizer for featurizer in self.featurizers}
        X = {key: _features_of(inputs, featurizer, self.context, self.path) for key, featurizer in distinct.items()}
        return [X[id(featurizer)] for featurizer in self.featurizers]


@dataclass(frozen=True)
class CombinedModel(Labeller):
    """The models of several runs, combined as `xmckit ensemble` did; each receives the same texts or rows."""

    models: Sequence[Model]
    label_names: Sequence[str]
    tops: Sequence[int]
    rule: Combining

    @property
    def heads(self) -> Sequence[Head]:
        return [head for model in self.models for head in model.heads]

    def topk(self, inputs: Sequence[str] | Matrix, k: int = 5) -> TopK:
        depths = [_depth(k, top, len(self.models)) for top in self.tops]
        rankings = [model.topk(inputs, depth) for model, depth in zip(self.models, depths, strict=True)]
        return _combine(rankings, k, self.rule)

    def sets(self, inputs: Sequence[str] | Matrix) -> csr_matrix:
        return _combine_sets([model.sets(inputs) for model in self.models])


def _depth(k: int, top: int, members: int) -> int:
    """Return how many labels a member lists; in an ensemble as many as in the run, because the order depends on it."""
    if k < 1:
        raise UsageError(f"k must be 1 or more, not {k}")
    return k if members == 1 else top


def _combine(rankings: Sequence[TopK], k: int, rule: Combining) -> TopK:
    if len(rankings) == 1:
        return rankings[0]
    from xmckit.components.ensembles import combine_rankings

    return combine_rankings(rankings, k, rule)


def _combine_sets(sets: Sequence[csr_matrix]) -> csr_matrix:
    if len(sets) == 1:
        return sets[0]
    from xmckit.components.ensembles import combine_sets

    return combine_sets(sets)


def _features_of(
    inputs: Sequence[str] | Matrix | Split, featurizer: Featurizer, context: Context, path: Path | None
) -> Matrix:
    """Featurize texts or rows; UsageError if the featurizer cannot take them."""
    split = _as_split(inputs)
    try:
        return featurizer.transform(split, context=context)
    except DataError as error:
        model = "this model" if path is None else f"the model of {path}"
        raise UsageError(f"{model} cannot take {'texts' if split.X is None else 'these rows'}: {error}") from None


def _as_split(inputs: Any) -> Split:
    from scipy.sparse import csr_matrix

    from xmckit.data.model import Split, rows_of

    if isinstance(inputs, Split):
        return inputs
    if isinstance(inputs, str):
        raise UsageError('give a list of texts, for instance ["some text"], not one string')
    if hasattr(inputs, "shape") or isinstance(inputs, dict):
        return Split(X=inputs, Y=csr_matrix((rows_of(inputs), 0)))
    texts = list(inputs) if isinstance(inputs, Iterable) else [inputs]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError("give a list of texts or a feature matrix")
    return Split(X=None, Y=csr_matrix((len(texts), 0)), texts=texts)


@overload
def load(run: Run, *, root: str | Path = ..., workers: int = ..., registry: Registry | None = ...) -> Model: ...


@overload
def load(
    run: str | Path, *, root: str | Path = ..., workers: int = ..., registry: Registry | None = ...
) -> Model | CombinedModel: ...


def load(
    run: str | Path | Run, *, root: str | Path = DEFAULT_ROOT, workers: int = 0, registry: Registry | None = None
) -> Model | CombinedModel:
    """Load the model of a run, by its folder or by the name of a recipe (its newest finished run below `root`).

    A folder that `xmckit ensemble` wrote gives the combined models of its runs; a folder that `xmckit labels add` wrote
    gives the run's model with the added labels.
    """
    context = make_context(workers=workers, registry=registry)
    if not isinstance(run, Run) and is_ensemble(Path(run)):
        return _load_combined(Path(run), context)
    if not isinstance(run, Run) and is_extension(Path(run)):
        return _load_extended(Path(run), context)
    return _load_run(run if isinstance(run, Run) else find_run(run, Path(root)), context)


def _load_combined(folder: Path, context: Context) -> CombinedModel:
    from xmckit.analysis.combine import members_of

    rule, runs = members_of(folder)
    models = [_load_run(run, context) for run, _ in runs]
    return CombinedModel(models, models[0].label_names, [top for _, top in runs], rule)


def _load_extended(folder: Path, context: Context) -> Model:
    extension = read_extension(folder)
    if not extension.heads:
        raise UsageError(
            f"the heads of {extension.run.path} could not take the labels that {folder} adds: they can be searched "
            f"with `xmckit search {folder}`, but not predicted"
        )
    model = _load_run(extension.run, context)
    uses = [stage.use for stage in extension.run.head_stages]
    heads = [model.context.load("head", uses[head], extension.head_folder(head)) for head in extension.heads]
    return replace(
        model,
        heads=heads,
        featurizers=[model.featurizers[head] for head in extension.heads],
        label_names=[*model.label_names, *extension.labels],
    )


def _load_run(run: Run, context: Context) -> Model:
    context, manifest = run.explain_missing(context), run.manifest
    trained = run.head_stages
    heads = [run.load_head(stage, context) for stage in trained]
    expected = max(manifest.heads or 1, 1)
    if len(heads) < expected:
        state = f"{len(heads)} of {expected} heads" if heads else "no trained head yet"
        raise UsageError(f"{run.path} has {state}: continue with `xmckit run --resume {run.path}`")
    seen = [run.features_stage(stage.name) for stage in trained]
    featurizers = {name: run.load_featurizer(name, context) for name in seen}
    chosen: dict[str, Any] = {"top": manifest.top, "rule": manifest.ensemble, "path": run.path}
    return Model(
        [featurizers[name] for name in seen],
        heads,
        run.label_names(),
        context,
        **{name: value for name, value in chosen.items() if value is not None},
    )
