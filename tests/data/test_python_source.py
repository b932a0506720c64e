from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from pydantic import ValidationError

from xmckit.context import Context
from xmckit.data import python_source
from xmckit.data.python_functions import identifier_parts, parse_file
from xmckit.data.python_source import PythonSource, StdlibCalls
from xmckit.errors import DataError

READER = '''
    import functools

    raise SystemExit("a parsed file is never run")

    class JSONReader:
        @functools.lru_cache(maxsize=cached_size())
        def read_file(self, path, /, *lines, encodingName=default(), **kw):
            """Read a file; see read_all.

            The file is a file.
            """
            with open(path) as stream:
                return self.decoder.decode(stream.read())

        @property
        def size(self):
            return len(self.rows)

        @size.setter
        def size(self, value):
            self.rows = value

    def outer(items):
        def inner(x):
            return len(x)
        class Local:
            def method(self):
                return repr(self)
            width = max(1, 2)
        return sorted(items, key=lambda item: open(inner(item)))
'''


def write(folder: Path, name: str, source: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(source), encoding="utf-8")


def functions(folder: Path, name: str, source: str):
    write(folder, name, source)
    parsed = parse_file(folder, name)
    assert parsed.problem is None
    return {function.name: function for function in parsed.functions}


def all_rows(dataset) -> dict[str, tuple[str, set[str]]]:
    rows = {}
    for split in (dataset.train, dataset.test):
        for row, name in enumerate(split.names):
            assert name not in rows
            rows[name] = (split.texts[row], {dataset.label_names[label] for label in split.Y[row].indices})
    return rows


def test_rows_of_a_file(tmp_path):
    found = functions(tmp_path, "pkg/json_io.py", READER)
    assert list(found) == [
        "pkg.json_io.JSONReader.read_file",
        "pkg.json_io.JSONReader.size",
        "pkg.json_io.outer",
        "pkg.json_io.outer.inner",
        "pkg.json_io.outer.Local.method",
    ]
    assert {function.name.rsplit(".", 1)[1]: function.owner for function in found.values()} == {
        "read_file": "JSONReader",
        "size": "JSONReader",
        "outer": "",
        "inner": "",
        "method": "outer.Local",
    }


def test_a_call_belongs_to_the_innermost_function_that_runs_it(tmp_path):
    calls = {name.rsplit(".", 1)[1]: f.calls for name, f in functions(tmp_path, "m.py", READER).items()}
    assert calls == {
        # neither `cached_size` nor `default`: those run when the function is made
        "read_file": ("decode", "open", "read"),
        "size": ("len",),
        # not the calls of `inner` and `method`, but those of the lambda and of the class body
        "outer": ("inner", "max", "open", "sorted"),
        "inner": ("len",),
        "method": ("repr",),
    }


def test_calls_in_decorators_and_defaults_count_for_the_function_around(tmp_path):
    source = """
        def around():
            @decorate(1)
            def within(x=default()) -> annotate():
                return body()
    """
    calls = {name: f.calls for name, f in functions(tmp_path, "m.py", source).items()}
    assert calls == {"m.around": ("annotate", "decorate", "default"), "m.around.within": ("body",)}


def test_texts_are_words_marked_by_kind(tmp_path):
    found = functions(tmp_path, "pkg/json_io.py", READER)
    assert found["pkg.json_io.JSONReader.read_file"].text.split() == [
        "name_read", "name_file",
        "arg_self", "arg_path", "arg_encoding", "arg_name", "arg_lines", "arg_kw",
        "path_pkg", "path_json", "path_io", "path_json", "path_reader",
        "deco_lru", "deco_cache",
        "read", "file", "see", "read", "all", "the", "file", "is", "file",
    ]  # fmt: skip
    size = functions(tmp_path, "pkg/__init__.py", READER)["pkg.JSONReader.size"]
    assert size.text == "name_size arg_self path_pkg path_json path_reader deco_property"


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("read_file", ["read", "file"]),
        ("__init__", ["init"]),
        ("HTTPServer2", ["http", "server2"]),
        ("getValueOf", ["get", "value", "of"]),
        ("a-b.c", ["a", "b", "c"]),
        ("_", []),
        ("Ünïcode_Ä", ["ünïcode", "ä"]),
    ],
)
def test_identifier_parts(identifier, parts):
    assert identifier_parts(identifier) == parts


def test_async_functions_and_calls_without_a_name(tmp_path):
    source = """
        async def fetch():
            return await get()
        def table(rows):
            return rows[0]() + rows()()
        def nameless(rows):
            return rows[0]()
    """
    calls = {name: f.calls for name, f in functions(tmp_path, "m.py", source).items()}
    assert calls == {"m.fetch": ("get",), "m.table": ("rows",)}


