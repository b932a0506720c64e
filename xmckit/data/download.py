"""Download one file: resume interrupted downloads, and keep only a file that matches its published checksum.

Received bytes are stored in a `.part` file, beside a note with the version of the file (ETag or Last-Modified). If the
file changes between two attempts, the download restarts, so that two versions are never mixed.
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
from xmckit.errors import DataError, UsageError, name_file_in_errors

BLOCK = 1 << 18
MAX_ATTEMPTS = 100
LONGEST_WAIT = 30.0
# Status codes after which another attempt may succeed: time-out, too many requests, server errors.
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class TransferError(DataError):
    """The download failed."""


class _Interrupted(Exception):
    """The connection failed or ended early; another attempt may succeed."""


@dataclass(frozen=True)
class RetryPolicy:
    """Seconds to wait for a server, and the number of attempts without new bytes."""

    timeout: float = 60.0
    tries: int = 5
    sleep: Callable[[float], None] = time.sleep


def check_address(address: str, *, has_checksum: bool) -> None:
    """Raise UsageError unless the address is https; http is allowed on this machine or with a known checksum."""
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


def download(source: ArchiveSource, folder: Path, *, progress: Progress = silent, retry: RetryPolicy) -> Path:
    """Download the file of `source` into the existing `folder`; resume what an earlier call left there."""
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
    raise _failure(part, f"the connection broke off {MAX_ATTEMPTS} times")


class _Part:
    """The received part of a file, and the version of the file. Without a version it cannot be resumed."""

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
        """Discard the received part and start with this version."""
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
    """Request the missing bytes and write what arrives, until the response ends."""
    received = part.size if part.version else 0
    if received and received == part.total:
        return
    headers = {"Range": f"bytes={received}-", "If-Range": part.version} if received and part.version else {}
    with _open(source, part, headers, timeout) as response:
        _begin_or_resume(source, part, response, received)
        most = part.total if part.total is not None else source.bytes
        missing, free = (most or 0) - part.size, shutil.disk_usage(part.path.parent).free
        if missing > free:
            raise DataError(f"{missing:,} bytes are missing and only {free:,} are free", path=part.path.parent)
        what = f"fetching from {urllib.parse.urlsplit(source.address).hostname}"
        with name_file_in_errors(part.path), open(part.path, "ab") as stream, progress(what, total=most) as bar:
            bar.advance(part.size)
            while block := _read(response):
                stream.write(block)
                bar.advance(len(block))
                if most is not None and stream.tell() > most:
                    raise TransferError(f"{source.address}: the server sent more than the expected {most:,} bytes")
    if part.total is not None and part.size < part.total:
        raise _Interrupted(f"it broke off after {part.size:,} of {part.total:,} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"it broke off: {_reason(error)}") from None


def _begin_or_resume(source: ArchiveSource, part: _Part, response: http.client.HTTPResponse, received: int) -> None:
    """Keep the part if the response continues it, otherwise discard it."""
    version = _version(response.headers)
    if response.status == 206:
        begin, total = _content_range(response.headers)
        if received and begin == received and part.total in (None, total) and version in (None, part.version):
            part.resumed = True
            return
        part.forget()
        raise _Interrupted("the server sent another part of the file than requested")
    total = _number(response.headers.get("Content-Length", ""))
    if source.bytes is not None and total not in (None, source.bytes):
        raise TransferError(f"{source.address}: the server has {total:,} bytes, expected {source.bytes:,}")
    part.begin(version, total)


def _version(headers: Message) -> str | None:
    """Return the version of the file, in a form that If-Range accepts."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """Return (first byte, size of the whole file) of a partial response."""
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    return (_number(span.partition("-")[0]), _number(total)) if unit == "bytes" else (None, None)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _matches_published(source: ArchiveSource, part: _Part) -> bool:
    """Compare size and checksum with the published ones; discard a file that differs, and retry if it was resumed."""
    wrong = ""
    algorithm, expected = source.checksum or ("", "")
    if source.bytes is not None and part.size != source.bytes:
        wrong = f"received {part.size:,} bytes, expected {source.bytes:,}"
    elif algorithm and (digest := store.file_sha256(part.path, algorithm=algorithm)) != expected:
        wrong = f"its {algorithm.upper()} is {digest}, expected {expected}"
    if not wrong:
        return True
    resumed, why = part.resumed, web_page_hint(part.path) or "The file was changed or damaged"
    part.forget()
    if resumed:
        return False
    raise TransferError(f"{source.address}: {wrong}. {why}; it was deleted")


def web_page_hint(file: Path) -> str:
    """Return a hint if the file is a web page instead of an archive, otherwise an empty text."""
    with open(file, "rb") as stream:
        start = stream.read(512).lstrip().lower()
    page = start.startswith((b"<!doctype html", b"<html"))
    return "The server sent a web page, perhaps one that asks for confirmation" if page else ""


# -- the connection ------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects only to addresses that `check_address` accepts."""

    def __init__(self, has_checksum: bool):
        self.has_checksum = has_checksum

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        try:
            check_address(newurl, has_checksum=self.has_checksum)
        except UsageError as error:
            raise TransferError(f"{req.full_url} redirects to {error}") from None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(source: ArchiveSource, part: _Part, headers: Mapping[str, str], timeout: float) -> http.client.HTTPResponse:
    agent = {"User-Agent": f"xmckit/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(source.address, headers={**agent, **headers})
    host = urllib.parse.urlsplit(source.address).hostname or ""
    proxies = urllib.request.ProxyHandler({} if _is_loopback(host) else None)
    # It could open files too, but `check_address` accepts neither their addresses nor redirects to them.
    opener = urllib.request.build_opener(proxies, _Redirects(source.checksum is not None))
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        status = f"the server answered {error.code} {error.reason}"
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.forget()
        elif error.code not in _RETRY_STATUS:
            raise TransferError(f"{source.address}: {status}") from None
        raise _Interrupted(status) from None
    except (http.client.HTTPException, OSError) as error:
        if isinstance(getattr(error, "reason", error), (socket.gaierror, ssl.SSLCertVerificationError)):
            raise TransferError(f"cannot connect to {source.address}: {_reason(error)}") from None
        raise _Interrupted(f"no connection: {_reason(error)}") from None
    except ValueError as error:
        raise TransferError(f"{source.address} redirects to an invalid address: {error}") from None
    return response


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
