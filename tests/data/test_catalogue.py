"""Data sets by name: the catalogue's entries, and errors about sets that are missing, incomplete or changed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

from xmckit.data import catalogue as module
from xmckit.data.catalogue import (
    RECORD,
    Entry,
    KnownFile,
    Repository,
    catalogue,
    download_folder,
    find_entry,
    how_to_get,
    state,
)
from xmckit.data.download import check_address
from xmckit.errors import DataError, RecipeError, UsageError
from xmckit.recipe import load_section
from xmckit.registry import default_registry, make_context
from xmckit.store import file_sha256

DATA = Path(os.environ.get("XMCKIT_DATA", "missing").split(os.pathsep)[0])
CONTEXT = make_context(workers=1)
ROWS, TEST_ROWS, FEATURES, LABELS = 6, 3, 5, 4


def matrices(folder, labels=LABELS):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, rows in (("trn", ROWS), ("tst", TEST_ROWS)):
        save_npz(folder / f"X.{part}.npz", csr_matrix(rng.random((rows, FEATURES), dtype=np.float32)))
        Y = np.zeros((rows, labels), dtype=np.float32)
        Y[np.arange(rows), np.arange(rows) % labels] = 1
        save_npz(folder / f"Y.{part}.npz", csr_matrix(Y))
    return folder


def entry_for(folder, **changes):
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in sorted(folder.glob("*.npz"))
    }
    facts = {
        "name": folder.name, "title": "A set", "about": "Rows.", "licence": "free", "citation": "Somebody, 1999",
        "page": "https://example.org/", "by_hand": "Make them.", "rows": ROWS, "test_rows": TEST_ROWS,
        "features": FEATURES, "labels": LABELS, "propensity": "amazon", "files": files,
    }  # fmt: skip
    return Entry(**{**facts, **changes})


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A set `small` that is there and whole."""
    folder = matrices(tmp_path / "data" / "small")
    entries = {"small": entry_for(folder)}
    monkeypatch.setattr(module, "catalogue", lambda: entries)
    return folder, entries


def test_every_entry_is_consistent():
    for name, entry in catalogue().items():
        assert entry.needed, name
        assert bool(entry.sources) == bool(entry.unpack), name
        assert entry.page.startswith("http"), name
        for source in entry.sources:
            check_address(source.address, has_checksum=source.checksum is not None)
        for file in entry.needed:
            assert file == Path(file).name, "a file's place is the set's folder and no other"
        for end in entry.unpack.values():
            assert not end.startswith("/"), name
        assert "/work" not in entry.model_dump_json()


def test_the_sets_of_the_repository_are_there():
    wanted = {
        "eurlex-4k": 3956, "wiki10-31k": 30938, "amazoncat-13k": 13330, "amazon-670k": 670091, "amazon-3m": 2812281,
        "wiki-500k": 501070, "bibtex": 159, "delicious": 983, "mediamill": 101, "rcv1-2k": 2456,
        "bibtex-xmc": 159, "delicious-xmc": 983, "eurlex-4k-bow": 3993,
    }  # fmt: skip
    assert {name: catalogue()[name].labels for name in wanted} == wanted


def test_names_are_found_however_they_are_written():
    assert find_entry("EURLex-4K").name == "eurlex-4k"
    with pytest.raises(UsageError, match=r"no data set 'Bibtx'; did you mean 'bibtex'"):
        find_entry("Bibtx")


def test_a_set_that_is_whole_is_read_with_what_is_known_of_it(known):
    folder, _ = known
    source = Repository(name=folder)
    prints = source.fingerprint(context=CONTEXT)
    assert prints["X.trn.npz"] == file_sha256(folder / "X.trn.npz")
    dataset = source.read(context=CONTEXT)
    assert (dataset.name, dataset.propensity, dataset.train.rows) == ("small", "amazon", ROWS)
    assert dataset.info["citation"] == "Somebody, 1999"


def test_a_recipe_finds_the_set_in_the_data_folders(known):
    folder, _ = known
    values = {"use": "repository", "name": "small"}
    section = load_section("data", values, registry=default_registry(), data_roots=[folder.parent])
    assert section.params["name"] == str(folder)


