"""A working folder full of modules that must not run, and a program that runs commands in it.

python hostile_folder.py COMMANDS.json RESULTS.json [--plain] runs the commands in the current folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

MARKS = "executed"

# Modules of the standard library and of dependencies that xmckit or one of its libraries imports.
_STANDARD = """
abc argparse array ast asyncio atexit base64 bisect bz2 calendar codecs collections concurrent configparser contextlib
copy copyreg csv ctypes dataclasses datetime decimal difflib dis email encodings enum errno faulthandler fcntl
fileinput fnmatch fractions functools gc getpass glob gzip hashlib heapq hmac html http importlib inspect io itertools
json keyword linecache locale logging lzma math mimetypes mmap multiprocessing numbers opcode operator os pathlib
pickle pkgutil platform posixpath pprint queue random re reprlib resource runpy secrets select selectors shlex shutil
signal site sitecustomize socket sqlite3 ssl stat statistics string struct subprocess sysconfig tempfile textwrap
threading time timeit token tokenize tomllib traceback types typing unicodedata unittest urllib usercustomize uuid
warnings weakref xml zipfile zlib zoneinfo
"""
_DEPENDENCIES = """
cachetools click cloudpickle cupy faiss filelock flint fsspec huggingface_hub IPython jinja2 joblib llvmlite
markupsafe matplotlib mpmath networkx numba numpy packaging pandas pecos PIL pluggy psutil pydantic pydantic_core
pygments rich safetensors scipy sklearn sympy threadpoolctl tomli tomli_w torch tqdm triton typing_extensions xmckit
xmckit_argmax xmckit_eagle xmckit_faiss xmckit_heads xmckit_pecos yaml
"""
STANDARD, DEPENDENCIES = _STANDARD.split(), _DEPENDENCIES.split()
DECOY = "with open({marks!r}, 'a') as marks:\n    marks.write({name!r} + chr(10))\n"

RECIPE = """
seed = 1
workers = 2
[executor]
use = "processes"
[data]
use = "python-source"
path = "source"
groups = "file"
[features]
use = "tfidf"
[[labels]]
use = "eagle"
[[index]]
use = "tree"
[[index]]
use = "faiss"
[[head]]
use = "bsl"
dim = 4
epochs = 1
index = ["faiss"]
[[head]]
use = "xrlinear"
index = ["tree"]
isolated = true
[verify]
use = "argmax"
mode = "chebyshev"
assignments = "test"
most = 4
"""
SUITE = """
title = "A suite of one cell"
seeds = [0]
threads = 1
limit = 900
k = [1, 5]
results = "results.json"
[[data]]
name = "made-up"
source = { use = "synthetic", rows = 300, test_rows = 100, features = 80, labels = 12, topics = 4 }
[[system]]
name = "popular"
recipe = "popular.toml"
"""
SOURCE = """
class C{kind}:
    def read_{kind}(self, path):
        "Read words of kind {kind}."
        open(path), load_{kind}(path)
    def write_{other}(self, path):
        "Write words of kind {other}."
        close(path), store_{other}(path)
"""


def fill(folder: Path) -> None:
    """Fill a folder with decoys, and with the inputs of the commands."""
    marks = str(folder / MARKS)
    for name in (*STANDARD, *DEPENDENCIES):
        text = DECOY.format(marks=marks, name=name)
        if name in ("scipy", "torch", "concurrent", "multiprocessing", "importlib", "xmckit"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text)
        else:
            (folder / f"{name}.py").write_text(text)
    (folder / "source").mkdir()
    for number in range(110):  # enough files for several processes
        (folder / "source" / f"m{number}.py").write_text(SOURCE.format(kind=number % 5, other=number % 3))
    (folder / "small.toml").write_text(RECIPE)
    (folder / "other.toml").write_text('extends = "small.toml"\n[score]\ntop = 7\n')
    (folder / "popular.toml").write_text('[data]\nuse = "synthetic"\n[head]\nuse = "popularity"\n')
    (folder / "suite.toml").write_text(SUITE)
    (folder / "new.jsonl").write_text('{"label": "fresh", "examples": ["read words"]}\n')
    (folder / "rows.jsonl").write_text('{"text": "read words", "labels": ["open"]}\n' * 3)


def run(commands: list[list[str]], *, plain: bool) -> list[int]:
    """Run the commands one after another as the program does; return their exit codes.

    If `plain`, children get neither -P nor PYTHONSAFEPATH, as on Python 3.10, which knows neither.
    """
    from xmckit import cli, processes

    if plain:
        made, of = processes.command, processes.environment
        processes.command = lambda *given: [part for part in made(*given) if part != "-P"]
        processes.environment = lambda **more: {
            name: value for name, value in of(**more).items() if name != processes.SAFE_PATH
        }
    codes = []
    for command in commands:
        sys.argv = ["xmckit", *command]
        print("::", *command, file=sys.stderr, flush=True)
        try:
            cli.main()
        except SystemExit as end:
            codes.append(end.code if isinstance(end.code, int) else 1)
        if plain:
            del os.environ[processes.SAFE_PATH]
    return codes


if __name__ == "__main__":
    given, results = map(Path, sys.argv[1:3])
    is_plain = "--plain" in sys.argv
    results.write_text(json.dumps(run(json.loads(given.read_text()), plain=is_plain)))
