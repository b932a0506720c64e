"""`xmckit plugins new`: what it writes works at once, and nothing else is touched."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import xmckit
from xmckit import scaffold, store
from xmckit.cli import xmckit as program
from xmckit.errors import StorageError, UsageError
from xmckit.registry import Registry
from xmckit.testing import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = list(scaffold.EXAMPLES)
# Those of the generated tests that run a recipe, or another process: seconds each.
LONG = "recipe or run or chooses or fresh"


@pytest.fixture(scope="module")
def registry():
    return Registry()


@pytest.fixture
def forgotten(tmp_path):
    """Modules from the test's folder do not stay for other tests."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def install(folder: Path) -> Path:
    """What an editable install leaves behind, in the source folder itself."""
    source = folder / "src"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["xmckit"].items()
    info = source / f"{module}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(f"[xmckit]\n{name} = {module}\n")
    return source


def python(*arguments: str, path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=cwd, env=environment
    )


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_are_listed_and_can_be_imported(kind, registry, tmp_path, monkeypatch, forgotten):
    file = scaffold.write_single_file(kind, f"file-{kind}", tmp_path, registry)
    monkeypatch.syspath_prepend(install(scaffold.write_distribution(kind, f"dist-{kind}", tmp_path, registry)))
    both = Registry(files=[file])
    assert not both.problems
    for name, origin in ((f"file-{kind}", "file"), (f"dist-{kind}", "installed")):
        found = both.component(kind, name)
        assert (found.plugin.origin, found.component.api_version) == (origin, xmckit.API_VERSION)
        assert not Case(kind, both.resolve(kind, name)).needs  # `xmckit plugins check` alone checks it
        fields = both.resolve(kind, name).Params.model_fields
        assert fields
        assert all(field.description for field in fields.values())
    assert both.component(kind, f"dist-{kind}").plugin.distribution == f"xmckit-dist-{kind}"


