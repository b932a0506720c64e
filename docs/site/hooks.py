"""Hooks of mkdocs: add the generated pages and sections, and keep links to files outside docs/ valid."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from xmckit.kinds import KINDS
from xmckit.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
_registry: Registry | None = None
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#:]+)\)")


def registry() -> Registry:
    global _registry
    _registry = _registry or Registry()
    return _registry


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference.generated_pages(registry()).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder == "kinds" and name.removesuffix(".md") in KINDS:
        kind = name.removesuffix(".md")
        markdown = markdown.replace("<!-- contract -->", reference.contract(kind))
        markdown = markdown.replace("<!-- components -->", reference.components_of(kind, registry()))
    return _LINK.sub(lambda link: _link_outside(link, folder), markdown)


def _link_outside(link: re.Match[str], folder: str) -> str:
    """Replace a link to a file outside docs/ by the path, because the site does not contain the file."""
    path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
    if path.startswith("docs/"):
        return link[0]
    if not os.path.exists(ROOT / path):
        raise FileNotFoundError(f"a page links to {path}, which does not exist")
    return link[1] if link[1].strip("`") == path else f"{link[1]} (`{path}`)"
