"""A recipe runs from data to report, is cached by content, resumes, and repeats exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from xmckit import pipeline, store
from xmckit.errors import DataError, StorageError, UsageError, XmckitError
from xmckit.pipeline.cache import is_complete
from xmckit.recipe import load_recipe
from xmckit.registry import Registry
from xmckit.runs import Run, find_run, find_runs

TOY = Path(__file__).parents[1] / "assets" / "toy_plugin.py"

BASE = """
    title = "A <small> recipe"
    seed = 3
    [data]
    use = "synthetic"
    rows = 400
    test_rows = 100
    features = 300
    labels = 60
    topics = 6
"""
POPULAR = (
    BASE
    + """
    [head]
    use = "popularity"
"""
)
EVERY_STAGE = (
    BASE
    + """
    [[labels]]
    use = "drop"
    least = 3
    [[index]]
    use = "frequent"
    [[head]]
    use = "shortlisted"
    [[head]]
    use = "popularity"
    [verify]
    use = "one-dimension"
    most = 50
"""
)


@pytest.fixture
def write_recipe(tmp_path):
    def write(text: str, name: str = "small.toml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def registry(tmp_path):
    """With a copy of the toy plugin, so that a test may edit it; forgotten afterwards."""
    copy = tmp_path / "plugin" / "toy_plugin.py"
    copy.parent.mkdir()
    shutil.copy(TOY, copy)
    yield Registry(files=[copy])
    sys.modules.pop("toy_plugin", None)


def stage_names(result):
    return [record.name for record in result.run.stages]


def reused(result):
    return {record.name for record in result.run.stages if record.reused}


def leftovers(root):
    return [path for path in Path(root).rglob("*") if path.name.startswith(store.TEMPORARY)]


def test_the_folder_of_a_run(write_recipe, tmp_path):
    result = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    assert result.path.parent == tmp_path / "runs" / "small"
    for name in ("recipe.toml", "resolved.toml", "manifest.json", "events.jsonl", "predictions.npz", "metrics.json"):
        assert (result.path / name).is_file(), name
    assert {path.suffix for path in (result.path / "plots").iterdir()} == {".svg"}
    assert stage_names(result) == ["data", "features", "head-popularity", "score"]
    manifest = store.read_json(result.path / "manifest.json")
    assert manifest["status"] == "done"
    assert manifest["seed"] == 3
    assert manifest["versions"]["numpy"] == np.__version__
    assert all(stage["peak_bytes"] > 1e6 and stage["seconds"] >= 0 for stage in manifest["stages"])
    events = [json.loads(line)["event"] for line in (result.path / "events.jsonl").read_text().splitlines()]
    assert events[0] == "start"
    assert events[-1] == "done"
    assert leftovers(tmp_path) == []


def test_the_report_is_one_file_and_escapes_what_it_shows(write_recipe, tmp_path):
    result = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    page = result.report.read_text()
    assert "A &lt;small&gt; recipe" in page
    assert "<small>" not in page
    assert page.count('class="chart"') == len(list((result.path / "plots").iterdir()))
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in page.replace("http://www.w3.org/2000/svg", ""), outside
    assert f"{100 * result.metrics['results'][0]['metrics']['P@1']:.2f}" in page


def test_popularity_is_scored_as_counted_by_hand(write_recipe, tmp_path):
    result = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    from xmckit.data.saved import load_dataset

    dataset = load_dataset(result.run.stage_folder("data"))
    train = result.run.stages
    assert train
    predictions = store.read_arrays(result.path / "predictions.npz", "indices")["indices"]
    truth = dataset.test.Y.toarray() > 0
    expected = np.mean([truth[row, predictions[row, 0]] for row in range(len(truth))])
    assert result.metrics["results"][0]["metrics"]["P@1"] == pytest.approx(expected, abs=1e-12)


def test_every_stage_works_together(write_recipe, tmp_path, registry):
    result = pipeline.run(write_recipe(EVERY_STAGE), root=tmp_path / "runs", registry=registry)
    assert stage_names(result) == [
        "data", "features", "labels-drop", "index-frequent", "head-shortlisted", "head-popularity", "score", "verify",
    ]  # fmt: skip
    roles = [(item["name"], item["role"]) for item in result.metrics["results"]]
    assert roles == [
        ("ensemble", "ensemble"), ("shortlisted", "head"), ("popularity", "head"), ("popularity", "baseline"),
    ]  # fmt: skip
    verdicts = store.read_json(result.path / "verdicts.json")
    scopes = [(item["head"], item["scope"], item["verifiable"]) for item in verdicts["results"]]
    assert scopes == [("shortlisted", "full", True), ("shortlisted", "shortlist", True), ("popularity", "full", False)]
    assert all(sum(item["counts"].values()) == 50 for item in verdicts["results"] if item["verifiable"])
    proofs = store.read_arrays(result.path / "certificates.npz")
    assert len(proofs["rows"]) == 50
    starts = proofs["shortlisted/full/certificate_start"]
    assert len(starts) == verdicts["results"][0]["counts"]["unargmaxable"] + 1
    assert "What the output layer can output" in result.report.read_text()


def test_a_label_stage_tells_what_it_did_and_how_it_agrees_with_the_data(write_recipe, tmp_path, registry):
    result = pipeline.run(write_recipe(EVERY_STAGE), root=tmp_path / "runs", registry=registry)
    folder = result.run.stage_folder("labels-drop")
    told = store.read_json(folder / "labels.json")
    kept, own = told["agreement"]["labels"], told["agreement"]["own"]
    assert told["facts"]["dropped"] == own - kept > 0
    assert told["agreement"]["precision"] == 1.0
    assert told["agreement"]["recall"] == pytest.approx(kept / own)
    assert store.read_json(folder / "preprocessor" / "params.json") == {"least": 3}
    assert result.warnings == ["drop: rare labels are lost"]
    page = result.report.read_text()
    assert "Labels of the training rows" in page
    assert f"<dd><bdi>{told['facts']['dropped']}</bdi></dd>" in page


def test_a_second_run_takes_every_stage_from_the_cache_and_a_copy_repeats_it(write_recipe, tmp_path, registry):
    recipe = write_recipe(EVERY_STAGE)
    first = pipeline.run(recipe, root=tmp_path / "runs", registry=registry)
    second = pipeline.run(recipe, root=tmp_path / "runs", registry=registry)
    assert reused(first) == set()
    assert reused(second) == set(stage_names(second))
    anew = pipeline.run(first.path / "resolved.toml", root=tmp_path / "elsewhere", registry=registry)
    assert reused(anew) == set()
    assert anew.run.manifest.name == "small"
    content = {result.path: (result.path / "metrics.json").read_bytes() for result in (first, second, anew)}
    assert len(set(content.values())) == 1
    arrays = [store.read_arrays(result.path / "predictions.npz") for result in (first, anew)]
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


def test_only_what_depends_on_a_change_runs_again(write_recipe, tmp_path):
    root = tmp_path / "runs"
    pipeline.run(write_recipe(POPULAR), root=root)
    assert reused(pipeline.run(write_recipe(POPULAR), root=root, sets=["seed=4"])) == {"data", "features"}
    assert reused(pipeline.run(write_recipe(POPULAR), root=root, sets=["score.k=[1]"])) == {
        "data", "features", "head-popularity",
    }  # fmt: skip
    assert reused(pipeline.run(write_recipe(POPULAR), root=root, sets=["data.rows=401"])) == set()
    assert reused(pipeline.run(write_recipe(POPULAR), root=root, sets=["title=other"])) == {
        "data", "features", "head-popularity", "score",
    }  # fmt: skip


def test_a_stage_that_was_made_under_another_name_has_its_own_here(write_recipe, tmp_path):
    pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    renamed = POPULAR.replace('use = "popularity"', 'use = "popularity"\n    name = "counted"', 1)
    again = pipeline.run(write_recipe(renamed), root=tmp_path / "runs")
    assert "head-counted" in reused(again)
    assert again.run.stage_folder("head-counted").is_dir()


def test_an_edited_plugin_is_never_served_a_stale_result(write_recipe, tmp_path, registry):
    recipe = write_recipe(EVERY_STAGE)
    pipeline.run(recipe, root=tmp_path / "runs", registry=registry)
    (plugin,) = [plugin.file for plugin in registry.plugins if plugin.origin == "file"]
    with open(plugin, "a") as stream:
        stream.write("\n# edited\n")
    again = pipeline.run(recipe, root=tmp_path / "runs", registry=registry)
    assert reused(again) == {"data", "features"}


def test_changed_files_are_read_again(write_recipe, tmp_path):
    data = tmp_path / "set"
    data.mkdir()
    for name in ("train.txt", "test.txt"):
        (data / name).write_text("3 3 2\n0 0:1 1:1\n1 2:1\n0 1:1\n")
    recipe = write_recipe('[data]\nuse = "files"\npath = "set"\n[head]\nuse = "popularity"\n')
    root = tmp_path / "runs"
    pipeline.run(recipe, root=root)
    assert "data" in reused(pipeline.run(recipe, root=root))
    (data / "train.txt").write_text("3 3 2\n0 0:1 1:1\n1 2:2\n0 1:1\n")
    assert reused(pipeline.run(recipe, root=root)) == set()


def test_a_head_is_fitted_again_when_its_input_file_changed(write_recipe, tmp_path):
    pytest.importorskip("torch")
    order = tmp_path / "order.txt"
    order.write_text("\n".join(map(str, range(60))))
    recipe = write_recipe(BASE + '[head]\nuse = "dft"\nepochs = 1\nslack = 4\norder_file = "order.txt"\n')

    def head_reused() -> bool:
        return "head-dft" in reused(pipeline.run(recipe, root=tmp_path / "runs"))

    assert [head_reused(), head_reused()] == [False, True]
    order.write_text("\n".join(map(str, reversed(range(60)))))
    assert not head_reused()
    order.write_text("nonsense")
    with pytest.raises(DataError, match=r"order\.txt, line 1"):
        head_reused()


def test_a_plan_writes_nothing_and_knows_the_cache(write_recipe, tmp_path):
    root = tmp_path / "runs"
    recipe = load_recipe(write_recipe(POPULAR))
    assert [step.cached for step in pipeline.plan(recipe, root=root)] == [False] * 4
    assert not root.exists()
    pipeline.run(recipe, root=root)
    changed = load_recipe(write_recipe(POPULAR), sets=["seed=9"])
    assert [step.cached for step in pipeline.plan(changed, root=root)] == [True, True, False, False]


def failing(write_recipe, tmp_path):
    recipe = write_recipe(EVERY_STAGE)
    plugin = tmp_path / "plugin" / "toy_plugin.py"
    whole = plugin.read_text()
    plugin.write_text(whole.replace("self.index = indexes[0]", "raise xmckit.DataError('not today')"))
    sys.modules.pop("toy_plugin", None)
    return recipe, plugin, whole


def test_weights_from_before_a_divergence_are_where_the_message_says(write_recipe, tmp_path, registry):
    pytest.importorskip("torch")
    diverging = (
        BASE
        + """
    [head]
    use = "bsl"
    dim = 8
    patience = 40
    weight_decay = 100.0
    learning_rate = 1.0
    """
    )
    with pytest.raises(XmckitError, match="training diverged") as caught:
        pipeline.run(load_recipe(write_recipe(diverging), registry=registry), root=tmp_path, registry=registry)
    kept = [Path(word.rstrip(".")) for word in str(caught.value).split() if word.startswith(str(tmp_path))]
    assert store.read_tensors(kept[0])


def test_a_failed_run_keeps_what_is_finished_and_goes_on(write_recipe, tmp_path, registry):
    recipe, plugin, whole = failing(write_recipe, tmp_path)
    root = tmp_path / "runs"
    with pytest.raises(DataError, match="not today"):
        pipeline.run(recipe, root=root, registry=Registry(files=[plugin]))
    (stopped,) = find_runs(root)
    assert stopped.status == "failed"
    assert "not today" in stopped.manifest.error
    assert leftovers(root) == []
    plugin.write_text(whole)
    sys.modules.pop("toy_plugin", None)
    done = pipeline.run(recipe, root=root, registry=Registry(files=[plugin]), resume=stopped.path)
    assert done.path == stopped.path
    assert done.run.status == "done"
    assert done.run.manifest.error is None
    assert reused(done) == {"data", "features"}


def test_resume_needs_the_same_recipe(write_recipe, tmp_path):
    done = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    with pytest.raises(UsageError, match="another recipe"):
        pipeline.run(write_recipe(POPULAR), sets=["seed=77"], resume=done.path)


def test_a_resumed_run_does_not_need_the_cache(write_recipe, tmp_path):
    done = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / ".cache")
    assert reused(pipeline.run(write_recipe(POPULAR), resume=done.path)) == set(stage_names(done))


def test_a_moved_run_stays_whole(write_recipe, tmp_path):
    import xmckit

    done = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    shutil.move(done.path, tmp_path / "moved")
    shutil.rmtree(tmp_path / "runs")
    model = xmckit.load(tmp_path / "moved")
    assert len(model.predict(np.zeros((2, 300), dtype=np.float32), k=3)[1]) == 3


def test_a_run_of_another_version_is_refused(write_recipe, tmp_path):
    done = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    manifest = store.read_json(done.path / "manifest.json")
    store.write_json(done.path / "manifest.json", {**manifest, "format": 99})
    with pytest.raises(StorageError, match="run format 99 and this xmckit reads format 1"):
        Run.open(done.path)
    store.write_json(done.path / "manifest.json", [])
    with pytest.raises(StorageError, match="damaged"):
        Run.open(done.path)


def test_runs_are_found_by_folder_name_and_recipe(write_recipe, tmp_path):
    root = tmp_path / "runs"
    first = pipeline.run(write_recipe(POPULAR), root=root)
    second = pipeline.run(write_recipe(POPULAR), root=root)
    assert first.path != second.path
    assert find_run(first.path, root).path == first.path
    assert find_run(first.path.name, root).path == first.path
    assert find_run("small", root).path == second.path
    with pytest.raises(UsageError, match=r"no run 'smal' .*did you mean 'small'\?"):
        find_run("smal", root)
    for run in (first.run, second.run):
        store.write_record(run.path / "manifest.json", {**run.manifest.to_json(), "status": "failed"})
    with pytest.raises(
        UsageError, match=rf"no run of 'small' .* is done; the newest is failed: {second.path} .*--resume"
    ):
        find_run("small", root)


SLOW_HEAD = """
import time, xmckit
from pathlib import Path
from xmckit.components.popularity import PopularityHead

