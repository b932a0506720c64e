"""The site builds without a warning, loads nothing from a network, and has no broken links."""

from __future__ import annotations

import dataclasses
import html
import inspect
import itertools
import os
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from code_blocks import ROOT
from test_reference import walk_commands

import xmckit
from xmckit.kinds import KINDS, load_protocol

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Links(HTMLParser):
    """The files that a page loads, its links, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if tag in LOADED and LOADED[tag] in given and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        config = load_config(str(ROOT / "docs" / "site" / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.run_event("startup", command="build", dirty=False)
        build(config)
    files = folder.rglob("*.html")
    return {file.relative_to(folder).as_posix(): Links(file.read_text("utf-8")) for file in files}, folder


def test_every_page_is_built(site):
    pages, _ = site
    docs = ROOT / "docs"
    written = {path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")}
    made = {f"reference/{name}.html" for name in ("recipes", "components", "commands", "records")}
    assert written | made | {"404.html"} == set(pages)


def test_nothing_is_loaded_from_elsewhere(site):
    pages, folder = site
    for page, links in pages.items():
        foreign = [link for link in links.loaded if urlsplit(link).scheme or link.startswith("//")]
        assert not foreign, f"{page}: {foreign}"
    for style in folder.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", style.read_text("utf-8")), style


def test_links_lead_somewhere(site):
    pages, folder = site
    checked = 0
    for page, links in pages.items():
        if page == "404.html":  # its links are from the root of a server
            continue
        for link in [*links.linked, *links.loaded]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            target = Path(os.path.normpath(Path(page).parent / unquote(parts.path))) if parts.path else Path(page)
            assert (folder / target).exists(), f"{page}: {link}"
            if parts.fragment and target.suffix == ".html":
                known = pages[target.as_posix()].names
                assert unquote(parts.fragment) in known, f"{page}: {link}"
            checked += 1
    assert checked > 1000


def public_names(record: type) -> set[str]:
    """Return the public methods, properties and annotated attributes of a class, without the fields of a dataclass."""
    names = {name for name, value in vars(record).items() if inspect.isroutine(value) or isinstance(value, property)}
    names |= set(vars(record).get("__annotations__", ()))
    if dataclasses.is_dataclass(record):
        names -= {field.name for field in dataclasses.fields(record)}
    return {name for name in names if name == "__call__" or not name.startswith(("_", "model_"))}


@pytest.mark.parametrize("kind", list(KINDS))
def test_contracts_are_on_the_pages_of_their_kinds(site, reference, kind):
    names = site[0][f"kinds/{kind}.html"].names
    entry = KINDS[kind]
    assert f"def {entry.hook}()" in reference.contract(kind)
    for protocol in map(load_protocol, filter(None, (entry.protocol, *entry.related, *entry.optional))):
        assert protocol.__doc__
        expected = public_names(protocol)
        assert expected, protocol.__name__
        for name in expected:
            assert f"{protocol.__module__}.{protocol.__name__}.{name}" in names, f"{protocol.__name__}.{name}"


def test_records_are_on_their_page_with_their_methods(site, reference):
    names = site[0]["reference/records.html"].names
    for record in itertools.chain(*reference.RECORDS.values()):
        assert record.__name__ in xmckit.__all__
        for name in ["", *(f".{name}" for name in public_names(record))]:
            assert f"{record.__module__}.{record.__name__}{name}" in names, f"{record.__name__}{name}"


def test_signatures_are_shown_as_they_are(site):
    _, folder = site
    assert "decision() -> LinearDecision | None" in text_of(folder / "kinds" / "head.html")
    assert "fit(train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None" in text_of(
        folder / "kinds" / "head.html"
    )
    assert "structure: Alternating | None = None" in text_of(folder / "reference" / "records.html")
    assert not list(folder.rglob("*.py"))


def test_every_command_and_option_is_on_its_page(site, reference):
    pages, folder = site
    page = (folder / "reference" / "commands.html").read_text("utf-8")
    for path, command in walk_commands(reference.documented_commands()):
        anchor = f"xmckit-{path.replace(' ', '-')}"
        assert anchor in pages["reference/commands.html"].names
        part = re.split(r"<h[1-6]", page[page.index(f'id="{anchor}"') :], maxsplit=1)[0]
        for option in command.params:
            for name in option.opts if isinstance(option, click.Option) else ():
                assert name in part, f"xmckit {path} {name}"


def test_files_that_the_readme_links_to_are_there():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link
