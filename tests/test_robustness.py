"""What hostile plugins, damaged folders and unlucky moments must not do to the core."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest

import xmckit
from xmckit import pipeline, store
from xmckit.cli.options import print_json
from xmckit.cli.tables import print_table
from xmckit.errors import DataError, PluginError, RecipeError, StorageError, UsageError, printable, printable_json
from xmckit.pipeline.cache import empty_cache
from xmckit.recipe import load_recipe
from xmckit.registry import Registry
from xmckit.runs import Run, find_runs, provenance

TOY = (Path(__file__).with_name("assets") / "toy_plugin.py").read_text().partition("annotations\n")[2]
DATA = """
    seed = 3
    [data]
    use = "synthetic"
    rows = 200
    test_rows = 50
    features = 100
    labels = 30
    topics = 3
"""
POPULAR = DATA + '    [head]\n    use = "popularity"\n'
SHORTLISTED = DATA + '    [[index]]\n    use = "frequent"\n    [[head]]\n    use = "shortlisted"\n'
RELABELLED = SHORTLISTED + '    [[labels]]\n    use = "drop"\n'
VERIFIED = SHORTLISTED + '    [verify]\n    use = "one-dimension"\n'


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """Drawing takes most of a small run's time and is not what these tests are about."""
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "small.toml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def plugin(tmp_path):
    """A registry with one file plugin of this text; its modules are forgotten afterwards."""
    before = set(sys.modules)

    def load(text: str, name: str = "hostile") -> Registry:
        folder = tmp_path / "plugin"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text("import xmckit\nfrom xmckit import Component\n" + textwrap.dedent(text))
        return Registry(files=[folder / f"{name}.py"])

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(store.TEMPORARY)]


def cached(root: Path, stage: str) -> Path:
    return next(
        folder for folder in (root / ".cache").iterdir() if store.read_json(folder / "stage.json")["name"] == stage
    )


# -- run folders -----------------------------------------------------------------------------------------------------


def test_two_runs_that_start_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)  # both looked before either had made its folder
    runs = [Run.create(tmp_path, "same", "0" * 64, "", "") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("status", ["created", "running"])
def test_a_run_whose_process_is_gone_was_killed(tmp_path, status):
    run = Run.create(tmp_path, "gone", "0" * 64, "", "")
    run.update(status=status)
    assert run.status == status
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    run.update(pid=gone.pid)
    assert run.status == "killed"


def test_going_on_with_a_run_leaves_no_second_names(recipe, tmp_path):
    first = pipeline.run(recipe(POPULAR), root=tmp_path / "runs")
    pipeline.run(recipe(POPULAR), root=tmp_path / "runs", resume=first.path)
    assert leftovers(tmp_path) == []


def cut_short(folder):
    with open(folder / "train" / "Y.npz", "r+b") as stream:
        stream.truncate(100)


@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        lambda folder: (folder / "stage.json").unlink(),
        lambda folder: [shutil.rmtree(folder), folder.mkdir()],
        lambda folder: (folder / "description.json").write_text("{}"),
    ],
)
def test_a_damaged_stage_is_made_again(recipe, tmp_path, damage):
    root = tmp_path / "runs"
    first = pipeline.run(recipe(POPULAR), root=root)
    damage(cached(root, "data"))
    again = pipeline.run(recipe(POPULAR), root=root)
    assert again.metrics == first.metrics
    assert not again.run.stages[0].reused
    damage(again.run.stage_folder("data"))
    resumed = pipeline.run(recipe(POPULAR), root=root, resume=again.path)
    assert resumed.metrics == first.metrics


def test_a_missing_stage_folder_says_how_to_make_it_again(recipe, tmp_path):
    run = pipeline.run(recipe(POPULAR), root=tmp_path / "runs").run
    shutil.rmtree(run.stage_folder("data"))
    with pytest.raises(StorageError, match=f"data is missing: .*xmckit run --resume {re.escape(str(run.path))}"):
        run.dataset()
    pipeline.run(recipe(POPULAR), root=tmp_path / "runs", resume=run.path)
    assert run.dataset().labels


