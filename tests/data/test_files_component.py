"""The data set `files`: choosing a reader, its options, and the fingerprint."""

import hashlib
import os
from dataclasses import replace

import pytest
from pydantic import ValidationError
from scipy.sparse import csr_matrix, save_npz

from xmckit.context import Context
from xmckit.data.files import Files
from xmckit.data.jsonl import JsonLines
from xmckit.data.npz import NpzFolder
from xmckit.data.svmlight import Svmlight
from xmckit.data.xmc_text import XmcText
from xmckit.errors import DataError, PluginError, UsageError

READERS = {"xmc": XmcText, "svmlight": Svmlight, "npz": NpzFolder, "jsonl": JsonLines}
CONTEXT = Context(resolve=lambda kind, name: READERS[name], names=lambda kind: list(READERS))
SVM = b"1 1:1\n2 2:1\n"


@pytest.fixture
def svm(tmp_path):
    (tmp_path / "train.svm").write_bytes(SVM)
    (tmp_path / "test.svm").write_bytes(SVM)
    return tmp_path


def test_the_fitting_reader_is_found(svm):
    assert Files(path=svm).read(context=CONTEXT).train.X.shape == (2, 2)
    assert Files(path=svm, reader={"use": "svmlight", "zero_based": True}).read(context=CONTEXT).train.X.shape == (2, 3)


def test_a_reader_by_name(svm):
    assert Files(path=svm, reader="svmlight").read(context=CONTEXT).labels == 3
    with pytest.raises(UsageError, match=r"no reader 'svmligt' .* did you mean 'svmlight'"):
        Files(path=svm, reader="svmligt").read(context=CONTEXT)
    with pytest.raises(DataError, match="not JSON lines"):
        Files(path=svm, reader="jsonl").read(context=CONTEXT)


def test_wrong_options_are_named(svm):
    with pytest.raises(UsageError, match="options of the reader svmlight are wrong: zerobased"):
        Files(path=svm, reader={"use": "svmlight", "zerobased": True}).read(context=CONTEXT)
    with pytest.raises(ValidationError):
        Files(path=svm, zero_based=True)


def test_nothing_or_too_much_fits(svm, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no reader matches.*jsonl: train\.jsonl.*npz: X\.trn\.npz.*svmlight.*xmc"):
        Files(path=tmp_path / "empty").read(context=CONTEXT)
    with pytest.raises(DataError, match="no such file or folder"):
        Files(path=tmp_path / "missing").read(context=CONTEXT)
    for part in ("train", "test"):
        (svm / f"{part}.jsonl").write_text('{"text": "", "labels": ["a"]}\n')
    with pytest.raises(UsageError, match=r"several readers fit \(jsonl, svmlight\)"):
        Files(path=svm).read(context=CONTEXT)


def test_a_broken_reader_does_not_stop_the_others(svm):
    def resolve(kind, name):
        if name == "jsonl":
            raise PluginError("jsonl is broken")
        return READERS[name]

    said = []
    assert Files(path=svm).read(context=CONTEXT.using(resolve=resolve, log=said.append)).labels == 3
    assert said == ["skipped the reader jsonl: jsonl is broken"]


@pytest.mark.parametrize("name", ["xmc", "npz"])
def test_texts_with_line_ends_do_not_make_a_folder_ambiguous(svm, tmp_path, name):
    dataset = Files(path=svm).read(context=CONTEXT)
    dataset = replace(dataset, train=replace(dataset.train, texts=["a\nb", "c"]))
    (tmp_path / "copy").mkdir()
    READERS[name]().write(dataset, tmp_path / "copy")
    assert Files(path=tmp_path / "copy").read(context=CONTEXT).train.texts == ["a\nb", "c"]


def test_the_fingerprint_is_of_every_file(svm):
    checksum = hashlib.sha256(SVM).hexdigest()
    before = Files(path=svm).fingerprint(context=CONTEXT)
    assert before == {"test.svm": checksum, "train.svm": checksum}
    (svm / "unrelated").write_text("x")
    assert Files(path=svm).fingerprint(context=CONTEXT) == before
    (svm / "test.svm").write_bytes(SVM + b"0 1:2\n")
    assert Files(path=svm).fingerprint(context=CONTEXT) != before


def test_readers_match_only_their_own(svm, tmp_path):
    assert [name for name, reader in READERS.items() if reader().matches(svm)] == ["svmlight"]
    for odd in (tmp_path / "missing", svm / "train.svm"):
        assert not any(reader().matches(odd) for reader in READERS.values())


def test_wrong_options_come_with_the_nearest_name(svm):
    with pytest.raises(UsageError, match=r"zerobased: unknown; did you mean 'zero_based'\? \(options: zero_based, "):
        Files(path=svm, reader={"use": "svmlight", "zerobased": True}).read(context=CONTEXT)
    with pytest.raises(UsageError, match=r"features: .*, found 'many'"):
        Files(path=svm, reader={"use": "svmlight", "features": "many"}).read(context=CONTEXT)


@pytest.mark.parametrize("name", ["train.txt", "train.svm", "train.jsonl", "X.trn.npz"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    for part in (name, name.replace("train", "test").replace("trn", "tst")):
        os.mkfifo(tmp_path / part)
    for part in ("trn", "tst") if name.endswith(".npz") else ():
        save_npz(tmp_path / f"Y.{part}.npz", csr_matrix([[1.0]]))
    with pytest.raises(DataError, match=r"no reader matches|there is neither"):
        Files(path=tmp_path).read(context=CONTEXT)


def test_a_broken_link_is_named(tmp_path):
    for part in ("train.txt", "test.txt"):
        (tmp_path / part).symlink_to("nowhere")
    with pytest.raises(DataError, match=r"train\.txt: no such file"):
        Files(path=tmp_path).read(context=CONTEXT)