@pytest.mark.parametrize(
    ("selected", "least"), [(f"not ({LONG})", 180), pytest.param(LONG, 2 * len(KINDS), marks=pytest.mark.slow)]
)
def test_the_tests_that_are_written_pass(selected, least, registry, tmp_path):
    folders = [scaffold.write_distribution(kind, f"my-{kind}", tmp_path, registry) for kind in KINDS]
    sources = [install(folder) for folder in folders]
    done = python(
        "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib", "-k", selected,
        *(str(folder / "tests") for folder in folders), path=sources, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least
    skipped = re.findall(r"^SKIPPED \[(\d+)\] \S+ (.*)$", done.stdout, re.MULTILINE)
    assert sum(int(count) for count, _ in skipped) == int(re.search(r"(\d+) skipped", done.stdout)[1])
    optional = ("it does not offer ", "candidates() is None")  # methods that a component may leave out
    assert sum(int(count) for count, why in skipped if not why.startswith(optional)) <= 3, skipped


def test_one_recipe_runs_with_single_files(registry, tmp_path, forgotten):
    files = [scaffold.write_single_file(kind, f"own-{kind}", tmp_path, registry) for kind in KINDS]
    news = tmp_path / "news"
    news.mkdir()
    rows = "".join(f"sports,tennis\tmatch {n} of the year\nhouse\tmend chair {n}\n" for n in range(20))
    (news / "train.tsv").write_text(f"{rows}once\tseen a single time\n")
    (news / "test.tsv").write_text(rows)
    (tmp_path / "all.toml").write_text("""
        [data]
        use = "files"
        path = "news"
        reader = "own-reader"
        [features]
        use = "tfidf"
        [[labels]]
        use = "own-label-preprocessor"
        [index]
        use = "own-indexer"
        [head]
        use = "own-head"
        dim = 4
        epochs = 4
        encoder = { use = "own-encoder", width = 8 }
        [[score.metrics]]
        use = "ranking"
        [[score.metrics]]
        use = "own-metric"
        [verify]
        use = "own-verifier"
    """)
    everything = Registry(files=files)
    result = xmckit.run(tmp_path / "all.toml", root=tmp_path / "runs", registry=everything)
    metrics = result.metrics["results"][0]["metrics"]
    assert {"P@1", "Jaccard", "exact"} <= metrics.keys()
    verdicts = json.loads((result.path / "verdicts.json").read_text())
    assert {item["scope"] for item in verdicts["results"]} == {"full", "shortlist"}
    assert xmckit.load(result.path, registry=everything).predict(["match of the year"], k=1)


def test_a_wheel_of_it_is_found_when_it_is_installed(registry, tmp_path):
    if importlib.util.find_spec("build") is None or importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs the packages `build` and `hatchling`")
    folder = scaffold.write_distribution("metric", "built", tmp_path, registry)
    done = python(
        "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(folder), path=[], cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.startswith("tests")]
        archive.extractall(tmp_path / "site")
    listed = python(
        "-m", "xmckit", "plugins", "ls", "--kind", "metric", "--json", path=[tmp_path / "site"], cwd=tmp_path
    )
    found = {item["name"]: item["distribution"] for item in json.loads(listed.stdout)["components"]}
    assert found["built"] == "xmckit-built"


def test_the_command_says_where_it_is_and_how_it_is_used(tmp_path):
    explained = CliRunner().invoke(program, ["plugins", "new", "--help"]).stdout
    assert all(kind in explained for kind in KINDS)
    done = CliRunner().invoke(program, ["plugins", "new", "head", "mine", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "xmckit-mine")
    assert 'use = "mine"' in done.stderr
    done = CliRunner().invoke(
        program, ["plugins", "new", "head", "mine", "--single-file", "--json", "--output", str(tmp_path / "new")]
    )
    assert json.loads(done.stdout)["files"] == [str(tmp_path / "new" / "mine.py")]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("haed", "mine", "did you mean 'head'"),
        ("executor", "mine", "no example of a 'executor'"),
        ("head", "MyHead", "for instance 'my-head'"),
        ("head", "my head", "for instance 'my-head'"),
        ("head", "3d", "cannot be a name"),
        ("head", "class", "cannot be a name"),
        ("head", "a-", "for instance 'a'"),
        ("head", "", "cannot be a name"),
        ("head", "../up", "for instance 'up'"),
        ("head", "größe", "cannot be a name"),
        ("head", "xmckit-mine", "leave out"),
        ("head", "bsl", "head:bsl of plugin 'heads'"),
        ("head", "topk_entropy", "head:topk-entropy"),
        ("metric", "heads", "has a module 'xmckit_heads'"),
    ],
)
def test_what_cannot_be_is_explained(kind, name, expected, registry, tmp_path):
    with pytest.raises(UsageError) as caught:
        scaffold.write_distribution(kind, name, tmp_path / "new", registry)
    assert expected in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_does_not_hide_a_module(registry, tmp_path):
    with pytest.raises(UsageError, match="module 'json'"):
        scaffold.write_single_file("head", "json", tmp_path, registry)


@pytest.mark.parametrize(("write", "made"), [("write_distribution", "xmckit-mine"), ("write_single_file", "mine.py")])
def test_nothing_is_overwritten(write, made, registry, tmp_path):
    path = getattr(scaffold, write)("head", "mine", tmp_path, registry)
    assert path == tmp_path / made
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match="exists already"):
        getattr(scaffold, write)("metric", "mine", tmp_path, registry)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    link = tmp_path / "links" / made
    link.parent.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists already"):
        getattr(scaffold, write)("head", "mine", link.parent, registry)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        getattr(scaffold, write)("head", "mine", tmp_path / "file", registry)


def test_it_is_there_completely_or_not_at_all(registry, tmp_path, monkeypatch):
    def full(path, text):
        if path.suffix == ".md":
            raise OSError(28, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(store, "write_text", full)
    with pytest.raises(StorageError, match="No space left"):
        scaffold.write_distribution("head", "mine", tmp_path, registry)
    assert not list(tmp_path.iterdir())


USABLE = st.from_regex(r"[a-z][a-z0-9]{0,5}([-_][a-z0-9]{1,4}){0,2}", fullmatch=True)


@given(st.sampled_from(KINDS), st.one_of(st.text(max_size=12), USABLE))
@settings(max_examples=60, deadline=None)
def test_every_name_is_refused_or_gives_valid_code(tmp_path_factory, registry, kind, name):
    parent = tmp_path_factory.mktemp("names")
    try:
        folder = scaffold.write_distribution(kind, name, parent, registry)
        file = scaffold.write_single_file(kind, name, parent, registry)
    except UsageError:
        return
    assert {folder, file} == set(parent.iterdir())
    for source in [file, *folder.rglob("*.py")]:
        ast.parse(source.read_text())
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert list(project["entry-points"]["xmckit"]) == [name]
