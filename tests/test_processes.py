"""Processes that this one starts: what they import, what they answer, and when they end."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from xmckit import processes, store
from xmckit.components.executors import ProcessExecutor
from xmckit.processes import ProcessPool, WorkerDied, command, describe_exit, end_with_stdin, environment, start
from xmckit.registry.importing import import_file


def report(path: str) -> None:
    """Write the path that the child searches, and where it found `json`."""
    import json

    with open(path, "w", encoding="utf-8") as stream:
        json.dump({"path": sys.path, "json": json.__file__}, stream)


def sleep(path: str) -> None:
    import time

    end_with_stdin()
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(str(os.getpid()))
    time.sleep(300)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


@pytest.mark.usefixtures("importable")
def test_a_child_searches_the_same_folders_and_never_the_working_folder(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "sys.py").write_text("raise SystemExit('the wrong sys')")
    output = tmp_path / "output.json"
    given = command("test_processes:report", str(output))
    assert ("-P" in given) == (sys.version_info >= (3, 11))
    for flags in ([flag for flag in given if flag != "-P"], given):  # Python 3.10 has no -P
        subprocess.run(flags, check=True, cwd=tmp_path)
        found = store.read_json(output)
        assert found["path"] == [os.path.abspath(entry) for entry in sys.path if entry]
        assert not found["json"].startswith(str(tmp_path))


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("entry", ["", ".", "./", "folder/.."])
def test_no_spelling_of_the_working_folder_reaches_a_child(tmp_path, monkeypatch, entry):
    (tmp_path / "folder").mkdir()
    for name in ("json", "encodings", "os", "site"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([entry, "/somewhere", "below"]))
    output = tmp_path / "output.json"
    assert start("test_processes:report", str(output), cwd=tmp_path).wait(60) == 0
    assert str(tmp_path) not in store.read_json(output)["path"]
    assert environment()["PYTHONPATH"] == os.pathsep.join(["/somewhere", str(tmp_path / "below")])
    monkeypatch.setenv("PYTHONPATH", entry)
    assert "PYTHONPATH" not in environment()


@pytest.mark.usefixtures("importable")
def test_what_a_child_starts_by_itself_searches_no_working_folder_either(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    code = "import json; print(json.__file__)"
    variables = environment()
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 knows no PYTHONSAFEPATH")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=variables)


@pytest.mark.usefixtures("importable")
def test_a_child_ends_when_its_stdin_is_closed(tmp_path):
    child = subprocess.Popen(command("test_processes:sleep", str(tmp_path / "pid")), stdin=subprocess.PIPE)
    try:
        while child.poll() is None and not (tmp_path / "pid").is_file():
            pass
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == 1
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-signal.SIGSEGV, "SIGSEGV (Segmentation fault)"), (-35, "signal 35")],
)
def test_how_a_process_ended(code, text):
    assert describe_exit(code) == text


# -- pools -----------------------------------------------------------------------------------------------------------


def soon(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true within a minute."""
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


class Awkward(Exception):
    """An error that cannot be copied."""

    def __init__(self, first: int, second: int):
        super().__init__(f"{first} and {second}")


@pytest.fixture(scope="module")
def pool():
    with ProcessPool() as made:
        yield made


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_in_order_whatever_the_number_of_workers(pool, workers):
    factor = np.arange(3)

    def scaled(item):  # a function within a function
        time.sleep(0.01 * (item % 3))
        return item * factor

    results = list(pool.map(scaled, range(7), workers=workers))
    assert np.array_equal(results, [item * factor for item in range(7)])


def test_workers_stay_for_the_next_call(pool):
    first = set(pool.map(lambda item: os.getpid(), range(8), workers=2))
    second = set(pool.map(lambda item: os.getpid(), range(8), workers=2))
    assert os.getpid() not in first
    assert second <= first


def test_the_error_of_the_first_item_is_raised_with_the_traceback_of_the_worker(pool):
    def fail(item):
        time.sleep(0.1 * (5 - item))  # the last one fails first
        if item >= 3:
            raise KeyError(f"item {item}")
        return item

    results = pool.map(fail, range(6), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="item 3") as caught:
        next(results)
    assert 'raise KeyError(f"item {item}")' in "".join(traceback.format_exception(caught.value))