@pytest.fixture
def project(tmp_path) -> Path:
    write(tmp_path, "a.py", "def f(x):\n    len(x); open(x); rare(x)\ndef g(x):\n    len(x)\n")
    write(
        tmp_path,
        "b/c.py",
        "class K:\n    def h(self):\n        open(1); len(2)\n    def only(self):\n        lonely()\n",
    )
    write(tmp_path, "tests/t.py", "def t():\n    len(1); rare(2)\n")
    write(tmp_path, "b/notes.txt", "def no(): len(1)\n")
    return tmp_path


def test_only_frequent_labels_and_rows_that_have_one(project):
    dataset = PythonSource(path=project).read(context=Context())
    dataset.check()
    assert dataset.label_names == ["len", "open"]
    assert {name: labels for name, (_, labels) in all_rows(dataset).items()} == {
        "a.f": {"len", "open"},
        "a.g": {"len"},
        "b.c.K.h": {"len", "open"},
    }
    assert (dataset.train.rows, dataset.test.rows) == (2, 1)
    assert dataset.train.X is None
    assert dataset.train.groups is None
    assert dataset.propensity is None
    assert dataset.info["files"] == 2
    assert dataset.info["functions_with_calls"] == 4
    assert dataset.info["functions_without_frequent_calls"] == 1
    assert dataset.info["files_not_parsed"] == {}


def test_parameters_change_what_is_read(project):
    every = PythonSource(path=project, min_label_count=1, exclude=["b"]).read(context=Context())
    assert {name: labels for name, (_, labels) in all_rows(every).items()} == {
        "a.f": {"len", "open", "rare"},
        "a.g": {"len"},
        "tests.t.t": {"len", "rare"},
    }
    with pytest.raises(ValidationError):
        PythonSource(path=project, test_share=1)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_both_sides_of_the_split_have_rows(project, share):
    dataset = PythonSource(path=project, test_share=share).read(context=Context(seed=3))
    assert sorted([dataset.train.rows, dataset.test.rows]) == [1, 2]


def test_groups_hold_the_counts_of_their_rows_in_the_split(tmp_path):
    write(tmp_path, "a.py", "".join(f"def f{n}(x):\n    len(x); g{n % 3}(x)\n" for n in range(20)))
    write(tmp_path, "b.py", "class K:\n" + "".join(f"    def m{n}(s):\n        len(s)\n" for n in range(20)))
    write(
        tmp_path,
        "b2.py",
        "class K:\n" + "".join(f"    def m{n}(s):\n        len(s)\n" for n in range(5)) + "def k():\n len()\n",
    )
    for by, owners in {"class": 4, "file": 3}.items():
        dataset = PythonSource(path=tmp_path, groups=by, test_share=0.4).read(context=Context(seed=1))
        dataset.check()
        assert dataset.train.groups.membership.shape[1] <= owners
        for split in (dataset.train, dataset.test):
            membership, labels = split.groups.membership.toarray(), split.groups.labels.toarray()
            assert (membership.sum(axis=1) == 1).all()
            np.testing.assert_array_equal(labels, membership.T @ split.Y.toarray())
            # names are module.function or module.K.function
            key = [name.split(".")[:1] if by == "file" else name.split(".")[:-1] for name in split.names]
            same_key = np.array([[a == b for b in key] for a in key])
            np.testing.assert_array_equal(same_key, membership @ membership.T == 1)
    assert dataset.train.groups.labels.max() > 1


def test_files_that_do_not_parse_are_named_and_the_rest_is_read(project):
    (project / "broken.py").write_text("def f(:\n")
    (project / "bytes.py").write_bytes(b"x = '\xff'\n")
    (project / "encoding.py").write_bytes(b"# coding: no-such-codec\n")
    (project / "nulls.py").write_bytes(b"x = 1\0\n")
    (project / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000 + "\n")
    (project / "long.py").write_text("x = " + "-" * 20000 + "1\n")
    (project / "warns.py").write_text("def w(x):\n    return len(x) is 3, '\\d'\n")
    (project / "latin.py").write_bytes("# coding: latin-1\ndef lä(x):\n    len(x)\n".encode("latin-1"))
    os.symlink("nowhere", project / ".#lock.py")
    dataset = PythonSource(path=project).read(context=Context())
    problems = dataset.info["files_not_parsed"]
    assert set(problems) == {"broken.py", "bytes.py", "encoding.py", "nulls.py", "deep.py", "long.py"}
    assert all(problems.values())
    assert problems["broken.py"].startswith("line 1: ")
    assert {"a.f", "warns.w", "latin.lä"} <= set(all_rows(dataset))


def test_source_too_deep_for_a_recursive_walk_is_read(tmp_path):
    deep = "def f(x):\n    return " + "+".join(["len(x)"] * 900) + "\ndef g(x):\n    len(x)\n"
    write(tmp_path, "m.py", deep)
    parsed = parse_file(tmp_path, "m.py")
    assert parsed.problem is None
    assert [function.calls for function in parsed.functions] == [("len",), ("len",)]


