"""What the fuzzer attacks: small valid files of every format, and the code that reads each and works with it.

`write` fills a folder, `read` reads it as the toolkit does, and `use` works with what was read, so that wrong numbers
reach compiled code. An error of `read` must name a file of the folder.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmckit import make_context, store
from xmckit.data.group_files import with_groups as with_group_files
from xmckit.data.row_stream import FORMATS, Lines, read_chunks
from xmckit.data.saved import load_dataset, load_label_names, read_feature_rows, save_dataset
from xmckit.testing.problems import small_dataset, small_problem, with_groups, with_texts, with_weights
from xmckit.verification.label_sets import read_label_sets

CONTEXT = make_context(seed=0, workers=1)
WIDTH, LABELS = 43, 11


@dataclass(frozen=True)
class Target:
    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    use: Callable[[Any], Any] = lambda value: None
    prepare: Callable[[Path], None] = lambda folder: None  # after each mutation: recompute a checksum, for instance


def targets() -> dict[str, Target]:
    return {target.name: target for target in (*_readers(), *_stored(), *_models())}


# Data ----------------------------------------------------------------------------------------------------------------


def _reader(name: str, use: str, write: Callable[[Path], None]) -> Target:
    reader = CONTEXT.resolve("reader", use)()
    return Target(name, write, lambda folder: reader.read(folder, context=CONTEXT), _use_dataset)


def _use_dataset(dataset: Any) -> None:
    from xmckit.data.describe import describe
    from xmckit.sparse.labels import cooccurrence, label_centroids

    describe(dataset)
    cooccurrence(dataset.train.Y, 3)
    for block in dataset.train.blocks.values():
        label_centroids(block, dataset.train.Y, projection=None)


def _converted(form: str, **changes: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        dataset = replace(small_dataset(), **changes)
        CONTEXT.resolve("reader", form)().write(dataset, folder)

    return write


def _full_npz(folder: Path) -> None:
    dataset = small_dataset()
    splits = []
    for split in (dataset.train, dataset.test):
        full = with_weights(with_groups(with_texts(split)))
        blocks = {"X": split.X, "dense": np.asarray(split.X[:, :5].toarray())}
        splits.append(replace(full, X=blocks, names=[f"row {n}" for n in range(split.rows)], filter=split.Y))
    CONTEXT.resolve("reader", "npz")().write(replace(dataset, train=splits[0], test=splits[1]), folder)


def _other_formats(folder: Path) -> None:
    """Write csc and coo matrices, compressed, as scipy does."""
    dataset = small_dataset()
    for part, split in (("trn", dataset.train), ("tst", dataset.test)):
        sp.save_npz(folder / f"X.{part}.npz", split.X.tocsc())
        sp.save_npz(folder / f"Y.{part}.npz", split.Y.tocoo())


def _xmc_splits(folder: Path) -> None:
    _converted("xmc")(folder)
    (folder / "train.txt").rename(folder / "small_data.txt")
    (folder / "test.txt").unlink()
    (folder / "labels.txt").unlink()
    (folder / "small_trSplit.txt").write_text("".join(f"{n} {n + 1}\n" for n in range(1, 15)))
    (folder / "small_tstSplit.txt").write_text("".join(f"{n} {n + 1}\n" for n in range(16, 23)))


def _xmc_matrices(folder: Path) -> None:
    dataset = small_dataset()
    for part, split in (("trn", dataset.train), ("tst", dataset.test)):
        for name, matrix in (("Xf", split.X), ("Y", split.Y)):
            lines = [f"{matrix.shape[0]} {matrix.shape[1]}"]
            lines += [" ".join(f"{i}:{v:g}" for i, v in zip(row.indices, row.data, strict=True)) for row in matrix]
            (folder / f"{part}_X_{name}.txt").write_text("\n".join(lines) + "\n")
        (folder / f"{part}_X.txt").write_text("".join(f"text {n}\n" for n in range(split.rows)))
    (folder / "filter_labels_test.txt").write_text("0 1\n2 3\n")
    (folder / "lbl_X_Xf.txt").write_text(f"{LABELS} 4\n" + "1:1 2:0.5\n" * LABELS)


def _packed(folder: Path) -> None:
    _converted("xmc")(folder)
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1, mtime=0))
        file.unlink()


def _svmlight(folder: Path) -> None:
    dataset = replace(small_dataset(), label_names=None)
    CONTEXT.resolve("reader", "svmlight")(features=WIDTH, labels=LABELS).write(dataset, folder)


def _group_files(folder: Path) -> None:
    (folder / "groups.txt").write_text("".join(f"g{n // 3}\n" for n in range(24)))
    (folder / "group_labels.txt").write_text("".join(f"g{n}\t{n}\t{n + 1}\t{n}\n" for n in range(8)))


def _read_group_files(folder: Path) -> Any:
    dataset = replace(small_dataset(), label_names=None)
    return with_group_files(dataset, folder / "groups.txt", folder / "group_labels.txt")


def _rows(form: str) -> Target:
    def write(folder: Path) -> None:
        texts = {
            "text": "some words\nmore of them\n",
            "jsonl": '{"text": "some words", "id": 7}\n"a string"\n{"text": "x"}\n',
            "csv": 'id,text\n1,"some, words"\n2,more\n',
            "tsv": "id\ttext\n1\tsome words\n2\tmore\n",
            "xmc": f"3 {WIDTH} {LABELS}\n1,2 0:1 3:0.25\n 4:1\n0 42:-1e-3\n",
            "svmlight": "1,2 1:1 3:0.25 # note\n0 43:2\n",
        }
        (folder / f"rows.{form}").write_text(texts[form])

    def read(folder: Path) -> Any:
        path = folder / f"rows.{form}"
        with open(path, "rb") as stream:
            return list(read_chunks(Lines(stream, str(path)), form, width=WIDTH))  # type: ignore[arg-type]

    return Target(f"rows-{form}", write, read)


def _readers() -> Iterator[Target]:
    yield _reader("xmc", "xmc", _converted("xmc"))
    yield _reader("xmc-splits", "xmc", _xmc_splits)
    yield _reader("xmc-matrices", "xmc", _xmc_matrices)
    yield _reader("xmc-gz", "xmc", _packed)
    yield _reader("svmlight", "svmlight", _svmlight)
    yield _reader("npz", "npz", _full_npz)
    yield _reader("npz-csc-coo", "npz", _other_formats)
    yield _reader("jsonl", "jsonl", _converted("jsonl", **vars(small_dataset(texts=True))))
    yield Target("group-files", _group_files, _read_group_files, lambda dataset: dataset.check())
    yield from map(_rows, FORMATS)

    def write_sets(folder: Path) -> None:
        (folder / "sets.jsonl").write_text('["a", "b"]\n[1, 2]\n[]\n')
        store.write_csr(folder / "sets.npz", small_problem().Y)

    def read_sets(folder: Path) -> Any:
        names = [chr(97 + n) for n in range(LABELS)]
        return [read_label_sets(folder / name, names) for name in ("sets.jsonl", "sets.npz")]

    yield Target("label-sets", write_sets, read_sets)


# Stored files --------------------------------------------------------------------------------------------------------


def _stored() -> Iterator[Target]:
    def write_arrays(folder: Path) -> None:
        split = small_problem()
        store.write_csr(folder / "csr.npz", split.X)
        store.write_matrix(folder / "dense.npz", split.X.toarray())
        store.write_strings(folder / "strings.npz", ["", "é", "x" * 30])
        store.write_arrays(folder / "many.npz", {"a": np.arange(5), "b": np.ones((2, 3), bool), "c": np.array("sign")})
        np.save(folder / "one.npy", split.X.toarray())

    def read_arrays(folder: Path) -> Any:
        strings, many = store.read_strings(folder / "strings.npz"), store.read_arrays(folder / "many.npz")
        for name, array in many.items():
            store.check_array(folder / "many.npz", name, array, "bi", array.shape) if name != "c" else str(array)
        matrices = store.read_csr(folder / "csr.npz"), store.read_matrix(folder / "dense.npz")
        return *matrices, store.read_npy(folder / "one.npy"), strings

    def use_arrays(value: Any) -> None:
        from xmckit.sparse.topk import topk_csr

        topk_csr(value[0], 3)
        value[0].T @ value[0]

    yield Target("stored-arrays", write_arrays, read_arrays, use_arrays)

    def write_dataset(folder: Path) -> None:
        dataset, splits = small_dataset(), []
        for split in (dataset.train, dataset.test):
            full = with_weights(with_groups(with_texts(split)))
            splits.append(replace(full, names=[str(n) for n in range(split.rows)], filter=split.Y))
        save_dataset(replace(dataset, train=splits[0], test=splits[1], label_names=None), folder)

    def read_dataset(folder: Path) -> Any:
        load_label_names(folder)
        read_feature_rows(folder / "train")
        return load_dataset(folder)

    yield Target("stored-dataset", write_dataset, read_dataset, _use_dataset)


# Models --------------------------------------------------------------------------------------------------------------


def _component(kind: str, spec: dict[str, Any], build: Callable[[Any], Any], use: Callable[[Any], Any]) -> Target:
    component = CONTEXT.resolve(kind, spec["use"])

    def write(folder: Path) -> None:
        build(CONTEXT.build(kind, spec)).save(folder)

    def read(folder: Path) -> Any:
        return component.load(folder, context=CONTEXT)

    name = "-".join(str(spec[key]) for key in ("use", "kind", "buckets") if key in spec)
    return Target(name, write, read, use)


def _train() -> Any:
    return small_problem(rows=90, labels=30)  # enough labels for all kinds of faiss indexes


def _head(use: str, **params: Any) -> Target:
    def fit(head: Any) -> Any:
        head.fit(_train(), context=CONTEXT)
        return head

    def predict(head: Any) -> None:
        X = _train().X
        head.predict(X, 3)
        head.labels(X)

    return _component("head", {"use": use, **params}, fit, predict)


def _indexer(use: str, **params: Any) -> Target:
    def search(index: Any) -> None:
        index.shortlist(_train().X, 5)

    target = _component("indexer", {"use": use, **params}, lambda one: one.build(_train(), context=CONTEXT), search)
    return replace(target, prepare=_new_checksum) if use == "faiss" else target


def _new_checksum(folder: Path) -> None:
    """Let the record of a faiss index have the checksum of the changed file, so that faiss sees the change."""
    about = folder / "index.json"
    try:
        content = json.loads(about.read_bytes())
        content["file"]["sha256"] = store.file_sha256(folder / "index.faiss")
        about.write_text(json.dumps(content))
    except (ValueError, TypeError, KeyError, AttributeError):
        return


def _featurizer(use: str, **params: Any) -> Target:
    def fit(featurizer: Any) -> Any:
        featurizer.fit(with_texts(_train()), context=CONTEXT)
        return featurizer

    def transform(featurizer: Any) -> None:
        featurizer.transform(with_texts(_train()), context=CONTEXT)

    return _component("featurizer", {"use": use, **params}, fit, transform)


def _certificates() -> Target:
    from xmckit_argmax.checker.check import check

    from xmckit.verification.verify import verify

    def write(folder: Path) -> None:
        head = CONTEXT.build("head", {"use": "bsl", "epochs": 2, "dim": 4})
        head.fit(_train(), context=CONTEXT)
        verify(
            folder, CONTEXT.build("verifier", {"use": "argmax"}), [("bsl", head)], _train(), most=20, context=CONTEXT
        )

    return Target("certificates", write, check)


def _models() -> Iterator[Target]:
    yield _head("popularity")
    yield _head("bsl", epochs=2, dim=4)
    yield _head("dft", epochs=2)
    if find_spec("pecos"):
        yield _head("xrlinear", isolated=False)
        yield _indexer("tree", isolated=False, leaf_size=4, branching=2)
    for kind in ("flat", "ivf", "hnsw", "pq") if find_spec("faiss") else ():
        yield _indexer("faiss", kind=kind, dim=8)
    yield _featurizer("tfidf", min_count=1)
    yield _featurizer("tfidf", buckets=64)
    yield _featurizer("blocks", idf=True)
    yield _certificates()


def fresh_folder(target: Target, folder: Path) -> dict[Path, bytes]:
    """Write the valid files of a target, and return their contents."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target.write(folder)
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
