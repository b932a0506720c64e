"""docs/architecture.md follows the code: its tree is the repository's, and the files that it names exist."""

from __future__ import annotations

import re

from code_blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "architecture.md"
TOP = ("xmckit", "plugins", "recipes", "tests", "benchmarks", "docs")


def documented_tree(text: str) -> dict[str, str]:
    """Return the description of each path of a tree, in which two spaces lead one level down."""
    tree, parents = {}, []
    for line in text.splitlines():
        name, _, description = line.strip().partition(" ")
        level = (len(line) - len(line.lstrip())) // 2
        parents = [*parents[:level], name]
        tree["".join(parents)] = description.strip()
    return tree


def real_tree() -> set[str]:
    """Return the packages of the core and of the plugins, and the modules at the root of the core."""
    packages = {init.parent for top in ("xmckit", "plugins") for init in (ROOT / top).rglob("__init__.py")}
    folders = {f"{folder.relative_to(ROOT).as_posix()}/" for folder in packages}
    modules = {file.relative_to(ROOT).as_posix() for file in (ROOT / "xmckit").glob("*.py")}
    return folders | modules | {f"{name}/" for name in TOP}


def test_the_tree_is_that_of_the_repository():
    (block,) = (block for block in blocks_of(PAGE) if block.text.startswith("xmckit/"))
    tree = documented_tree(block.text)
    assert set(tree) == real_tree()
    assert all(len(description) > 8 for description in tree.values()), tree
    assert len([path for path in tree if re.fullmatch(r"xmckit/[^/]+\.py", path)]) <= 14


def test_files_that_the_page_names_exist():
    paths = re.findall(r"`((?:xmckit|plugins|tests|docs)/[\w/.-]+)`", PAGE.read_text("utf-8"))
    assert len(paths) > 40
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_glossary_is_sorted_and_explains_each_word_once():
    glossary = PAGE.read_text("utf-8").partition("## Glossary")[2]
    words = [row[1] for row in re.finditer(r"^\| ([^|]+) \| [^|]+ \|$", glossary, flags=re.MULTILINE)]
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) >= 30
    assert words == sorted(words)
    terms = [term for word in words for term in word.split(", ")]
    assert len(terms) == len(set(terms))
    assert {"head", "run", "arc", "tail"} <= set(terms)