def test_a_missing_set_says_what_to_do(known):
    folder, entries = known
    shutil.rmtree(folder)
    values, root = {"use": "repository", "name": "small"}, folder.parent
    with pytest.raises(RecipeError) as caught:
        load_section("data", values, registry=default_registry(), data_roots=[root])
    assert "cannot be fetched: copy X.trn.npz" in str(caught.value)
    assert f"into {root / 'small'}" in str(caught.value)
    sources = [{"address": "https://example.org/small.zip"}]
    entries["small"] = entry_for(folder, files={}, sources=sources, unpack={"X.trn.npz": "a/X.trn.npz"})
    with pytest.raises(RecipeError, match=f"fetch it with `xmckit data fetch small --to {root}`, or put X.trn.npz"):
        load_section("data", values, registry=default_registry(), data_roots=[root])
    with pytest.raises(RecipeError, match="fetch it with"):
        load_section("data", values, registry=default_registry())
    assert how_to_get("SMALL", []) == "the name of that set is written 'small'"
    assert "did you mean 'small'" in how_to_get("smal", [])
    download_folder(folder).mkdir()
    (download_folder(folder) / "0.part").write_bytes(b"123")
    assert "half-downloaded: resume with" in how_to_get("small", [root])
    assert state(entries["small"], folder) == ("half-downloaded", ["3 bytes are downloaded"])


def test_an_incomplete_set_is_reported(known):
    folder, entries = known
    (folder / "Y.tst.npz").write_bytes((folder / "Y.tst.npz").read_bytes()[:-5])
    (folder / "X.tst.npz").unlink()
    assert state(entries["small"], folder)[0] == "damaged"
    with pytest.raises(DataError, match=r"not the set small: .*X\.tst\.npz is missing.*use = \"files\""):
        Repository(name=folder).read(context=CONTEXT)
    with pytest.raises(DataError, match=r"Y\.tst\.npz has [\d,]+ bytes, expected"):
        Repository(name=folder).fingerprint(context=CONTEXT)


def test_a_changed_set_is_reported(known):
    folder, entries = known
    content = bytearray((folder / "Y.tst.npz").read_bytes())
    content[30] ^= 1
    (folder / "Y.tst.npz").write_bytes(content)
    assert state(entries["small"], folder) == ("there", []), "sizes are right"
    with pytest.raises(DataError, match=r"Y\.tst\.npz has changed: its SHA-256 is"):
        Repository(name=folder).read(context=CONTEXT)


def test_what_was_fetched_is_remembered_where_nothing_is_published(known):
    folder, entries = known
    entries["small"] = entry_for(folder, files={}, unpack={"X.trn.npz": "X.trn.npz"})
    recorded = {"X.trn.npz": KnownFile(bytes=1, sha256="0" * 64).model_dump()}
    (folder / RECORD).write_text(json.dumps({"files": recorded}))
    assert state(entries["small"], folder)[0] == "damaged"
    recorded["X.trn.npz"]["bytes"] = (folder / "X.trn.npz").stat().st_size
    (folder / RECORD).write_text(json.dumps({"files": recorded}))
    with pytest.raises(DataError, match=r"X\.trn\.npz has changed"):
        Repository(name=folder).read(context=CONTEXT)
    for damage in ('{"files": [1]}', "[]", "{", '{"files": {"X.trn.npz": {"bytes": -1}}}'):
        (folder / RECORD).write_text(damage)
        found, (why,) = state(entries["small"], folder)
        assert (found, "this file is damaged" in why) == ("damaged", True)


def test_sizes_that_differ_from_the_published_ones_are_reported(known):
    folder, entries = known
    entries["small"] = entry_for(folder, labels=7, rows=9)
    with pytest.raises(DataError, match="6 rows, published are 9; 4 labels, published are 7"):
        Repository(name=folder).read(context=CONTEXT)


@pytest.mark.parametrize("name", [name for name, entry in catalogue().items() if entry.files and entry.rows])
def test_the_sets_at_hand_are_those_of_the_catalogue(name):
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"XMCKIT_DATA names no folder with {name}")
    entry = catalogue()[name]
    dataset = Repository(name=folder).read(context=CONTEXT)
    assert (dataset.train.rows, dataset.labels) == (entry.rows, entry.labels)
