import contextlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit.errors import RecipeError
from xmckit.recipe.layers import parse_set
from xmckit.recipe.toml_lines import key_lines, longest_key, parse_key, split_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = st.sampled_from(["a", "b", "use", "two-words", "3", '"quoted key"', "'lit.eral'", '"esc\\"aped\\t"', '"ü=#["'])
NOISE = st.sampled_from(
    [
        "",
        "# a = 1",
        "  # [table] ''' \"\"\"",
        "\t",
    ]
)
MULTILINE = st.sampled_from(
    [
        '"""\n[x]\na = 1\n"""',
        "'''\nb = 2 # '' ''\n'''",
        '"""x \\""" y\n""""',
        "'''a\n'''''",
        '""""""',
        '"""""two\n"""',
    ]
)
ATOMS = st.sampled_from(
    ["true", "-1.5e3", "inf", "1979-05-27 07:32:00", "07:32:00", "0xff", '"#]}"', "'[{,'", '""', "''"]
)


class Writer:
    """Writes random TOML line by line. Every integer leaf is unique, so its line can be found by looking for it."""

    def __init__(self, draw):
        self.draw, self.lines, self.count = draw, [], 100_000

    def unique(self):
        self.count += 1
        return str(self.count)

    def value(self, depth=0):
        kind = self.draw(st.integers(0, 9))
        if kind == 0 and depth < 3:
            space = self.draw(st.sampled_from(["", " ", "\n  ", " # ], no\n", "\n# [x]\n "]))
            items = [self.value(depth + 1) for _ in range(self.draw(st.integers(0, 3)))]
            comma = self.draw(st.sampled_from(["", ","])) if items else ""
            return f"[{space}" + f",{space}".join(items) + f"{comma}{space}]"
        if kind == 1 and depth < 3:
            return "{ " + ", ".join(f"{key} = {self.value(depth + 1)}" for key in self.distinct_keys(2)) + " }"
        if kind == 2:
            return self.draw(MULTILINE)
        if kind == 3:
            return self.draw(ATOMS)
        return self.unique()

    def distinct_keys(self, most):
        return self.draw(st.lists(KEYS, unique=True, max_size=most))

    def dotted(self, most=2):
        dot = self.draw(st.sampled_from([".", " . "]))
        return dot.join(self.draw(st.lists(KEYS, min_size=1, max_size=most)))

    def document(self):
        for _ in range(self.draw(st.integers(0, 4))):
            self.lines.append(self.draw(NOISE))
            if self.lines and self.draw(st.booleans()):
                pattern = self.draw(st.sampled_from(["[{}]", "[[{}]]", " [ {} ] # c", "[[ {} ]]"]))
                self.lines.append(pattern.format(self.dotted(3)))
            for _ in range(self.draw(st.integers(0, 3))):
                equals = self.draw(st.sampled_from(["=", " = ", "\t=  "]))
                self.lines.append(self.dotted() + equals + self.value() + self.draw(st.sampled_from(["", " # x = [1"])))
        end = self.draw(st.sampled_from(["\n", "\r\n"]))
        return end.join("\n".join(self.lines).split("\n"))


@st.composite
def documents(draw):
    return Writer(draw).document()


def paths_of(value, path=()):
    """Every path of a parsed document with its value."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from paths_of(item, (*path, position))


@settings(deadline=None, max_examples=600, derandomize=True)
@given(documents())
def test_every_path_that_tomllib_sees_has_the_line_where_it_is_written(text):
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    expected = dict(paths_of(document))
    assert set(lines) == set(expected)
    written = text.split("\n")
    for path, value in expected.items():
        if isinstance(value, int) and value > 100_000:
            assert str(value) in written[lines[path] - 1]


def test_the_generator_makes_valid_documents_often_enough():
    valid = 0

    @settings(deadline=None, max_examples=200, derandomize=True, database=None)
    @given(documents())
    def count(text):
        nonlocal valid
        with contextlib.suppress(tomllib.TOMLDecodeError):
            valid += len(tomllib.loads(text)) > 0

    count()
    assert valid > 60


def test_headers_and_what_they_imply():
    text = "\n".join(
        ["title = 1", "", "[a.b]", "x = 1", "[a]", "y.z = 2", "[[t]]", "[[t]]", "k = 3", "[t.sub]", "q = [", " 4,", "]"]
    )
    assert key_lines(text) == {
        ("title",): 1,
        ("a",): 5,
        ("a", "b"): 3,
        ("a", "b", "x"): 4,
        ("a", "y"): 6,
        ("a", "y", "z"): 6,
        ("t",): 7,
        ("t", 0): 7,
        ("t", 1): 8,
        ("t", 1, "k"): 9,
        ("t", 1, "sub"): 10,
        ("t", 1, "sub", "q"): 11,
        ("t", 1, "sub", "q", 0): 12,
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", ("a",)), ("a.0.b-c", ("a", "0", "b-c")), ('a."x.y" . b', ("a", "x.y", "b")), ("'é'", ("é",))],
)
def test_parse_key(text, parts):
    assert parse_key(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a b",
        "a..b",
        '"a',
        "a=b",
        "é",
        '"\\x"',
        "#a",
        "[a]",
        "a=1\nb",
        "[a]\nb",
        "#\na",
        "[[a]]#",
        "a=1 #",
    ],
)
def test_parse_key_refuses(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_key(text)


def test_split_values():
    assert split_values("a#1,b#2") == ["a#1", "b#2"]
    assert split_values("1, 2 ,3") == ["1", "2", "3"]
    assert split_values("[1,2],[3]") == ["[1,2]", "[3]"]
    assert split_values("\"a,b\",'c,d',{x=1,y=[2,3]},e") == ['"a,b"', "'c,d'", "{x=1,y=[2,3]}", "e"]
    assert split_values("a,,b,") == ["a", "", "b", ""]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.text(alphabet="a1,[]{}\"'=# .\n", max_size=30))
def test_split_values_ends_and_loses_nothing(text):
    try:
        pieces = split_values(text)
    except ValueError:
        return
    assert "".join(",".join(pieces).split()) == "".join(text.split())


def test_a_set_is_one_value():
    assert parse_set("a= [1, # c\n 2] ") == (("a",), [1, 2])
    for text in ("1 # comment", "1\nb = 2", "[1]\n[b]", "1\n# comment", "[1] # comment\n", "1, 2"):
        with pytest.raises(RecipeError, match="expected a TOML value"):
            parse_set(f"a={text}")


def test_longest_key():
    assert longest_key('a = 1\nb. c .\'x.y\' . "q\\"."=1\n', 0) == (4, 2)
    assert longest_key('a = ["1.2.3.4.5", 0.1, 0.2]', 0) == (2, 1)
    assert longest_key("a.b = 1", 2) == (0, 0)
