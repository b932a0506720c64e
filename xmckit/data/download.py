"""One file from the network: resumed where it broke off, and kept only when it is the file that was asked for.

What has come waits in a `.part` file beside a note of which version of the file it belongs to (ETag or Last-Modified),
so that a file that changes between two attempts is begun anew and two versions are never mixed.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import os
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from xmckit import __version__, store
from xmckit.context import Progress, silent
from xmckit.data.catalogue import ArchiveSource
from xmckit.errors import DataError, UsageError

BLOCK = 1 << 18
MAX_ATTEMPTS = 100
LONGEST_WAIT = 30.0
# Answers that may be another one later: time-out, too many requests, and whatever is wrong with a server.
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class TransferError(DataError):
    """A file that could not be had."""


class _Interrupted(Exception):
    """The connection ended, or was never made; another try may help."""


@dataclass(frozen=True)
class RetryPolicy:
    """How many seconds to wait for a server, and how often to try without getting anything new."""

    timeout: float = 60.0
    tries: int = 5
    sleep: Callable[[float], None] = time.sleep


def check_address(address: str, *, has_checksum: bool) -> None:
    """Refuse what is not https; http is for this machine itself, or where a checksum tells a changed file."""
    parts = urllib.parse.urlsplit(address)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise UsageError(f"{address}: only https addresses are fetched")
    if parts.scheme == "http" and not has_checksum and not _is_loopback(parts.hostname):
        raise UsageError(f"{address}: without a known checksum only https addresses are fetched")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def download(
    source: ArchiveSource, folder: Path, *, progress: Progress = silent, retry: RetryPolicy | None = None
) -> Path:
    """The complete file of `source`, in the existing `folder`; it goes on with what an earlier call left there."""
    retry = retry or RetryPolicy()
    check_address(source.address, has_checksum=source.checksum is not None)
    part = _Part(folder, source.address)
    if part.done.is_file():
        return part.done
    most, idle = part.size, 0
    for _ in range(MAX_ATTEMPTS):
        try:
            _attempt(source, part, progress, retry.timeout)
        except _Interrupted as error:
            idle = 0 if part.size > most else idle + 1
            most = max(most, part.size)
            if idle >= retry.tries:
                raise _failure(part, str(error)) from None
            retry.sleep(min(2.0**idle, LONGEST_WAIT))
        else:
            if _matches_published(source, part):
                return part.complete()
    raise _failure(part, f"it broke off {MAX_ATTEMPTS} times")


class _Part:
    """What has come of a file, and of which version of it. Without a version it cannot be gone on with."""

    def __init__(self, folder: Path, address: str):
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        self.address = address
        self.path, self._note, self.done = (folder / f"{name}.{suffix}" for suffix in ("part", "json", "done"))
        self.version: str | None = None
        self.total: int | None = None
        self.resumed = False
        note = store.read_json(self._note) if self._note.is_file() else None
        if isinstance(note, dict) and note.get("address") == address and self.path.is_file():
            self.version, self.total = note.get("version"), note.get("total")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def begin(self, version: str | None, total: int | None) -> None:
        """Forget what has come; the file that comes now is this version."""
        self.forget()
        self.version, self.total = version, total
        store.write_json(self._note, {"address": self.address, "version": version, "total": total})

    def forget(self) -> None:
        self.version, self.total, self.resumed = None, None, False
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def complete(self) -> Path:
        os.replace(self.path, self.done)
        self._note.unlink(missing_ok=True)
        return self.done


def _failure(part: _Part, why: str) -> TransferError:
    kept = f". {part.size:,} bytes are kept for the next time" if part.version and part.size else ""
    return TransferError(f"{part.address}: {why}{kept}")


def _attempt(source: ArchiveSource, part: _Part, progress: Progress, timeout: float) -> None:
    """Ask for what is missing and write down what comes, until there is no more of it."""
    asked = part.size if part.version else 0
    if asked and asked == part.total:
        return
    wanted = {"Range": f"bytes={asked}-", "If-Range": part.version} if asked and part.version else {}
    with _open(source, part, wanted, timeout) as answer:
        start = _begin_or_resume(source, part, answer, asked)
        most = part.total if part.total is not None else source.bytes
        _check_disk_space(part, most)
        what = f"fetching from {urllib.parse.urlsplit(source.address).hostname}"
        with open(part.path, "ab") as stream, progress(what, total=most) as bar:
            bar.advance(start)
            while block := _read(answer):
                stream.write(block)
                bar.advance(len(block))
                if most is not None and stream.tell() > most:
                    raise TransferError(f"{source.address}: more came than the {most:,} bytes that were promised")
    if part.total is not None and part.size < part.total:
        raise _Interrupted(f"it broke off after {part.size:,} of {part.total:,} bytes")


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read1(BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"it broke off: {_reason(error)}") from None


def _begin_or_resume(source: ArchiveSource, part: _Part, answer: http.client.HTTPResponse, asked: int) -> int:
    """Where in the file the answer begins; a part that it does not continue is forgotten."""
    version = _version(answer.headers)
    if answer.status == 206:
        begin, total = _content_range(answer.headers)
        if asked and begin == asked and part.total in (None, total) and version in (None, part.version):
            part.resumed = True
            return asked
        part.forget()
        raise _Interrupted("the server sent another part of the file than was asked for")
    total = _number(answer.headers.get("Content-Length", ""))
    if source.bytes is not None and total not in (None, source.bytes):
        raise TransferError(f"{source.address}: the server has {total:,} bytes, published are {source.bytes:,}")
    part.begin(version, total)
    return 0


def _version(headers: Message) -> str | None:
    """What tells this version of the file from any other, as If-Range takes it."""
    tag = headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return str(tag)
    changed = headers.get("Last-Modified")
    return None if changed is None else str(changed)


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """(first byte, bytes of the whole file) of an answer that is a part."""
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    return (_number(span.partition("-")[0]), _number(total)) if unit == "bytes" else (None, None)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _check_disk_space(part: _Part, total: int | None) -> None:
    free = shutil.disk_usage(part.path.parent).free
    if total is not None and total - part.size > free:
        raise DataError(f"{total - part.size:,} bytes are to come and {free:,} are free", path=part.path.parent)


def _matches_published(source: ArchiveSource, part: _Part) -> bool:
    """Whether size and checksum are those that were published; a resumed file of which they are not is begun anew."""
    checksum, wrong = source.checksum, ""
    if source.bytes is not None and part.size != source.bytes:
        wrong = f"{part.size:,} bytes came, published are {source.bytes:,}"
    elif checksum is not None and (found := _digest(part.path, checksum[0])) != checksum[1]:
        wrong = f"its {checksum[0].upper()} is {found}, published is {checksum[1]}"
    if not wrong:
        return True
    resumed, why = part.resumed, web_page_hint(part.path) or "It was changed or damaged"
    part.forget()
    if resumed:
        return False
    raise TransferError(f"{source.address}: {wrong}. {why}, and nothing of it was kept")


def web_page_hint(file: Path) -> str:
    """What to say of a file that is a web page in the place of an archive; nothing of any other."""
    with open(file, "rb") as stream:
        start = stream.read(512).lstrip().lower()
    page = start.startswith((b"<!doctype html", b"<html"))
    return "The server sent a web page, perhaps one that asks for something" if page else ""


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


# -- the connection ------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows only to addresses that could have been asked for in the first place."""

    def __init__(self, has_checksum: bool):
        self.has_checksum = has_checksum

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        try:
            check_address(newurl, has_checksum=self.has_checksum)
        except UsageError as error:
            raise TransferError(f"{req.full_url} leads on to {error}") from None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(source: ArchiveSource) -> urllib.request.OpenerDirector:
    """Speaks http and https and nothing else; urllib's own would also open files."""
    opener = urllib.request.OpenerDirector()
    host = urllib.parse.urlsplit(source.address).hostname or ""
    for handler in (
        urllib.request.ProxyHandler({} if _is_loopback(host) else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(source.checksum is not None),
    ):
        opener.add_handler(handler)
    return opener


def _open(source: ArchiveSource, part: _Part, headers: Mapping[str, str], timeout: float) -> http.client.HTTPResponse:
    agent = {"User-Agent": f"xmckit/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(source.address, headers={**agent, **headers})
    try:
        answer: http.client.HTTPResponse = _opener(source).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        said = f"the server answered {error.code} {error.reason}"
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.forget()
        elif error.code not in _RETRY_STATUS:
            raise TransferError(f"{source.address}: {said}") from None
        raise _Interrupted(said) from None
    except (http.client.HTTPException, OSError) as error:
        if isinstance(getattr(error, "reason", error), (socket.gaierror, ssl.SSLCertVerificationError)):
            raise TransferError(f"{source.address}: there is no way to it from here: {_reason(error)}") from None
        raise _Interrupted(f"no connection: {_reason(error)}") from None
    except ValueError as error:
        raise TransferError(f"{source.address} leads on to what is no address: {error}") from None
    return answer


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