def test_a_run_that_was_moved_keeps_its_cache_to_itself(recipe, tmp_path):
    run = pipeline.run(recipe(POPULAR), root=tmp_path / "runs")
    home = tmp_path / "home" / "downloads"
    home.mkdir(parents=True)
    shutil.move(run.path, home / "a-run")
    shutil.rmtree(home / "a-run" / "stages" / "3-score")
    pipeline.run(recipe(POPULAR), resume=home / "a-run")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["downloads"]
    assert [path.name for path in home.iterdir()] == ["a-run"]


def test_emptying_the_cache_deletes_nothing_else(recipe, tmp_path):
    root = tmp_path / "runs"
    pipeline.run(recipe(POPULAR), root=root)
    (root / ".cache" / "pip").mkdir()
    (root / ".cache" / f"{store.TEMPORARY}{os.getpid()}-being-written").mkdir()
    assert empty_cache(root) == 4
    assert len(list((root / ".cache").iterdir())) == 2


def test_odd_folders_are_no_runs(tmp_path):
    run = Run.create(tmp_path, "one", "0" * 64, "", "")
    shutil.copytree(run.path, run.path.with_name(f"{store.TEMPORARY}1-left"))
    (tmp_path / "one" / "bare").mkdir()
    (tmp_path / "one" / "bare" / "manifest.json").write_text('{"format": 1}')
    assert [found.path for found in find_runs(tmp_path)] == [run.path]
    with pytest.raises(StorageError, match="name: Field required"):
        Run.open(tmp_path / "one" / "bare")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file is in its way"):
        Run.create(tmp_path / "file", "one", "0" * 64, "", "")


# -- plugins ---------------------------------------------------------------------------------------------------------

