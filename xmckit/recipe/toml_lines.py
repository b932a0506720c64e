"""Find the line of every key of a TOML document, which `tomllib` does not tell.

The scanner walks the characters of text that `tomllib` has already accepted, so it need not check the text: it only
follows keys, brackets and quotes.
"""

from __future__ import annotations

import bisect
import re
import sys
from typing import TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath: TypeAlias = "tuple[str | int, ...]"

_BLANK = re.compile(r"[ \t]*")
# Between statements and inside brackets: white space, line ends and comments.
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\]|\\.)*"')
_LITERAL = re.compile(r"'[^']*'")
# Up to two quotes may stand directly before the closing three.
_MULTI_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?', re.DOTALL)
_MULTI_LITERAL = re.compile(r"'''.*?'''(?:'{1,2}(?!'))?", re.DOTALL)
# Numbers, booleans and dates; a date may be followed by one space and a time.
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d[^\s,\]}#]*|[^\s,\]}#]+")

_TOKEN = re.compile(r"""\"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+|[ \t]+|.""", re.DOTALL)


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
            parts = _longest_run(line)
            if parts > longest:
                longest, where = parts, number
    return longest, where


def _longest_run(line: str) -> int:
    longest = run = 0
    joined = False
    for token in _TOKEN.findall(line):
        if token == ".":
            joined = True
        elif (token[0] in "\"'" and len(token) > 1) or _BARE_KEY.fullmatch(token):
            run = run + 1 if joined else 1
            joined = False
            longest = max(longest, run)
        elif not token.isspace():
            run, joined = 0, False
    return longest


def parse_key(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted key such as `head.0."my block"`; ValueError if `text` is not exactly one key."""
    scanner = _Scanner(text)
    try:
        parts = scanner.dotted_key()
    except (AttributeError, IndexError):
        raise ValueError(text) from None
    if scanner.at != len(text):
        raise ValueError(text)
    return parts


def split_values(text: str) -> list[str]:
    """Cut `text` at the commas outside quotes and brackets; ValueError if a bracket or quote stays open."""
    scanner, pieces, start = _Scanner(text), [], 0
    while scanner.at < len(text):
        if text[scanner.at] == ",":
            pieces.append(text[start : scanner.at])
            scanner.at = start = scanner.at + 1
        elif text[scanner.at] in "\"'[{":
            try:
                scanner.value(())
            except (AttributeError, IndexError):
                raise ValueError(text) from None
        else:
            scanner.at += 1
    return [piece.strip() for piece in [*pieces, text[start:]]]


def is_one_value(text: str) -> bool:
    """Return whether valid `key = text` has nothing after the value: no comment and no second line."""
    scanner = _Scanner(text)
    scanner.skip(_BLANK)
    scanner.value(())
    return not text[scanner.at :].strip()


class _Scanner:
    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._table_counts: dict[KeyPath, int] = {}

    @property
    def line(self) -> int:
        return bisect.bisect_left(self._line_ends, self.at) + 1

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Move past the pattern and return what it matched; AttributeError if it is not there."""
        match = pattern.match(self.text, self.at)
        self.at = match.end()  # type: ignore[union-attr]
        return match.group()  # type: ignore[union-attr]

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self.skip(_GAP)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
            self.skip(_GAP)
        return self.lines

    def header(self) -> KeyPath:
        line, repeated = self.line, self.text.startswith("[[", self.at)
        self.at += 2 if repeated else 1
        self.skip(_BLANK)
        parts = self.dotted_key()
        self.at += 2 if repeated else 1
        table = (*self.note((), parts[:-1], line), parts[-1])
        if not repeated:
            self.lines[table] = line
            return table
        self.lines.setdefault(table, line)
        position = self._table_counts.get(table, 0)
        self._table_counts[table] = position + 1
        self.lines[(*table, position)] = line
        return (*table, position)

    def note(self, table: KeyPath, parts: tuple[str, ...], line: int) -> KeyPath:
        """Go down from `table` along `parts`, giving `line` to what is new; arrays of tables mean their last item."""
        for part in parts:
            table = (*table, part)
            self.lines.setdefault(table, line)
            table = self.last_item(table)
        return table

    def last_item(self, table: KeyPath) -> KeyPath:
        count = self._table_counts.get(table, 0)
        return (*table, count - 1) if count else table

    def pair(self, table: KeyPath) -> None:
        line = self.line
        parts = self.dotted_key()
        self.at += 1  # =
        self.skip(_BLANK)
        path = (*self.note(table, parts[:-1], line), parts[-1])
        self.lines[path] = line
        self.value(path)

    def dotted_key(self) -> tuple[str, ...]:
        parts = [self.simple_key()]
        self.skip(_BLANK)
        while self.at < len(self.text) and self.text[self.at] == ".":
            self.at += 1
            self.skip(_BLANK)
            parts.append(self.simple_key())
            self.skip(_BLANK)
        return tuple(parts)

    def simple_key(self) -> str:
        quote = self.text[self.at]
        if quote not in "\"'":
            return self.skip(_BARE_KEY)
        quoted = self.skip(_BASIC if quote == '"' else _LITERAL)
        return next(iter(tomllib.loads(f"{quoted} = 0")))

    def value(self, path: KeyPath) -> None:
        opening = self.text[self.at]
        if opening == "[":
            self.array(path)
        elif opening == "{":
            self.inline_table(path)
        elif self.text.startswith('"""', self.at):
            self.skip(_MULTI_BASIC)
        elif self.text.startswith("'''", self.at):
            self.skip(_MULTI_LITERAL)
        elif opening == '"':
            self.skip(_BASIC)
        elif opening == "'":
            self.skip(_LITERAL)
        else:
            self.skip(_PLAIN)

    def array(self, path: KeyPath) -> None:
        self.at += 1
        self.skip(_GAP)
        position = 0
        while self.text[self.at] != "]":
            self.lines[(*path, position)] = self.line
            self.value((*path, position))
            position += 1
            self.separator()
        self.at += 1

    def inline_table(self, path: KeyPath) -> None:
        self.at += 1
        self.skip(_GAP)
        while self.text[self.at] != "}":
            self.pair(path)
            self.separator()
        self.at += 1

    def separator(self) -> None:
        self.skip(_GAP)
        if self.text[self.at] == ",":
            self.at += 1
            self.skip(_GAP)