def test_names_that_are_not_text(project):
    try:
        (project / os.fsdecode(b"odd-\xff.py")).write_text("def f(x):\n    len(x)\n")
    except OSError:
        pytest.skip("the file system only takes names that are text")
    dataset = PythonSource(path=project).read(context=Context())
    names = [*dataset.train.names, *dataset.test.names]
    assert "odd-\\udcff.f" in names
    assert "".join([*names, *dataset.train.texts]).encode("utf-8")


def test_same_seed_same_data_other_seed_other_split(tmp_path):
    write(tmp_path, "a.py", "".join(f"def f{n}(x):\n    len(x)\n" for n in range(50)))
    source = PythonSource(path=tmp_path)
    first, again, other = (source.read(context=Context(seed=seed)) for seed in (1, 1, 2))
    assert first.test.names == again.test.names
    assert first.test.names != other.test.names
    assert set(first.train.names) | set(first.test.names) == {f"a.f{n}" for n in range(50)}
    assert len(first.test.names) == 10


def test_the_number_of_workers_does_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(python_source, "FILES_WORTH_WORKERS", 1)
    monkeypatch.setattr(python_source, "FILES_PER_TASK", 2)
    for n in range(9):
        write(tmp_path, f"p{n % 3}/m{n}.py", f"def f{n}(x):\n    len(x); g{n % 4}(x)\n")
    (tmp_path / "bad.py").write_text("(")
    source = PythonSource(path=tmp_path, groups="file")
    one, two = (source.read(context=Context(workers=workers)) for workers in (1, 2))
    assert one.info == two.info
    assert one.label_names == two.label_names
    for a, b in ((one.train, two.train), (one.test, two.test)):
        assert (a.names, a.texts) == (b.names, b.texts)
        assert (a.Y != b.Y).nnz == 0
        assert (a.groups.labels != b.groups.labels).nnz == 0


def test_fingerprint_follows_content_names_and_seed(project):
    def prints(**options):
        return PythonSource(path=project, **options).fingerprint(context=Context(seed=options.pop("seed", 0)))

    before = prints()
    assert prints() == before
    (project / "tests" / "t.py").write_text("changed = True\n")
    assert prints() == before
    assert PythonSource(path=project).fingerprint(context=Context(seed=1)) != before
    (project / "a.py").write_text((project / "a.py").read_text() + "\n")
    edited = prints()
    assert edited["files"] != before["files"]
    (project / "a.py").rename(project / "z.py")
    assert prints()["files"] != edited["files"]


@pytest.mark.parametrize("method", ["read", "fingerprint"])
def test_folders_without_python_files(tmp_path, method):
    write(tmp_path, "tests/t.py", "def t():\n    len(1)\n")
    write(tmp_path, "file.txt", "")
    for path, message in {
        tmp_path: r"no Python files \(\*\.py\)",
        tmp_path / "nowhere": "expected a folder .* found nothing",
        tmp_path / "file.txt": "expected a folder .* found a file",
    }.items():
        with pytest.raises(DataError, match=message) as caught:
            getattr(PythonSource(path=path), method)(context=Context())
        assert str(path) in str(caught.value)


def test_too_few_rows(tmp_path):
    write(tmp_path, "a.py", "def f():\n    len(1)\ndef g():\n    open(1)\n")
    (tmp_path / "bad.py").write_text("(")
    with pytest.raises(DataError, match=r"0 functions call a name .* in 2 Python files \(1 of them"):
        PythonSource(path=tmp_path).read(context=Context())


def test_progress_counts_every_file(project):
    steps = []

    class Recorder:
        def __init__(self, what, total=None):
            self.entry = [what, total, 0]
            steps.append(self.entry)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def advance(self, step=1, **facts):
            self.entry[2] += step

    PythonSource(path=project).read(context=Context(progress=Recorder))
    assert steps == [["parsing Python files", 2, 2]]


def test_stdlib_calls_has_no_path_to_choose():
    with pytest.raises(ValidationError):
        StdlibCalls(path=".")
    assert StdlibCalls(min_label_count=5).folder.is_dir()


def test_stdlib_calls_is_the_size_it_is_known_to_be():
    dataset = StdlibCalls(groups="class").read(context=Context(workers=2))
    dataset.check()
    rows = dataset.train.rows + dataset.test.rows
    assert dataset.name == "stdlib-calls"
    assert 9_000 < rows < 16_000
    assert 2_500 < dataset.labels < 5_000
    assert dataset.test.rows == round(rows / 5)
    assert 2.5 < dataset.train.Y.nnz / dataset.train.rows < 4
    assert dataset.info["files_not_parsed"] == {}
    counts = np.asarray(dataset.train.Y.sum(axis=0)).ravel() + np.asarray(dataset.test.Y.sum(axis=0)).ravel()
    assert counts.min() >= 2
    popular = {dataset.label_names[label] for label in np.argsort(-counts)[:10]}
    assert {"isinstance", "len", "append"} <= popular
    assert "json.decoder.JSONDecoder.decode" in {*dataset.train.names, *dataset.test.names}
