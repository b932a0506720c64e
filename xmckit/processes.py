"""Python processes that this one starts: they import what this process can import, and they end with it.

    child = start("my_package.worker:serve", "some", "arguments", stdin=subprocess.PIPE)

    with ProcessPool() as pool:
        results = list(pool.map(function, items, workers=4))

No module comes from the working folder, which Python would search first in a child: a file `json.py` that lies there is
not run. A child that calls `end_with_stdin` ends as soon as the process that holds the other end of its stdin is gone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from typing import IO, Any

from xmckit.errors import name_file_in_errors

# `sys` is compiled in, so nothing is imported before the path is set, not even from the working folder.
_START = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from {} import {} as main; main(*sys.argv[1:])"
SAFE_PATH = "PYTHONSAFEPATH"  # leaves the working folder out of the path of any Python from 3.11 on
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "LOKY_MAX_CPU_COUNT", "NUMBA_NUM_THREADS",
)  # fmt: skip
SHARED_BYTES = 1 << 20  # arrays of a function from this size on are shared by the workers, read-only


def command(target: str, *arguments: str) -> list[str]:
    """Return the command that calls `package.module:function` with `arguments` in a new Python."""
    module, _, function = target.partition(":")
    # On Python 3.10 `_START` alone keeps the child safe; with -P, processes of the child are safe as well.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-c", _START.format(module, function), "\n".join(search_path()), *arguments]


def search_path() -> list[str]:
    """Return the absolute folders in which this process looks for modules, except the working folder of the moment."""
    return [os.path.abspath(entry) for entry in sys.path if _names_a_folder(entry)]


def _names_a_folder(entry: str) -> bool:
    """Return whether an entry of a path is a folder of its own, and not the working folder: '' or '.'."""
    return bool(entry) and os.path.normpath(entry) != os.curdir


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a child, in which other Python programs leave out the working folder too."""
    made = {**os.environ, SAFE_PATH: "1", **changes}
    entries = made.pop("PYTHONPATH", "").split(os.pathsep)
    folders = [os.path.abspath(entry) for entry in entries if _names_a_folder(entry)]
    return {**made, "PYTHONPATH": os.pathsep.join(folders)} if folders else made


def start(
    target: str, *arguments: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Call `package.module:function` in a new Python, which searches the folders that this process searches.

    `variables` change its environment; `options` are those of `subprocess.Popen`.
    """
    return subprocess.Popen(command(target, *arguments), env=environment(**(variables or {})), **options)


def end_with_stdin() -> None:
    """End this process as soon as its stdin is closed; nothing else may read from stdin."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def describe_exit(code: int) -> str:
    """Describe how a process ended: `exit code 3`, or `SIGSEGV (Segmentation fault)`."""
    if code >= 0:
        return f"exit code {code}"
    if -code not in set(signal.Signals):  # real-time signals have no names
        return f"signal {-code}"
    return f"{signal.Signals(-code).name} ({signal.strsignal(-code)})"


def send_message(stream: IO[bytes], content: bytes | memoryview) -> None:
    """Write bytes that `receive_message` at the other end of the pipe returns."""
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def receive_message(stream: IO[bytes]) -> bytes:
    """Return the next message; EOFError if the stream ends before it is complete."""
    head = stream.read(8)
    content = stream.read(int.from_bytes(head, "little"))
    if len(head) < 8 or len(content) < int.from_bytes(head, "little"):
        raise EOFError
    return content


# Workers -------------------------------------------------------------------------------------------------------------


class WorkerDied(BrokenExecutor):
    """A worker process ended before it answered."""


class RemoteTraceback(Exception):
    """The traceback of an error in a worker, as text; it is the cause of the error that `ProcessPool.map` raises."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class ProcessPool:
    """Worker processes that call functions. They start when needed, stay for the next call, and end with the pool."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []  # threads share it: to pop and to append are single steps
        self._end = weakref.finalize(self, _close_all, self._idle)

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[ProcessPool], tuple[()]]:
        """Let a function that knows its executor be sent to a worker, which gets a pool of its own."""
        return ProcessPool, ()

    def close(self) -> None:
        """End the workers."""
        _close_all(self._idle)

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> Iterator[Any]:
        """Yield `function(item)` for each item, in the order of the items, computed by up to `workers` processes.

        Raise the error of the first item that has one. If a worker dies, raise WorkerDied.
        """
        with _Function(function) as shared, ThreadPoolExecutor(max(1, min(workers, len(items)))) as threads:
            busy: set[_Worker] = set()
            stopped = threading.Event()
            answers = [threads.submit(self._answer, shared, item, busy, stopped) for item in items]
            try:
                for answer in answers:
                    yield answer.result()
            except BaseException:  # an error, Ctrl-C, or a caller that wants no more results
                stopped.set()
                for answer in answers:
                    answer.cancel()
                for worker in list(busy):
                    worker.kill()
                raise

    def _answer(self, function: _Function, item: Any, busy: set[_Worker], stopped: threading.Event) -> Any:
        worker = self._take()
        busy.add(worker)
        if stopped.is_set():  # too late to be killed with the others
            worker.kill()
        try:
            content = worker.ask(function, item)
        except BaseException:
            worker.close()
            raise
        finally:
            busy.discard(worker)
        self._idle.append(worker)
        return _value(content)

    def _take(self) -> _Worker:
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.is_alive():
                    return worker
                worker.close()
        return _Worker()