HEAD = """
class Thing(xmckit.Configured): ...
@xmckit.hookimpl
def xmckit_heads():
    yield Component({})
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD.format("'x', 5"), "target 5"),
        (HEAD.format("'x', f'{__name__}:Thing', summary=None"), "summary None"),
        (HEAD.format("'x', f'{__name__}:Thing', api_version='2'"), "api_version '2'"),
        (HEAD.format("'x', f'{__name__}:Thing('"), "not of the form"),
        (HEAD.format("'popularity', f'{__name__}:Thing'"), "choose another"),
        (HEAD.format("'x', f'{__name__}:Thing'") + "    yield Component('x', f'{__name__}:Thing')", "offers twice"),
        ("raise type('Odd', (BaseException,), {})('no')", "Odd: no"),
        (
            "def run(): ...\n@xmckit.hookimpl\ndef xmckit_commands():\n    yield Component('run', f'{__name__}:run')",
            "offers command:run",
        ),
    ],
)
def test_a_faulty_plugin_is_set_aside_and_nothing_else_breaks(plugin, text, reason):
    registry = plugin(text)
    assert [reason in found.problem for found in registry.problems] == [True], registry.problems
    assert registry.resolve("head", "popularity")


def test_what_a_plugin_prints_on_import_is_no_result(plugin, capsys):
    plugin("print('hello')")
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("home", ["zip", "namespace"])
def test_code_in_a_zip_or_a_namespace_package(plugin, tmp_path, monkeypatch, home):
    code = "from xmckit.components.popularity import PopularityHead as Mine\n"
    place = tmp_path / "site"
    if home == "zip":
        place = tmp_path / "site.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("zipped/__init__.py", "")
            archive.writestr("zipped/mine.py", code)
    else:
        (place / "zipped").mkdir(parents=True)
        (place / "zipped" / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(place)
    registry = plugin(HEAD.format("'mine', 'zipped.mine:Mine'"), name=f"of_{home}")
    assert not registry.problems
    assert registry.resolve("head", "mine").__name__ == "PopularityHead"
    before = provenance.code_of(registry.component("head", "mine"))["zipped"]
    if home == "namespace":
        (place / "zipped" / "table.txt").write_text("1 2 3")
        assert provenance.code_of(registry.component("head", "mine"))["zipped"] != before


def test_every_module_beside_a_plugin_counts_imported_or_not(plugin, tmp_path):
    registry = plugin(HEAD.format("'mine', f'{__name__}:Thing'"))
    item = registry.component("head", "mine")
    package = tmp_path / "plugin" / "package"
    package.mkdir()
    seen = [provenance.code_of(item)["beside the plugin"]]
    for name in ("helper.py", "package/__init__.py", "package/table.txt"):
        (tmp_path / "plugin" / name).write_text("1")
        seen.append(provenance.code_of(item)["beside the plugin"])
    assert len(set(seen)) == 4
    (tmp_path / "plugin" / "notes.txt").write_text("1")
    assert provenance.code_of(item)["beside the plugin"] == seen[-1]


def test_results_of_old_code_are_not_filed_under_the_new(plugin):
    registry = plugin(HEAD.format("'mine', f'{__name__}:Thing'"))
    item = registry.component("head", "mine")
    before = provenance.code_of(item)
    with open(item.plugin.file, "a") as stream:
        stream.write("# edited while the process runs\n")
    after = provenance.code_of(item)
    assert after["plugin hostile, in memory"] == before["plugin hostile"]
    assert after["plugin hostile"] != before["plugin hostile"]


def test_an_edited_reader_reads_again(plugin, recipe, tmp_path):
    reader = """
        import numpy as np
        from scipy.sparse import csr_matrix
        class Odd(xmckit.Configured):
            def matches(self, path): return path.suffix == ".odd"
            def files(self, path): return [path]
            def read(self, path, *, context):
                X = csr_matrix(np.eye(6, dtype=np.float32))
                split = xmckit.Split(X=X, Y=X[:, :{labels}])
                return xmckit.Dataset("odd", split, split)
        @xmckit.hookimpl
        def xmckit_readers():
            yield Component("odd", f"{{__name__}}:Odd")
    """
    (tmp_path / "rows.odd").write_text("")
    small = recipe('[data]\nuse = "files"\npath = "rows.odd"\n[head]\nuse = "popularity"\n')
    for labels in (3, 4):
        found = pipeline.run(small, root=tmp_path / "runs", registry=plugin(reader.format(labels=labels), name="odd"))
        assert found.metrics["labels"] == labels
        del sys.modules["odd"]


# -- contracts -------------------------------------------------------------------------------------------------------


def broken(name: str, body: str) -> str:
    return f"{TOY}\nclass {name}({name}):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"


PREDICT = "def predict(self, X, k, *, groups=None):\n    t = super().predict(X, k)\n    return "
APPLY = "def apply(self, train, *, context):\n    t = super().apply(train, context=context)\n    return "


@pytest.mark.parametrize(
    ("text", "stages", "error", "message"),
    [
        (broken("Shortlisted", PREDICT + "None"), SHORTLISTED, PluginError, "shortlisted predicted a NoneType"),
        (broken("Shortlisted", PREDICT + "xmckit.TopK(t.indices.astype(int), t.scores)"), SHORTLISTED, PluginError,
         "indices of int64"),
        (broken("Shortlisted", PREDICT + "xmckit.TopK(t.indices[:, :2], t.scores[:, :2])"), SHORTLISTED, PluginError,
         r"size \(50, 2\)"),
        (broken("Shortlisted", PREDICT + "xmckit.TopK(t.indices + 1000, t.scores)"), SHORTLISTED, DataError,
         "scoring shortlisted: row 0: label 10"),
        (broken("Shortlisted", "def decision(self):\n    return 5"), VERIFIED, PluginError, "gave a int"),
        (broken("OneDimension", "def verify(self, *a, **k):\n    return xmckit.Verdicts([])"), VERIFIED, PluginError,
         "0 verdicts for 50"),
        (broken("FrequentIndex", "save = None"), SHORTLISTED, PluginError, r"lacks save\(\)"),
        (broken("Shortlisted", "load = None"), SHORTLISTED, PluginError, r"lacks load\(\)"),
        (broken("Drop", APPLY + "None"), RELABELLED, PluginError, "expected a Split"),
        (broken("Drop", APPLY + "type(t)(t.X, t.Y, weights=t.weights[::-1])"), RELABELLED, PluginError, "pattern"),
        (broken("Drop", APPLY + "type(t)(t.X, t.Y, weights=t.weights * np.nan)"), RELABELLED, PluginError, "finite"),
    ],
)  # fmt: skip
def test_a_plugin_that_breaks_its_contract_is_named(plugin, recipe, tmp_path, text, stages, error, message):
    with pytest.raises(error, match=message):
        pipeline.run(recipe(stages), root=tmp_path / "runs", registry=plugin(text))
    assert leftovers(tmp_path) == []


def test_a_label_stage_changes_labels_only_whether_made_or_restored(plugin, recipe, tmp_path):
    registry = plugin(broken("Drop", APPLY + "type(t)(t.X * 0, t.Y.tocsc(), weights=t.weights)"))
    made = pipeline.run(recipe(RELABELLED), root=tmp_path / "runs", registry=registry)
    for stage in ("head-shortlisted", "score"):
        shutil.rmtree(cached(tmp_path / "runs", stage))
    restored = pipeline.run(recipe(RELABELLED), root=tmp_path / "runs", registry=registry)
    assert restored.metrics == made.metrics
    rankings = [store.read_arrays(run.path / "predictions.npz")["scores"] for run in (made, restored)]
    assert np.array_equal(*rankings)


@pytest.mark.parametrize(("value", "good"), [("np.float32(0.5)", True), ("float('nan')", False), ("'x'", False)])
def test_metrics_are_finite_numbers(plugin, recipe, tmp_path, value, good):
    registry = plugin(
        f"""
        import numpy as np
        class Mine(xmckit.Configured):
            def compute(self, evaluation): return {{"mine": {value}}}
        @xmckit.hookimpl
        def xmckit_metrics():
            yield Component("mine", f"{{__name__}}:Mine")
        """
    )
    small = recipe(POPULAR + '    [score]\n    metrics = [{use = "mine"}]\n')
    if good:
        found = pipeline.run(small, root=tmp_path / "runs", registry=registry)
        assert found.metrics["results"][0]["metrics"] == {"mine": 0.5}
    else:
        with pytest.raises(PluginError, match="expected a finite number"):
            pipeline.run(small, root=tmp_path / "runs", registry=registry)


def test_rows_to_verify_are_asked_for_before_anything_is_trained(plugin, recipe, tmp_path):
    text = "    validation = 0.0\n" + VERIFIED + '    assignments = "validation"\n'
    with pytest.raises(RecipeError, match="validation"):
        pipeline.run(recipe(text), root=tmp_path / "runs", registry=plugin(TOY))
    assert not (tmp_path / "runs").exists()


def test_a_loaded_ensemble_ranks_as_its_run_did(plugin, recipe, tmp_path):
    text = SHORTLISTED + '    [[head]]\n    use = "popularity"\n    [score]\n    top = 5\n'
    registry = plugin(TOY)
    run = pipeline.run(recipe(text), root=tmp_path / "runs", registry=registry)
    from xmckit.data.saved import load_dataset

    rows = load_dataset(run.run.stage_folder("data")).test.X
    found = xmckit.load(run.path, registry=registry).topk(rows, k=5)
    expected = store.read_arrays(run.path / "predictions.npz")
    assert np.array_equal(found.indices, expected["indices"])
    assert np.array_equal(found.scores, expected["scores"])
    run.run.update(stages=[stage for stage in run.run.stages if stage.name != "head-popularity"])
    with pytest.raises(UsageError, match="1 of 2 heads"):
        xmckit.load(run.path, registry=registry)


def test_nothing_that_is_printed_can_steer_the_terminal():
    assert printable("a\x1b[2Jb\x07\x9b\u202e\udcff\ncafé ✓") == "a\\x1b[2Jb\\x07\\x9b\\u202e\\udcff\ncafé ✓"


def test_json_that_is_printed_has_no_control_and_means_the_same():
    every = [chr(code) for code in (*range(0x3100), 0xFEFF, 0xFFF9, 0xD800, 0xDFFF, 0xE0001, 0xE007F, 0x1F600)]
    steers = {mark for mark in every if unicodedata.category(mark) in ("Cc", "Cs", "Zl", "Zp")}
    steers |= {mark for mark in every if unicodedata.bidirectional(mark) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI")}
    for ascii_only in (False, True):
        text = printable_json(json.dumps({" ".join(every): every}, ensure_ascii=ascii_only))
        assert not steers & set(text)
        assert json.loads(text) == {" ".join(every): every}
    assert printable_json(json.dumps("café 漢字 ✓ 😀", ensure_ascii=False)) == '"café 漢字 ✓ 😀"'


def test_json_output_of_commands_cannot_steer_the_terminal(capsys):
    print_json({"a\x9b31m\x7f": "\x1b[2J\u202e\u2028\x85"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.replace("\n", "").isprintable()
    assert json.loads(out) == {"a\x9b31m\x7f": "\x1b[2J\u202e\u2028\x85"}


@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_a_narrow_terminal_never_shows_half_a_number(capsys, monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    columns = ["", *(f"metric-{number}" for number in range(12))]
    print_table([["a head with a name", *(f"{number}1.23" for number in range(12))]], columns)
    words = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split()
    assert [word for word in words if word.endswith(".23")] == [f"{number}1.23" for number in range(12)]
    assert [word for word in words if word.startswith("metric")] == columns[1:]


def test_a_name_to_copy_stays_on_one_line_and_a_title_ends_where_it_ends(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    name = "/some/folder/with/a-data-set-in-it"
    print_table([[name, "npz", "many words " * 12]], ["name", "kind", "what"], left=3, title="a title")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[0] == "a title"
    assert lines[2].split()[0] == name


def test_a_done_run_is_current_until_its_code_changes(plugin, recipe, tmp_path):
    registry = plugin(TOY)
    small = load_recipe(recipe(SHORTLISTED), registry=registry)
    done = pipeline.run(small, root=tmp_path / "runs", registry=registry).run
    assert pipeline.is_current(done, pipeline.plan(small, root=tmp_path / "runs", registry=registry))
    with open(tmp_path / "plugin" / "hostile.py", "a") as stream:
        stream.write("# edited\n")
    assert not pipeline.is_current(done, pipeline.plan(small, root=tmp_path / "runs", registry=registry))


def test_a_reader_that_goes_away_and_a_closed_output_are_no_errors():
    program = f"{sys.executable} -m xmckit recipes ls"
    for shell in (f"{program} | true; exit ${{PIPESTATUS[0]}}", f"{program} >&-"):
        ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_done_run_is_not_overwritten_by_changed_code(plugin, recipe, tmp_path):
    registry = plugin(TOY)
    path = recipe(SHORTLISTED)
    run = pipeline.run(path, root=tmp_path / "runs", registry=registry)
    assert pipeline.run(path, registry=registry, resume=run.path).metrics == run.metrics
    (file,) = [found.file for found in registry.plugins if found.origin == "file"]
    with open(file, "a") as stream:
        stream.write("\n# edited\n")
    with pytest.raises(UsageError, match="is done, and its data, code or libraries have changed"):
        pipeline.run(path, registry=registry, resume=run.path)


def test_several_heads_may_not_be_called_as_their_ensemble(plugin, recipe):
    text = SHORTLISTED + '    name = "ensemble"\n    [[head]]\n    use = "popularity"\n'
    with pytest.raises(RecipeError, match="'ensemble' is the name of all heads together"):
        pipeline.run(recipe(text), registry=plugin(TOY))


def test_the_data_has_a_seed_of_its_own(recipe, tmp_path):
    root = tmp_path / "runs"
    prints = {
        seeds: pipeline.run(recipe(POPULAR), sets=[f"seed={seeds[0]}", f"data.seed={seeds[1]}"], root=root).run
        for seeds in [(0, 0), (1, 0), (0, 1)]
    }
    data = {seeds: (run.stage_folder("data") / "test" / "Y.npz").read_bytes() for seeds, run in prints.items()}
    assert data[0, 0] == data[1, 0]
    assert data[0, 0] != data[0, 1]