class Slow(PopularityHead):
    def fit(self, train, *, indexes=(), context):
        (context.folder / "half").write_text("half")
        if Path({flag!r}).exists():
            Path({started!r}).touch()
            time.sleep(60)
        super().fit(train, indexes=indexes, context=context)

@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("slow", __name__ + ":Slow", summary="Waits.")
"""


@pytest.mark.parametrize(
    ("how", "status", "code"), [(signal.SIGKILL, "killed", -9), (signal.SIGINT, "interrupted", 130)]
)
def test_a_stopped_run_resumes(write_recipe, tmp_path, request, how, status, code):
    flag, started, root = tmp_path / "flag", tmp_path / "started", tmp_path / "runs"
    flag.touch()
    plugin = tmp_path / "slow_head_plugin.py"
    plugin.write_text(SLOW_HEAD.format(flag=str(flag), started=str(started)))
    recipe = write_recipe(BASE + '    [head]\n    use = "slow"\n')
    command = [sys.executable, "-m", "xmckit", "run", "--plugin", str(plugin), "--runs", str(root)]
    # a shell starts what it puts into the background with interrupts ignored, and its children inherit that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with subprocess.Popen([*command, str(recipe)], stderr=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if started.exists():
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    (stopped,) = find_runs(root)
    assert stopped.status == status
    flag.unlink()
    done = subprocess.run(
        [*command, "--resume", str(stopped.path), "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["run"] == str(stopped.path)
    (finished,) = find_runs(root)
    assert finished.status == "done"
    assert {stage.name for stage in finished.stages if stage.reused} == {"data", "features"}
    assert leftovers(root) == []
    assert not list(root.rglob("half"))


def test_one_run_is_not_worked_on_twice_at_once(write_recipe, tmp_path):
    done = pipeline.run(write_recipe(POPULAR), root=tmp_path / "runs")
    with done.run.locked(), pytest.raises(UsageError, match="another process"):
        pipeline.run(write_recipe(POPULAR), resume=done.path)


def test_a_full_disk_is_an_error_that_leaves_nothing_half_written(write_recipe, tmp_path):
    recipe, root = write_recipe(POPULAR), tmp_path / "runs"
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        f"sys.argv = ['xmckit', '-q', 'run', {str(recipe)!r}, '--runs', {str(root)!r}];"
        "from xmckit.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: ")
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers(root) == []
    assert list((root / ".cache").iterdir()) == []
    assert [run.status for run in find_runs(root)] == ["failed"]


def test_what_is_no_stage_in_the_cache_is_not_complete(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "stage.json").mkdir(parents=True)
    assert not any(is_complete(tmp_path / name, "key") for name in ("file", "folder", "nothing"))