def test_errors_that_cannot_be_copied_and_other_endings(pool):
    def fail(item):
        raise (Awkward(1, 2) if item else SystemExit(3))

    with pytest.raises(SystemExit, match="3"):
        list(pool.map(fail, [0], workers=2))
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2"):
        list(pool.map(fail, [1], workers=2))
    with pytest.raises((TypeError, RuntimeError, pickle.PicklingError), match="lock"):
        list(pool.map(lambda item: __import__("threading").Lock(), [1], workers=2))
    assert list(pool.map(abs, [-1], workers=2)) == [1]


def test_a_worker_that_dies_is_an_error_and_the_next_call_works(pool):
    with pytest.raises(WorkerDied, match="SIGKILL"):
        list(pool.map(lambda item: os.kill(os.getpid(), signal.SIGKILL), range(3), workers=2))
    assert list(pool.map(abs, [-1, -2, -3], workers=2)) == [1, 2, 3]


def test_what_a_function_prints_or_reads_does_not_mix_with_the_answers(capfd):
    def talk(item):
        print("words", item, flush=True)
        os.write(1, b"bytes")
        return sys.stdin.read()

    with ProcessPool() as pool:
        assert list(pool.map(talk, range(2), workers=2)) == ["", ""]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("words") == err.count("bytes") == 2


def test_large_arrays_are_shared_and_small_ones_are_copies(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    large, small = np.arange(processes.SHARED_BYTES // 8.0), np.arange(4.0)

    def look(large, small, item):
        small[0] = item
        return large.sum(), large.flags.writeable, small[0]

    found = list(pool.map(functools.partial(look, large, small), [5.0, 6.0], workers=2))
    assert found == [(large.sum(), False, 5.0), (large.sum(), False, 6.0)]
    assert list(tmp_path.iterdir()) == []


def test_a_worker_finds_the_module_of_a_plugin_file_but_no_other_file_beside_it(pool, tmp_path):
    (tmp_path / "my_file_plugin.py").write_text("import json\ndef where(item):\n    return __file__, json.__file__\n")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    module = import_file(tmp_path / "my_file_plugin.py")
    expected = (str(tmp_path / "my_file_plugin.py"), json.__file__)
    assert list(pool.map(module.where, range(3), workers=2)) == [expected] * 3


def test_a_caller_that_wants_no_more_ends_the_work(pool):
    results = pool.map(lambda item: time.sleep(300 if item else 0), range(4), workers=2)
    assert next(results) is None
    results.close()
    assert list(pool.map(abs, [-1], workers=2)) == [1]


def test_a_pool_that_nobody_needs_ends_its_workers():
    executor = ProcessExecutor()
    (first, second) = executor.map(lambda item: [os.getpid(), time.sleep(0.2)][0], range(2), workers=2)
    other = copy.deepcopy(executor)  # as a function that knows its executor is sent to a worker
    assert other.map(abs, [-1, -2], workers=2) == [1, 2]
    del executor, other
    gc.collect()
    assert soon(lambda: not store.process_alive(first) and not store.process_alive(second))


PARENT = """
import os, sys, time
import numpy as np
from xmckit.processes import ProcessPool

def work(folder, large, item):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(300)

if __name__ == "__main__":
    import functools
    function = functools.partial(work, sys.argv[1], np.zeros(1 << 18))
    list(ProcessPool().map(function, range(2), workers=2))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_busy_workers_end_with_their_parent_and_leave_nothing(tmp_path, ending):
    for name in ("pids", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "parent.py").write_text(PARENT)
    variables = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    program = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "pids")]
    with subprocess.Popen(program, env=variables, stderr=subprocess.PIPE) as parent:
        try:
            assert soon(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
            pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
            assert len(list((tmp_path / "tmp").iterdir())) == 1
            parent.send_signal(ending)
            parent.wait(60)
        finally:
            parent.kill()
    assert soon(lambda: not any(os.path.exists(f"/proc/{pid}/environ") and store.process_alive(pid) for pid in pids))
    assert soon(lambda: list((tmp_path / "tmp").iterdir()) == [])
