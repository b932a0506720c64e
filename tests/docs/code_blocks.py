"""Run the code blocks of Markdown pages as a reader would.

| block | what happens |
|---|---|
| `python` | executed; blocks of a page share their names |
| `python title="x.py"` | written to that file, and imported unless it is a test or a part of a package |
| `toml` | checked as a recipe; a fragment extends the quickstart; with a title also written |
| `toml title="pyproject.toml"` | read as TOML |
| `sh` | `xmckit …` runs in this process, `pytest …` in a new one, `pip install --editable` is imitated |
| `text title="x"` | written to that file; without a title it is output, not code |

An indented block is TOML if it begins with `[`, `sh` if it begins with the name of a program, otherwise text. A block
below `<!-- not run: reason -->` is not run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from markdown_it import MarkdownIt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("xmckit", "pip", "make", "source", "pytest", "python")
LANGUAGES = ("python", "toml", "sh", "text")
_NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One code block. `reason` says why it is not run; empty if it is run."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    reason: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return all code blocks of a page, in order."""
    blocks, above = [], ""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        if token.type in ("fence", "code_block"):
            info = token.info.split(maxsplit=1)
            title = re.search(r'title="([^"]+)"', token.info)
            marked = _NOT_RUN.fullmatch(above.strip())
            language = info[0] if info else _guess(token.content)
            name = title[1] if title else ""
            blocks.append(Block(page, token.map[0] + 1, language, name, token.content, marked[1] if marked else ""))
        above = token.content if token.type == "html_block" else ""
    return blocks


def _guess(text: str) -> str:
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return "toml" if first.startswith("[") else "sh" if first in PROGRAMS else "text"


def commands_in(text: str) -> list[list[str]]:
    """Return the lines of a shell block as lists of words, without comments and empty lines."""
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@dataclass
class Session:
    """Follow one page in an empty folder. `names` replaces RUN and other placeholders; FOLDER is the folder that a
    command printed last."""

    folder: Path
    names: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    plugins: list[Path] = field(default_factory=list)
    installed: list[Path] = field(default_factory=list)
    ran: int = 0

    def run(self, block: Block) -> None:
        ways: dict[str, Callable[[Block], None]] = {
            "python": self._python, "toml": self._toml, "sh": self._shell, "text": self._text,
        }  # fmt: skip
        assert block.language in ways, f"{block.where}: {block.language!r} is none of {', '.join(LANGUAGES)}"
        ways[block.language](block)
        self.ran += 1

    def _python(self, block: Block) -> None:
        code = compile(block.text, block.title or block.where, "exec")
        if not block.title:
            exec(code, self.variables)
            return
        file = self._write(block)
        if len(file.relative_to(self.folder).parts) == 1 and not file.name.startswith("test_"):
            self.plugins.append(file)

    def _toml(self, block: Block) -> None:
        from xmckit.recipe import load_recipe
        from xmckit.registry import Registry

        content = tomllib.loads(block.text)
        if block.title:
            file = self._write(block)
        if block.title == "pyproject.toml":
            return
        if not block.title:
            whole = "extends" in content or {"data", "head"} <= set(content)
            file = self.folder / f"line-{block.line}.toml"
            file.write_text(("" if whole else 'extends = "quickstart"\n') + block.text, "utf-8")
        load_recipe(file, registry=Registry(files=self.plugins))

    def _text(self, block: Block) -> None:
        if block.title:
            self._write(block)

    def _shell(self, block: Block) -> None:
        for words in commands_in(block.text):
            words = [self.names.get(word, word) for word in words]
            where = f"{block.where}: {shlex.join(words)}"
            if words[0] == "xmckit":
                self.xmckit(words[1:], where)
            elif words[0] == "pytest":
                self._pytest(words[1:], where)
            elif words[:3] == ["pip", "install", "--editable"]:
                self._install(self.folder / words[3].partition("[")[0])
            else:
                raise AssertionError(f"{where}: this cannot be run here; say why with <!-- not run: … -->")

    def xmckit(self, arguments: list[str], where: str) -> None:
        """Run the program in this process; fail unless it succeeds."""
        from xmckit.cli import xmckit

        self._forget_modules()  # a new process would read files as they are now
        result = CliRunner().invoke(xmckit, arguments)
        allowed = {0, 5} if "--fail-under" in arguments else {0}
        code = getattr(result.exception, "exit_code", result.exit_code)
        assert code in allowed, f"{where}\n{result.output}\n{result.exception!r}"
        for folder in re.findall(r"^folder: (.+)$", result.stdout, flags=re.MULTILINE):
            self.names["FOLDER"] = folder

    def _pytest(self, arguments: list[str], where: str) -> None:
        path = os.pathsep.join(map(str, [*self.installed, self.folder]))
        completed = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            check=False, capture_output=True, text=True, cwd=self.folder, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert completed.returncode == 0, f"{where}\n{completed.stdout}{completed.stderr}"

    def _install(self, folder: Path) -> None:
        """Write the metadata of an editable install into the source folder."""
        source = folder / "src"
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        ((name, module),) = project["entry-points"]["xmckit"].items()
        info = source / f"{module}-{project['version']}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[xmckit]\n{name} = {module}\n")
        sys.path.insert(0, str(source))
        self.installed.append(source)

    def _write(self, block: Block) -> Path:
        file = self.folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, "utf-8")
        return file

    def _forget_modules(self) -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]

    def leave(self) -> None:
        """Remove everything that was imported from the folder."""
        self._forget_modules()
        for source in self.installed:
            sys.path.remove(str(source))
