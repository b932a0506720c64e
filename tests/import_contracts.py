"""A contract for import-linter: some packages may import only a list of public modules of others."""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """`importers` may import, of `packages`, only the modules in `allowed` and the modules below these.

    A name that ends with `!` stands for the module itself and for nothing below it.
    """

    importers = fields.ListField(subfield=fields.ModuleField())
    packages = fields.ListField(subfield=fields.ModuleField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = []
        for importer in self.importers:  # type: ignore[attr-defined]
            modules = {importer.name} | graph.find_descendants(importer.name)
            for module in sorted(modules):
                for target in sorted(graph.find_modules_directly_imported_by(module)):
                    if self._is_ours(target) and not self._is_allowed(target):
                        details = graph.get_import_details(importer=module, imported=target)
                        broken.append((module, target, [one["line_number"] for one in details]))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def _is_ours(self, module: str) -> bool:
        return any(_is_below(module, package.name) for package in self.packages)  # type: ignore[attr-defined]

    def _is_allowed(self, module: str) -> bool:
        return any(_is_below(module, name) for name in self.allowed)  # type: ignore[attr-defined]

    def render_broken_contract(self, check: Any) -> None:
        for module, target, lines in check.metadata["broken"]:
            where = ", ".join(f"l.{line}" for line in lines)
            output.print_error(f"{module} may not import {target} ({where}): it is not public", bold=True)


def _is_below(module: str, name: str) -> bool:
    if name.endswith("!"):
        return module == name[:-1]
    return module == name or module.startswith(f"{name}.")
