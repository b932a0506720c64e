"""Let atheris (libFuzzer) choose inputs by the code that they reach, with `file_mutations` as one of its mutators.

    python tests/attack/guided_fuzzer.py TARGET RUNS FOLDER

Needs the extra `fuzz`. FOLDER is for the target's files, the corpus, and an input that fails. The first byte of an
input chooses the file of the target, and the others are its new content. Prints the counts of outcomes as JSON. An
outcome that is not allowed, or the end of the process, is a failure: libFuzzer prints the input and ends with an exit
code above 0.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["xmckit", "xmckit_faiss", "xmckit_pecos", "xmckit_heads", "xmckit_argmax"]):
    from file_mutations import mutate
    from format_fuzzer import EXTRA_BYTES, READ, REFUSED, SECONDS, Attack
    from memory_limit import limit_memory

LONGEST = 1 << 17


def main(name: str, runs: int, scratch: Path) -> None:
    warnings.simplefilter("ignore")
    attack, counts = Attack(name, scratch / "files"), Counter()
    files = list(attack.files)
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, file in enumerate(files):
        (corpus / str(number)).write_bytes(bytes([number]) + attack.files[file])

    def try_input(data: bytes) -> None:
        file, content = files[data[0] % len(files) if data else 0], data[1:]
        outcome, details = attack.try_input(file, content)
        counts[outcome] += 1
        if outcome not in (READ, REFUSED):
            raise AssertionError(f"{name}: {outcome}: {details}")
        # libFuzzer ends the process without a word to Python.
        if counts.total() == runs:
            os.write(1, (json.dumps({"target": name, "runs": runs, "outcomes": counts}) + "\n").encode())

    def change(data: bytes, most: int, number: int) -> bytes:
        if number % 2 or not data:
            return atheris.Mutate(data, most)
        file = files[data[0] % len(files)]
        return (data[:1] + mutate(file.name, data[1:], random.Random(number)))[:most]

    limits = [f"-runs={runs}", "-seed=1", f"-max_len={LONGEST}", f"-timeout={SECONDS}", "-rss_limit_mb=0"]
    quiet = ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={scratch}/"]
    atheris.Setup([sys.argv[0], *limits, *quiet, str(corpus)], try_input, custom_mutator=change)
    limit_memory(EXTRA_BYTES)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
