"""Every code block of README.md, CONTRIBUTING.md and docs/ runs; inline commands exist with their options."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
from pathlib import Path

import click
import pytest
from code_blocks import PAGES, ROOT, Session, blocks_of
from markdown_it import MarkdownIt

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="an installed xmckit has no documents")

# Enough of the standard library to learn from, and small enough to finish in seconds.
SOURCES = ("argparse.py", "socket.py", "shutil.py", "tarfile.py", "json", "html")
# The values of RUN and other placeholders, by page.
PLACEHOLDERS = {
    "argmaxability.md": {"RUN": "verified"},
    "label-search.md": {"RUN": "searchable"},
    "README.md": {"RUN": "verified"},
}
# Runs that a page expects.
PREPARED = {"label-search.md": 'extends = "quickstart"\n[index]\nuse = "faiss"\n[head]\nuse = "bsl"\nepochs = 2\n'}
NOT_RUN = 5


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A small standard library, and a folder of runs that all pages share."""
    folder = tmp_path_factory.mktemp("docs")
    library = folder / "library"
    library.mkdir()
    for name in SOURCES:
        source = Path(sysconfig.get_path("stdlib"), name)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, library / name)
    (folder / "runs").mkdir()
    return folder


@pytest.fixture
def session(shelf, tmp_path, monkeypatch, request):
    from xmckit.data.python_source import StdlibCalls

    monkeypatch.setattr(StdlibCalls, "folder", shelf / "library")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(shelf / "runs")
    _own_files(tmp_path)
    page = request.param
    session = Session(tmp_path, names=dict(PLACEHOLDERS.get(page.name, {})))
    if page.name in PREPARED:
        (tmp_path / f"{session.names['RUN']}.toml").write_text(PREPARED[page.name])
        session.xmckit(["run", f"{session.names['RUN']}.toml"], "before the page")
    yield session
    session.leave()


def _own_files(folder: Path) -> None:
    """Write the files that the pages expect a reader to have."""
    rows = [{"text": f"the printer number {n} is on fire", "labels": ["printer", f"floor {n % 3}"]} for n in range(30)]
    for name in ("tickets", "products"):
        (folder / name).mkdir()
        for part in ("train", "test"):
            (folder / name / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "products" / "groups.txt").write_text("".join(f"shop {n % 5}\n" for n in range(30)))
    (folder / "products" / "group-labels.txt").write_text("".join(f"shop {n}\tprinter\tfloor 1\n" for n in range(5)))
    (folder / "new.jsonl").write_text('{"label": "brand new", "examples": ["print a brand new thing"]}\n')


@pytest.mark.parametrize("session", PAGES, ids=lambda page: str(page.relative_to(ROOT)), indirect=True)
def test_blocks_run(session, request):
    page = request.node.callspec.params["session"]
    blocks = blocks_of(page)
    for block in blocks:
        if not block.reason:
            session.run(block)
    assert session.ran + sum(bool(block.reason) for block in blocks) == len(blocks)


def test_blocks_that_are_not_run_say_why():
    reasons = [(block.where, block.reason) for page in PAGES for block in blocks_of(page) if block.reason]
    assert all(len(reason) > 10 for _, reason in reasons), reasons
    assert len(reasons) == NOT_RUN, reasons
    marks = sum(page.read_text("utf-8").count("<!-- not run:") for page in PAGES)
    assert marks == len(reasons), "a mark stands directly above a block"


def inline_commands() -> list[tuple[str, str]]:
    """Return (page, command) for each `xmckit …` in running text."""
    commands = []
    for page in PAGES:
        for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
            for child in token.children or ():
                if child.type == "code_inline" and child.content.startswith("xmckit "):
                    commands.append((str(page.relative_to(ROOT)), child.content))
    return commands


def test_inline_commands_exist_with_their_options():
    from xmckit.cli import xmckit

    commands = inline_commands()
    assert len(commands) > 30
    for page, text in commands:
        command, context = xmckit, click.Context(xmckit)
        words = re.split(r"\s+", text.removeprefix("xmckit "))
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            child = command.get_command(context, words[0])
            assert child is not None, f"{page}: `{text}`: no command {words[0]!r}"
            command, words = child, words[1:]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help", "--version"}
        for word in words:
            if re.fullmatch(r"--?[a-z][a-z-]*", word):
                assert word in known, f"{page}: `{text}`: no option {word}"
