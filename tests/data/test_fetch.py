"""Downloads from a local server that breaks off, lies, changes files and sends other content than requested."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import socket
import stat
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xmckit import store
from xmckit.cli import invocation
from xmckit.cli import xmckit as program
from xmckit.data.catalogue import RECORD, ArchiveSource, Entry, download_folder, state
from xmckit.data.download import RetryPolicy, TransferError, check_address, download
from xmckit.data.fetch import fetch, unpack
from xmckit.errors import DataError, UsageError

QUICK = RetryPolicy(timeout=5.0, tries=3, sleep=lambda seconds: None)
CONTENT = bytes(range(256)) * 4096  # 1 MiB
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server:
    """Serves `content`; `answers` are ways to behave, one for each request, and the last one for all that follow."""

    def __init__(self, content=CONTENT, *answers, tag='"1"'):
        self.content, self.answers, self.tag = content, list(answers) or ["well"], tag
        self.requests = []

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                behave = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                outer.requests.append((self.path, self.headers.get("Range"), behave))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    outer.answer(self, behave)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/set.zip"
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler, behave):
        if behave == "changes":
            self.content, self.tag, behave = CONTENT[::-1], '"2"', "breaks off"
        content, status = self.content, 200
        if isinstance(behave, int):
            handler.send_error(behave)
            return
        if behave.startswith("redirect "):
            handler.send_response(302)
            handler.send_header("Location", behave.removeprefix("redirect "))
            handler.end_headers()
            return
        asked, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
        start = 0
        if asked and behave != "ignores ranges" and condition in (None, self.tag):
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
        body = content[start:]
        handler.send_response(status)
        if status == 206:
            shift = 1 if behave == "sends another part" else 0
            handler.send_header("Content-Range", f"bytes {start + shift}-{len(content) - 1}/{len(content)}")
        if behave == "hides the length":
            handler.send_header("Connection", "close")
        else:
            handler.send_header("Content-Length", str(len(body) + (1000 if behave == "promises more" else 0)))
        if self.tag:
            handler.send_header("ETag", self.tag)
        handler.end_headers()
        if behave == "slow":
            time.sleep(0.6)
        cut = behave == "breaks off" and len(body) > 1000
        handler.wfile.write(body[: len(body) // 2] if cut else body)
        handler.close_connection = True


def source(server, **facts):
    return ArchiveSource(address=server.address, **facts)


def test_a_file_is_downloaded_unchanged(tmp_path):
    with Server() as server:
        got = download(source(server, bytes=len(CONTENT), md5=MD5), tmp_path, retry=QUICK)
    assert got.read_bytes() == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == [got.name]


def test_a_download_goes_on_where_it_broke_off(tmp_path):
    with Server(CONTENT, "breaks off", "breaks off", "well") as server:
        got = download(source(server, md5=MD5), tmp_path, retry=QUICK)
    assert got.read_bytes() == CONTENT
    half, quarter = len(CONTENT) // 2, len(CONTENT) // 4
    assert [asked for _, asked, _ in server.requests] == [None, f"bytes={half}-", f"bytes={half + quarter}-"]


def test_a_later_call_goes_on_too(tmp_path):
    with Server(CONTENT, "breaks off", 503) as server:
        with pytest.raises(TransferError, match=r"answered 503.*524,288 bytes are kept for the next time"):
            download(source(server), tmp_path, retry=QUICK)
        server.answers = ["well"]
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT
    assert server.requests[-1][1] == f"bytes={len(CONTENT) // 2}-"


def test_a_server_that_always_breaks_off_at_once_is_given_up(tmp_path):
    with Server(b"x" * 500, "promises more") as server:
        with pytest.raises(TransferError, match=r"broke off after 500 of 1,500 bytes|another part"):
            download(source(server), tmp_path, retry=QUICK)
        assert len(server.requests) <= 2 * QUICK.tries


def test_a_file_that_changes_between_attempts_is_downloaded_again(tmp_path):
    with Server(CONTENT, "breaks off", "changes", "well") as server:
        got = download(source(server), tmp_path, retry=QUICK)
    assert got.read_bytes() == CONTENT[::-1]


def test_a_server_that_ignores_ranges_sends_all_again(tmp_path):
    with Server(CONTENT, "breaks off", "ignores ranges") as server:
        assert download(source(server, md5=MD5), tmp_path, retry=QUICK).read_bytes() == CONTENT


def test_another_part_than_was_asked_for_is_not_taken(tmp_path):
    with Server(CONTENT, "breaks off", "sends another part", "well") as server:
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT
    assert server.requests[-1][1] is None


def test_without_a_version_nothing_is_resumed(tmp_path):
    with Server(CONTENT, "breaks off", "well", tag=None) as server:
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT
    assert [asked for _, asked, _ in server.requests] == [None, None]


def test_a_resumed_file_with_a_wrong_checksum_is_downloaded_again_once(tmp_path):
    with (
        Server(CONTENT, "breaks off", "well") as server,
        pytest.raises(TransferError, match=r"its MD5 is .* expected 0000"),
    ):
        download(source(server, md5="0" * 32), tmp_path, retry=QUICK)
    assert [asked is None for _, asked, _ in server.requests] == [True, False, True]
    assert not list(tmp_path.iterdir()), "what is wrong is not kept"


def test_a_server_that_lies_about_the_size(tmp_path):
    with Server() as server, pytest.raises(TransferError, match=r"the server has 1,048,576 bytes, expected 7"):
        download(source(server, bytes=7), tmp_path, retry=QUICK)
    with (
        Server(CONTENT, "hides the length") as server,
        pytest.raises(TransferError, match="more than the expected 7 bytes"),
    ):
        download(source(server, bytes=7), tmp_path, retry=QUICK)
    with (
        Server(CONTENT[:-1], "hides the length") as server,
        pytest.raises(TransferError, match="received 1,048,575 bytes"),
    ):
        download(source(server, bytes=len(CONTENT)), tmp_path, retry=QUICK)


@pytest.mark.parametrize("code", [404, 403, 410])
def test_a_missing_file_is_requested_only_once(tmp_path, code):
    with Server(CONTENT, code) as server, pytest.raises(TransferError, match=f"the server answered {code}"):
        download(source(server), tmp_path, retry=QUICK)
    assert len(server.requests) == 1


def test_a_server_in_trouble_is_asked_again(tmp_path):
    with Server(CONTENT, 500, 503, "well") as server:
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT


def test_a_refused_range_restarts_the_download(tmp_path):
    with Server(CONTENT, "breaks off", 416, "well") as server:
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT


def test_a_slow_server_is_given_up(tmp_path):
    with Server(CONTENT, "slow") as server, pytest.raises(TransferError, match="timed out"):
        download(source(server), tmp_path, retry=RetryPolicy(timeout=0.1, tries=2, sleep=lambda seconds: None))


def test_redirects_lead_only_where_one_may_go(tmp_path):
    with Server() as target, Server(CONTENT, f"redirect {target.address}") as server:
        assert download(source(server), tmp_path, retry=QUICK).read_bytes() == CONTENT
    for forbidden in ("file:///etc/passwd", "ftp://example.org/x", "http://example.org/x", "http://[x"):
        with Server(CONTENT, f"redirect {forbidden}") as server, pytest.raises(TransferError):
            download(source(server), tmp_path, retry=QUICK)


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "ftp://example.org/x", "http://example.org/x", "data:,x", "x", "https://"]
)
def test_addresses_that_are_refused(address):
    with pytest.raises(UsageError, match="only https"):
        check_address(address, has_checksum=False)


def test_addresses_that_are_taken():
    for address in ("https://example.org/x", "http://127.0.0.1:8/x", "http://[::1]/x", "http://localhost/x"):
        check_address(address, has_checksum=False)
    check_address("http://example.org/x", has_checksum=True)


def test_no_server_at_all(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
        with pytest.raises(TransferError, match="no connection"):
            download(ArchiveSource(address=address), tmp_path, retry=QUICK)


def test_a_missing_network_is_an_error_at_once(tmp_path, monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TransferError, match=r"cannot connect to https://example\.org"):
        download(ArchiveSource(address="https://example.org/x"), tmp_path, retry=QUICK)


# -- whole sets ----------------------------------------------------------------------------------------------------


def zipped(method=zipfile.ZIP_DEFLATED, **members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def entry(*addresses, **changes):
    facts = {
        "name": "small", "title": "Small", "about": "Rows.", "licence": "free", "citation": "Somebody, 1999",
        "page": "https://example.org/page", "by_hand": "Unpack it.", "unpack": {"a.txt": "In/a.txt"},
        "sources": [{"address": address} for address in addresses],
    }  # fmt: skip
    return Entry(**{**facts, **changes})


def test_a_set_is_fetched_and_recorded(tmp_path):
    with Server(zipped(small__in__a="no", small__In__b="no", **{"small/in/A.txt": "text"}), "breaks off") as server:
        small = entry(server.address)
        done = fetch(small, tmp_path / "new", retry=QUICK)
        assert (tmp_path / "new/small/a.txt").read_text() == "text"
        record = json.loads((done.folder / RECORD).read_text())
        assert record["files"]["a.txt"] == {"bytes": 4, "sha256": hashlib.sha256(b"text").hexdigest()}
        assert (record["licence"], done.checked) == ("free", False)
        assert state(small, done.folder) == ("there", [])
        assert [file.name for file in (tmp_path / "new").iterdir()] == ["small"]
        asked = len(server.requests)
        assert fetch(small, tmp_path / "new", retry=QUICK).address is None
        assert len(server.requests) == asked, "what is there is not fetched again"


def test_the_next_source_is_tried_and_all_failures_are_reported(tmp_path):
    with Server(CONTENT, 404) as bad, Server(zipped(In__a="", **{"In/a.txt": "text"})) as good:
        told = []
        assert fetch(entry(bad.address, good.address), tmp_path, retry=QUICK, log=told.append).address == good.address
        assert "404" in told[0]
    with Server(CONTENT, 404) as bad, pytest.raises(DataError) as caught:
        fetch(entry(bad.address, f"{bad.address}2"), tmp_path / "other", retry=QUICK)
    assert str(caught.value).count("answered 404") == 2  # a port may have these digits
    assert not (tmp_path / "other").exists(), "nothing came, and no folder is left for it"
    assert f"By hand: put a.txt into {tmp_path / 'other/small'}. Unpack it." in str(caught.value)


def test_a_partial_download_is_listed_and_resumed(tmp_path):
    content = zipped(**{"In/a.txt": random.Random(0).randbytes(5000)})
    with Server(content, "breaks off", 404) as server:
        small = entry(server.address)
        with pytest.raises(DataError, match="could not fetch small"):
            fetch(small, tmp_path, retry=QUICK)
        assert state(small, tmp_path / "small")[0] == "half-downloaded"
        server.answers = ["well"]
        fetch(small, tmp_path, retry=QUICK)
    assert state(small, tmp_path / "small")[0] == "there"


def test_a_set_that_cannot_be_fetched_explains_the_manual_steps(tmp_path):
    with pytest.raises(DataError, match=r"small cannot be fetched: put a\.txt into .*See https://example\.org/page"):
        fetch(entry(), tmp_path, retry=QUICK)
    (tmp_path / "small").mkdir()
    with pytest.raises(DataError, match=r"not the complete set.*a\.txt is missing"):
        fetch(entry(), tmp_path, retry=QUICK)


PAGE = b"<!DOCTYPE html><html>Sign in"


@pytest.mark.parametrize("facts", [{}, {"md5": MD5}])
def test_a_web_page_instead_of_the_archive(tmp_path, facts):
    with Server(PAGE) as server, pytest.raises(DataError, match=r"(?s)The server sent a web page.*By hand: put a\.txt"):
        fetch(entry(sources=[{"address": server.address, **facts}]), tmp_path, retry=QUICK)
    assert not list(tmp_path.iterdir())


def test_a_source_without_an_archive_leads_to_the_next_source(tmp_path):
    with Server(PAGE) as bad, Server(zipped(**{"In/a.txt": "text"})) as good:
        done = fetch(entry(bad.address, good.address), tmp_path, retry=QUICK)
    assert (done.address, [file.name for file in tmp_path.iterdir()]) == (good.address, ["small"])


def test_a_fetch_killed_while_unpacking_resumes(tmp_path, monkeypatch):
    left = tmp_path / store.temporary_beside(tmp_path / "small").name.replace(str(os.getpid()), "999999999")
    left.mkdir()
    monkeypatch.setattr("xmckit.data.fetch.unpack", lambda *arguments: 1 / 0)
    with Server(zipped(**{"In/a.txt": "text"})) as server:
        small = entry(server.address)
        with pytest.raises(ZeroDivisionError):
            fetch(small, tmp_path, retry=QUICK)
        assert state(small, tmp_path / "small")[0] == "half-downloaded"
        monkeypatch.undo()
        fetch(small, tmp_path, retry=QUICK)
    assert len(server.requests) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["small"]


def test_places_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "small").symlink_to(tmp_path / "gone")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot be a folder"):
            fetch(entry("https://example.org/x"), root, retry=QUICK)
    with pytest.raises(DataError, match="Move it away"):
        fetch(entry("https://example.org/x"), tmp_path, retry=QUICK)


def test_two_processes_do_not_fetch_the_same_set(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    download_folder(tmp_path / "small").mkdir()
    with open(download_folder(tmp_path / "small") / ".lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="by another process"):
            fetch(entry("https://example.org/x"), tmp_path, retry=QUICK)


def test_files_that_are_known_are_compared(tmp_path):
    known = {"a.txt": {"bytes": 4, "sha256": "0" * 64}}
    archive = zipped(**{"In/a.txt": "text"})
    with Server(archive) as server, pytest.raises(DataError, match="not the file that the catalogue describes"):
        fetch(entry(server.address, files=known), tmp_path, retry=QUICK)
    assert not list(tmp_path.iterdir()), "it will be another archive the next time"


# -- archives ------------------------------------------------------------------------------------------------------


def tarred(*members, compress=True):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if compress else "w") as archive:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(info)
    return buffer.getvalue()


def link(kind):
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, "../../secret"
    return info


def opened(tmp_path, content, wanted=None):
    (tmp_path / "archive").write_bytes(content)
    folder = tmp_path / "out"
    folder.mkdir()
    return unpack(tmp_path / "archive", wanted or {"a": "x/a"}, folder), folder


@pytest.mark.parametrize("compress", [True, False])
def test_a_tar_archive(tmp_path, compress):
    files, folder = opened(tmp_path, tarred(("b", b"no"), ("./top/x/a", b"yes"), compress=compress))
    assert (folder / "a").read_bytes() == b"yes"
    assert files["a"].bytes == 3


@pytest.mark.parametrize("path", ["../../x/a", "/x/a", "..\\..\\x\\a", "C:\\x\\a"])
def test_no_path_in_an_archive_leads_out_of_the_folder(tmp_path, path):
    for number, content in enumerate((zipped(**{path: "in"}), tarred((path, b"in")))):
        place = tmp_path / str(number)
        place.mkdir()
        _, folder = opened(place, content)
        assert sorted(file.name for file in place.rglob("*")) == ["a", "archive", "out"]
        assert (folder / "a").read_text() == "in"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match="a link or a device"):
        opened(tmp_path, tarred(("x/a", link(kind))))


def test_a_link_in_a_zip_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("x/a")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        opened(tmp_path, buffer.getvalue())


@pytest.mark.parametrize("pack", [lambda content: zipped(**{"x/a": content}), lambda content: tarred(("x/a", content))])
def test_a_bomb_is_not_unpacked(tmp_path, pack, monkeypatch):
    monkeypatch.setattr("xmckit.data.fetch.ALWAYS_ALLOWED", 1 << 12)
    with pytest.raises(DataError, match="larger than 100 times its size"):
        opened(tmp_path, pack(bytes(1 << 22)))


def test_archives_that_have_too_little_or_too_much(tmp_path):
    with pytest.raises(DataError, match="the archive has no file x/a"):
        opened(tmp_path, zipped(**{"y/a": "", "xx/a": "", "x/a/b": ""}))
    (tmp_path / "2").mkdir()
    with pytest.raises(DataError, match="several files x/a"):
        opened(tmp_path / "2", tarred(("1/x/a", b""), ("2/x/a", b"")))


def test_archives_that_are_cut_off(tmp_path):
    whole = tarred(("x/a", hashlib.sha256(b"").digest() * 9999))
    with pytest.raises(DataError, match=r"damaged|neither"):
        opened(tmp_path, whole[: len(whole) // 2])
    (tmp_path / "2").mkdir()
    with pytest.raises(DataError, match="neither a zip nor a tar archive"):
        opened(tmp_path / "2", gzip.compress(b"no archive" * 100))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08"]))
def test_any_bytes_are_an_archive_or_an_error(tmp_path_factory, content, start):
    with pytest.raises(DataError):
        opened(tmp_path_factory.mktemp("archive"), start + content)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    st.integers(0, 10**6),
    st.binary(min_size=1, max_size=4),
)
@example(zipfile.ZIP_LZMA, 60, b"****")
def test_a_damaged_zip_is_an_error_or_the_same_file(tmp_path_factory, method, place, damage):
    content = bytearray(zipped(method, **{"x/a": MD5 * 20}))
    place %= len(content)
    content[place : place + len(damage)] = damage
    folder = tmp_path_factory.mktemp("archive")
    with contextlib.suppress(DataError):
        _, out = opened(folder, bytes(content))
        assert (out / "a").read_text() == MD5 * 20


# -- on the command line -------------------------------------------------------------------------------------------


def call(*arguments, state=None):
    result = CliRunner().invoke(program, ["-q", "data", *map(str, arguments)], obj=state, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_fetching_and_listing_by_command(tmp_path, monkeypatch):
    with Server(zipped(**{"In/a.txt": "text"})) as server:
        entries = {"small": entry(server.address), "large": entry(name="large")}
        monkeypatch.setattr("xmckit.data.catalogue.catalogue", lambda: entries)
        monkeypatch.setenv("XMCKIT_DATA", str(tmp_path))

        def listed():
            return {found["name"]: found["state"] for found in json.loads(call("ls", "--json"))}

        assert (listed()["small"], listed()["large"]) == ("missing", "missing")
        facts = json.loads(call("fetch", "Small", "--json"))
        keys = "address bytes checked citation fetched folder licence name page"
        assert sorted(facts) == keys.split()
        assert (facts["name"], facts["fetched"], facts["checked"], facts["licence"]) == ("small", True, False, "free")
        assert facts["folder"] == str(tmp_path / "small")
        assert listed()["small"] == "there"
        shown = call("fetch", "small")
        assert "already complete" in shown
        assert "citation: Somebody, 1999" in shown
        (tmp_path / "small" / "a.txt").write_text("longer text")
        assert listed()["small"] == "damaged"
        assert "a.txt has 11 bytes, expected 4" in call("ls")
        with pytest.raises(DataError, match="large cannot be fetched"):
            call("fetch", "large")
        with pytest.raises(UsageError, match="did you mean 'small'"):
            call("fetch", "smal")


def test_an_interrupted_download_says_what_is_kept(tmp_path, monkeypatch):
    blocks, state = [b"x" * 1000], invocation.Call()

    def interrupted(answer):
        if blocks:
            return blocks.pop()
        raise KeyboardInterrupt

    monkeypatch.setattr("xmckit.data.download._read", interrupted)
    with Server() as server:
        monkeypatch.setattr("xmckit.data.catalogue.catalogue", lambda: {"small": entry(server.address)})
        with pytest.raises(click.Abort):
            call("fetch", "small", "--to", tmp_path, state=state)
    assert state.hints == ["1,000 bytes are kept: the same command resumes the download"]
