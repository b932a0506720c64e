"""What all stages of a run share: the recipe, the registry, the context, and how a component's identity is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.context import Context, Progress, cpu_count
from xmckit.errors import DataError
from xmckit.hookspecs import API_VERSION
from xmckit.recipe import Recipe, Section, nested_specs_and_paths
from xmckit.registry import Registry
from xmckit.runs import provenance


class Setup:
    """The recipe of a run and the means to carry it out."""

    def __init__(self, recipe: Recipe, registry: Registry, progress: Progress, log: Callable[[str], None]):
        self.recipe, self.registry = recipe, registry
        # Data and features must not follow the run's seed: seeds are compared on the same rows.
        self.data_seed: int = recipe.data.extra["seed"]
        self.context = Context(
            seed=recipe.seed,
            workers=recipe.workers or cpu_count(),
            progress=progress,
            executor=registry.resolve("executor", recipe.executor.use)(**recipe.executor.params),
            resolve=registry.resolve,
            names=registry.names,
            log=log,
        )

    def build(self, section: Section) -> Any:
        """Build the component that a section of the recipe names."""
        return self.registry.resolve(section.kind, section.use)(**section.params)

    def identity(
        self, section: Section, inputs: Sequence[str], also: Sequence[tuple[str, str]] = (), **more: Any
    ) -> dict[str, Any]:
        """Return everything about a component that can change a stage's output.

        `inputs` are the keys of the stages that it reads, `also` are (kind, name) that its parameters do not name.
        """
        params = self.registry.resolve(section.kind, section.use).Params
        nested, paths = nested_specs_and_paths(params, section.params, self.registry)
        used = [(section.kind, section.use), *nested, *also]
        components = [self.registry.component(kind, use) for kind, use in used]
        if paths and section.kind != "dataset":  # a data set says itself which of its files matter
            more["files"] = {str(path): _content_sha256(path) for path in paths}
        return {
            "kind": section.kind,
            "use": section.use,
            "sources": {f"{item.kind}:{item.component.name}": item.plugin.source for item in components},
            "params": section.params,
            "api_version": API_VERSION,
            "inputs": list(inputs),
            "code": {f"{item.kind}:{item.component.name}": provenance.code_of(item) for item in components},
            "versions": _versions(item.plugin.distribution for item in components),
            **more,
        }

    def versions(self) -> dict[str, str]:
        """Return the versions of all libraries behind the recipe's components."""
        recipe = self.recipe
        verify = [recipe.verify] if recipe.verify else []
        sections = [recipe.data, *recipe.features, *recipe.labels, *recipe.index, *recipe.heads, *verify]
        return _versions(self.registry.component(item.kind, item.use).plugin.distribution for item in sections)

    def features_seen(self, stages: Mapping[str, str]) -> dict[str, str]:
        """Map label stages, each index and each head to the name of the features stage that it sees."""
        recipe = self.recipe
        sections = {f"index-{section.name}": section for section in recipe.index}
        sections |= {f"head-{section.name}": section for section in recipe.heads}
        seen = {name: stages[recipe.seen_by(section)] for name, section in sections.items()}
        return {"labels": next(iter(stages.values())), **seen}


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for distribution in distributions:
        versions.update(provenance.library_versions(distribution))
    return dict(sorted(versions.items()))


def _content_sha256(path: Path) -> str:
    """Return the checksum of a file, or of all files in a folder."""
    try:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return store.canonical_sha256([[str(file.relative_to(path)), store.file_sha256(file)] for file in files])
    except OSError as error:
        raise DataError(f"this file cannot be read: {error}", path=path) from None
