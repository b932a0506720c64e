"""Find the line of every key of a TOML document, which `tomllib` does not tell.

The scanner walks the tokens of text that `tomllib` has already accepted, so it need not check the text: it only follows
keys and brackets.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath: TypeAlias = "tuple[str | int, ...]"

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"(?:{_QUOTED}|[A-Za-z0-9_-]+)"
_DOTTED_KEY = re.compile(rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*")
# Up to two quotes may stand directly before the closing three.
_MULTILINE = r'''"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?|\'\'\'.*?\'\'\'(?:'{1,2}(?!'))?'''
_TOKEN = re.compile(rf"""(?P<gap>[ \t\r]+|\#[^\n]*)|{_MULTILINE}|{_QUOTED}|[^\s\[\]{{}}=,.\#"']+|.""", re.DOTALL)

_VALUE_TOKEN = re.compile(rf"{_MULTILINE}|{_QUOTED}|.", re.DOTALL)  # a value has no comments


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return KeyPath of every table, key and array item of valid TOML → its line, counted from 1.

    A table's line is that of its header; a table without a header has the line of its first child.
    """
    return _Scanner(text).document()


def longest_key(text: str, enough: int) -> tuple[int, int]:
    """Return the parts of the longest dotted key and its line, counted only on lines with at least `enough` dots.

    The memory of `tomllib` grows with the square of a key's parts, so this must be known before it reads the text.
    """
    longest, where = 0, 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") >= enough:
            parts = max((len(re.findall(_KEY, key)) for key in _DOTTED_KEY.findall(line)), default=0)
            if parts > longest:
                longest, where = parts, number
    return longest, where


def parse_key(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted key such as `head.0."my block"`; ValueError if `text` is not exactly one key."""
    if not _DOTTED_KEY.fullmatch(text.strip()):
        raise ValueError(text)
    parts, inner = [], tomllib.loads(f"{text} = 0")
    while isinstance(inner, dict):
        ((part, inner),) = inner.items()
        parts.append(part)
    return tuple(parts)


def split_values(text: str) -> list[str]:
    """Cut `text` at the commas outside quotes and brackets; ValueError if a bracket or quote stays open."""
    depth, pieces = 0, [""]
    for token in _VALUE_TOKEN.findall(text):
        depth = max(depth + (token in ("[", "{")) - (token in ("]", "}")), 0)
        if token == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += token
        if token in ('"', "'"):
            raise ValueError(text)
    if depth:
        raise ValueError(text)
    return [piece.strip() for piece in pieces]


class _Scanner:
    def __init__(self, text: str):
        self._tokens: list[tuple[str, int]] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if not match["gap"]:
                self._tokens.append((match.group(), line))
            line += match.group().count("\n")
        self._tokens.append(("", line))
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._table_counts: Counter[KeyPath] = Counter()

    @property
    def _token(self) -> str:
        """Return the token here; the empty string at the end of the text."""
        return self._tokens[self._at][0]

    @property
    def _line(self) -> int:
        return self._tokens[self._at][1]

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._token:
            if self._token == "[":
                table = self._header()
            elif self._token == "\n":
                self._at += 1
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> KeyPath:
        line, repeated = self._line, self._tokens[self._at + 1][0] == "["
        brackets = 2 if repeated else 1
        self._at += brackets
        *above, last = self._dotted_key()
        self._at += brackets
        table = (*self._note((), above, line), last)
        if not repeated:
            self._lines[table] = line
            return table
        self._lines.setdefault(table, line)
        item = (*table, self._table_counts[table])
        self._table_counts[table] += 1
        self._lines[item] = line
        return item

    def _note(self, table: KeyPath, parts: Sequence[str], line: int) -> KeyPath:
        """Go down from `table` along `parts`, giving `line` to what is new; arrays of tables mean their last item."""
        for part in parts:
            table = (*table, part)
            self._lines.setdefault(table, line)
            if table in self._table_counts:
                table = (*table, self._table_counts[table] - 1)
        return table

    def _pair(self, table: KeyPath) -> None:
        line = self._line
        *above, last = self._dotted_key()
        self._at += 1  # =
        path = (*self._note(table, above, line), last)
        self._lines[path] = line
        self._value(path)

    def _dotted_key(self) -> list[str]:
        parts: list[str] = []
        while self._token not in ("=", "]"):
            if self._token != ".":
                parts += parse_key(self._token)
            self._at += 1
        return parts

    def _value(self, path: KeyPath) -> None:
        if self._token in ("[", "{"):
            self._items(path)
        else:
            while self._token not in (",", "]", "}", "\n", ""):
                self._at += 1

    def _items(self, path: KeyPath) -> None:
        """Walk an array or an inline table to the end of its closing bracket."""
        in_array, position = self._token == "[", 0
        self._at += 1
        while self._token not in ("]", "}"):
            if self._token in (",", "\n"):
                self._at += 1
            elif in_array:
                self._lines[(*path, position)] = self._line
                self._value((*path, position))
                position += 1
            else:
                self._pair(path)
        self._at += 1
