"""A trained model in Python: `model = xmckit.load(run)`, then `model.predict(["some text"], k=5)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xmckit import store
from xmckit.errors import DataError, PluginError, UsageError
from xmckit.pipeline import DEFAULT_ROOT
from xmckit.registry import Registry, make_context
from xmckit.runs import Run, find_run

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Matrix, Split
    from xmckit.protocols import Featurizer, Head, TopK


class Tag(NamedTuple):
    """A predicted label and its score: a logit, so 0 is even odds."""

    label: str
    score: float


@dataclass(frozen=True)
class Model:
    """The featurizer and the heads of a run, with the names of the labels."""

    featurizer: Featurizer
    heads: Sequence[Head]
    label_names: Sequence[str]
    context: Context
    top: int = 100  # labels that each head of an ensemble lists, as in the run

    def predict(self, inputs: Sequence[str] | Matrix, k: int = 5) -> list[list[Tag]]:
        """The `k` best labels of each text (or feature row), best first."""
        best = self.topk(inputs, k)
        return [
            [
                Tag(self.label_names[label], float(score))
                for label, score in zip(labels, scores, strict=True)
                if label >= 0
            ]
            for labels, scores in zip(best.indices.tolist(), best.scores.tolist(), strict=True)
        ]

    def labels(self, inputs: Sequence[str] | Matrix) -> list[list[str]]:
        """The labels whose score passes the threshold that was chosen on the validation share."""
        sets = self.sets(inputs)
        return [
            [self.label_names[label] for label in sets.indices[start:end]]
            for start, end in zip(sets.indptr[:-1], sets.indptr[1:], strict=True)
        ]

    def topk(self, inputs: Sequence[str] | Matrix, k: int = 5) -> TopK:
        """As `predict`, in arrays of label numbers and scores."""
        if k < 1:
            raise UsageError(f"k must be 1 or more, not {k}")
        X = self.features(inputs)
        rankings = [head.predict(X, k if len(self.heads) == 1 else max(k, self.top)) for head in self.heads]
        if len(rankings) == 1:
            return rankings[0]
        from xmckit.scoring import combine_rankings

        return combine_rankings(rankings, k, len(self.label_names))

    def sets(self, inputs: Sequence[str] | Matrix) -> csr_matrix:
        """As `labels`, as a CSR matrix rows × labels."""
        X = self.features(inputs)
        sets = [head.labels(X) for head in self.heads]
        if len(sets) == 1:
            return sets[0]
        from xmckit.scoring import combine_sets

        return combine_sets(sets)

    def features(self, inputs: Sequence[str] | Matrix) -> Matrix:
        """The matrix that the heads see."""
        split = _as_split(inputs)
        try:
            return self.featurizer.transform(split, context=self.context)
        except DataError as error:
            raise UsageError(
                f"this model cannot take {'texts' if split.X is None else 'these rows'}: {error}"
            ) from None


def _as_split(inputs: Any) -> Split:
    from scipy.sparse import csr_matrix

    from xmckit.data.model import Split, rows_of

    if isinstance(inputs, str):
        raise UsageError('give a list of texts, for instance ["some text"], not one string')
    if hasattr(inputs, "shape") or isinstance(inputs, dict):
        return Split(X=inputs, Y=csr_matrix((rows_of(inputs), 0)))
    texts = list(inputs) if isinstance(inputs, Iterable) else [inputs]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError("give a list of texts or a feature matrix")
    return Split(X=None, Y=csr_matrix((len(texts), 0)), texts=texts)


def load(
    run: str | Path | Run, *, root: str | Path = DEFAULT_ROOT, workers: int = 0, registry: Registry | None = None
) -> Model:
    """The model of a run: by its folder, or by the name of a recipe (its newest finished run below `root`)."""
    from xmckit.data.saved import load_label_names

    folder = run if isinstance(run, Run) else find_run(run, Path(root))
    context = make_context(workers=workers, registry=registry)
    featurizer_stage = folder.stage_folder("features")
    featurizer_use = store.read_json(featurizer_stage / "features.json")["use"]
    featurizer = _load_component(context, folder, "featurizer", featurizer_use, featurizer_stage / "featurizer")
    heads = [
        _load_component(context, folder, "head", record["identity"]["use"], folder.path / record["folder"] / "head")
        for record in folder.manifest["stages"]
        if record["identity"]["kind"] == "head"
    ]
    asked = max(folder.manifest.get("heads", 1), 1)
    if len(heads) < asked:
        trained = f"{len(heads)} of {asked} heads" if heads else "no trained head yet"
        raise UsageError(f"{folder.path} has {trained}: go on with `xmckit run --resume {folder.path}`")
    names = load_label_names(folder.stage_folder("data"))
    return Model(featurizer, heads, names, context, folder.manifest.get("top", Model.top))


def _load_component(context: Context, folder: Run, kind: str, use: str, path: Path) -> Any:
    try:
        return context.load(kind, use, path)
    except PluginError as error:
        origins = {
            record["identity"].get("from")
            for record in folder.manifest["stages"]
            if (record["identity"].get("kind"), record["identity"].get("use")) == (kind, use)
        }
        source = ", ".join(sorted(filter(None, origins)))
        raise PluginError(f"this model needs {kind}:{use}, which came from {source}: {error}") from error