def _close_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().close()


class _Function:
    """A function in the form that is sent to workers; its large arrays are in a file that all workers map."""

    def __init__(self, function: Callable[[Any], Any]):
        large: list[memoryview] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= SHARED_BYTES:
                large.append(view)
            return view.nbytes < SHARED_BYTES

        content = _dumps(function, keep_inside)
        self.file = _write_arrays(large) if large else ""
        self.message = _dumps((content, self.file, [view.nbytes for view in large], _file_modules()))

    def __enter__(self) -> _Function:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:
            _remove(self.file)


def _file_modules() -> dict[str, str]:
    """Return the modules that were imported from files outside the path, such as those of `--plugin`."""
    folders = set(search_path())
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {
        name: file
        for name, file in files.items()
        if name.isidentifier() and name != "__main__" and file and file.endswith(".py")
        and os.path.basename(file) != "__init__.py" and os.path.dirname(file) not in folders
    }  # fmt: skip


def _write_arrays(views: Sequence[memoryview]) -> str:
    number, file = tempfile.mkstemp(prefix="xmckit-arrays-")
    try:
        with name_file_in_errors(file), os.fdopen(number, "wb") as stream:
            for view in views:
                stream.write(view)
    except OSError:
        _remove(file)
        raise
    return file


def _remove(file: str) -> None:
    with contextlib.suppress(OSError):  # another process has removed it, or a worker on Windows still maps it
        os.unlink(file)


class _Worker:
    """A child process that calls one function after another."""

    def __init__(self) -> None:
        # One thread each: the workers share the processors, and sums must not depend on how many there are.
        threads = {name: "1" for name in THREAD_VARIABLES if name not in os.environ}
        self._process = start(
            "xmckit.processes:serve", variables=threads, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._function: _Function | None = None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, function: _Function, item: Any) -> bytes:
        """Return the worker's answer to `function(item)`, still pickled."""
        content = _dumps(item)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            send_message(self._process.stdin, b"" if function is self._function else function.message)
            send_message(self._process.stdin, content)
            self._function = function
            return receive_message(self._process.stdout)
        except (BrokenPipeError, EOFError):
            raise WorkerDied(f"a worker process ended with {describe_exit(self._process.wait())}") from None

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _value(answer: bytes) -> Any:
    """Return what the function returned in the worker, or raise what it raised."""
    value, error, trace = _loads(answer)
    if error is not None:
        raise error from RemoteTraceback(trace)
    return value


def serve() -> None:
    """Answer the requests of a `_Worker` until stdin ends; this is the main function of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what functions print must not mix with the answers
    requests: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(incoming, requests), daemon=True).start()
    function = None
    while True:
        shared, item = requests.get()
        try:
            if shared:
                function = None
                function = _load_function(*_loads(shared))
            assert function is not None, "the function could not be loaded"
            answer = _dumps((function(_loads(item)), None, ""))
        except BaseException as error:  # noqa: BLE001  the other process raises it
            answer = _dumps((None, _sendable(error), "".join(traceback.format_exception(error))))
        send_message(outgoing, answer)


def _read_requests(incoming: IO[bytes], requests: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
    """Read requests beside the work, so that a worker ends with its parent even if it is busy."""
    file = ""
    try:
        while True:
            shared, item = receive_message(incoming), receive_message(incoming)
            file = _loads(shared)[1] if shared else file
            requests.put((shared, item))
    except EOFError:
        if file:
            _remove(file)
        os._exit(1)


class _FileFinder:
    """Find the modules of `_file_modules`, if nothing else finds them."""

    def __init__(self, files: Mapping[str, str]):
        self.files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, self.files[name]) if name in self.files else None


def _load_function(content: bytes, file: str, sizes: Sequence[int], modules: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return the function; its large arrays are views of the file, read-only and shared by all workers."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _FileFinder)]
    sys.meta_path.append(_FileFinder(modules))
    buffers, at = [], 0
    if file:
        with open(file, "rb") as stream:
            mapped = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        for size in sizes:
            buffers.append(mapped[at : at + size])
            at += size
    function: Callable[[Any], Any] = _loads(content, buffers)
    return function


def _dumps(value: Any, keep_inside: Callable[[pickle.PickleBuffer], bool] | None = None) -> bytes:
    """Return a copy of the value for another process; `keep_inside` says which arrays are part of it."""
    # Not pickle: functions within functions, and those of a script, have no name that a worker could import.
    import cloudpickle

    content: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=keep_inside)
    return content


def _loads(content: bytes, buffers: Sequence[memoryview] = ()) -> Any:
    """Return the value from a pipe between this process and its own worker; nobody else can write there."""
    return pickle.loads(content, buffers=buffers)  # noqa: S301


def _sendable(error: BaseException) -> BaseException:
    """Return the error, or if it cannot be sent to another process, one that says the same."""
    try:
        _loads(_dumps(error))
    except Exception:  # noqa: BLE001  any class can define how it is copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
