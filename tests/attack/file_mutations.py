"""Structure-aware mutations of files: claims, offsets, types and tokens at their boundaries, besides flipped bits.

`mutate(name, content, rng)` chooses by the name of the file; equal seeds give equal files.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import lzma
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from xmckit.store.npy import DAMAGE

NUMBERS = [
    -(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -2, -1, 0, 1, 2, 3, 7, 255, 256, 65535, 65536, 10**6, 10_000_001,
    2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
]  # fmt: skip
TOKENS = [
    *(str(number).encode() for number in NUMBERS), b"nan", b"inf", b"-inf", b"1e999", b"-1e999", b"1e-999", b"3.5e38",
    b"1e39", b"0x10", b"1_0", b"+1", b"01", b".", b"-", b"e", b":", b",", b"#", b"\t", b"\r", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b"1:", b":1", b"1:1:1", b"1,", b"9" * 400, "é".encode(), "\u2028".encode(), b"",
]  # fmt: skip
DTYPES = [
    "<f4", ">f4", "<f8", "<f2", "<i1", "<i2", "<i4", ">i4", "<i8", ">i8", "<u4", "<u8", "|b1", "|S3", "|S0", "<U3",
    ">U2", "<U0", "|O", "|V8", "<c8", "<M8[s]", "<m8", "f4,i8", "(3,)f4", "(1000000,1000000)f4", "<f16", "|u1",
    "garbage", "",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, *NUMBERS, 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf"), "", "x", "\ud800", "\x00",
    "../../x", [], [[]], {}, {"x": 1}, [1, "a", None], [0] * 50, "9" * 300,
]  # fmt: skip


def mutate(name: str, content: bytes, rng: random.Random) -> bytes:
    """Return a changed copy of a file's content."""
    for suffix, change in _BY_SUFFIX.items():
        if name.endswith(suffix):
            try:
                return change(content, rng)
            except (
                *DAMAGE,
                MemoryError,
                lzma.LZMAError,
            ):  # an earlier change broke the structure that this one looks for
                return raw(content, rng)
    return _text(content, rng)


def _several(content: bytes, rng: random.Random, changes: list[Callable[[bytes, random.Random], bytes]]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(changes)(content, rng)
    return content


# Bytes ---------------------------------------------------------------------------------------------------------------


def raw(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, write numbers of 1 to 8 bytes, cut, repeat, insert."""
    if not content:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(20)))
    data, place, choice = bytearray(content), rng.randrange(len(content)), rng.randrange(8)
    if choice < 2:
        data[place] ^= 1 << rng.randrange(8)
    elif choice == 2:
        size = rng.choice("BHIQ")
        packed = struct.pack(f"<{size}", rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(size)))
        data[place : place + len(packed)] = packed
    elif choice == 3:
        del data[place:]
    elif choice == 4:
        del data[place : place + rng.randrange(1, 40)]
    elif choice == 5:
        data[place:place] = data[rng.randrange(len(data)) :][: rng.randrange(1, 200)]
    elif choice == 6:
        data[place:place] = rng.choice(TOKENS)
    else:
        data = data[place:] + data[:place]
    return bytes(data)


# Text ----------------------------------------------------------------------------------------------------------------

_WORD = re.compile(rb"[^\s:,]+|[:,\s]")


def _token(content: bytes, rng: random.Random) -> bytes:
    words = list(_WORD.finditer(content))
    if not words:
        return rng.choice(TOKENS)
    word = rng.choice(words[:6] if rng.random() < 0.3 else words)  # headers often
    return content[: word.start()] + rng.choice(TOKENS) + content[word.end() :]


def _lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    choice = rng.randrange(5)
    if choice == 0:
        del lines[place]
    elif choice == 1:
        lines.insert(place, lines[rng.randrange(len(lines))])
    elif choice == 2:
        lines.insert(place, rng.choice(TOKENS))
    elif choice == 3:
        words = lines[place].split(b" ")
        rng.shuffle(words)
        lines[place] = b" ".join(words)
    else:
        lines[place] = lines[place] * rng.choice((2, 50))
    return b"\n".join(lines)


def _text(content: bytes, rng: random.Random) -> bytes:
    return _several(content, rng, [_token, _token, _lines, raw])


# JSON ----------------------------------------------------------------------------------------------------------------


def change_json(value: Any, rng: random.Random) -> Any:
    """Return a copy with one value replaced, removed or added, anywhere in it."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(part: Any) -> None:
        keys = part.keys() if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            places.append((part, key))
            collect(part[key])

    collect(value)
    if not places or rng.random() < 0.05:
        return rng.choice(VALUES)
    part, key = rng.choice(places)
    choice = rng.randrange(6)
    if choice == 0:
        del part[key]
    elif choice == 1 and isinstance(part, dict):
        part[rng.choice(("x", "", "version", "\u2028"))] = rng.choice(VALUES)
    elif choice == 2 and isinstance(part[key], (int, float)) and not isinstance(part[key], bool):
        part[key] = rng.choice((part[key] + 1, -part[key], part[key] * 10**9, float(part[key]), str(part[key])))
    elif choice == 3 and isinstance(part, list):
        part.append(copy.deepcopy(part[key]))
    else:
        part[key] = rng.choice(VALUES)
    return value


def _json(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return _text(content, rng)
    return json.dumps(change_json(json.loads(content), rng)).encode("utf-8", "surrogatepass")


def _json_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = rng.choice((_json, _json, _json, raw))(lines[place], rng)
    if rng.random() < 0.03:
        lines[place] = rng.choice((b"[" * 100_000, b'{"text": "' + b"x" * 100_000, b"1" * 5000, b'{"a":' * 5000))
    return b"\n".join(lines)


# npy and npz ---------------------------------------------------------------------------------------------------------


def _npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def _header(content: bytes, rng: random.Random) -> bytes:
    """Change the header of an npy: type, shape, order, length, version or text."""
    stream = io.BytesIO(content)
    np.lib.format.read_magic(stream)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    body = content[stream.tell() :]
    header: dict[str, Any] = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    choice = rng.randrange(8)
    if choice == 0:
        header["descr"] = rng.choice(DTYPES)
    elif choice in (1, 2):
        sizes = list(shape) or [1]
        sizes[rng.randrange(len(sizes))] = rng.choice(NUMBERS)
        header["shape"] = tuple(sizes)
    elif choice == 3:
        header["shape"] = rng.choice(
            ((), (10**12, 0), (0, 10**12), (-1,), shape * 2, shape[::-1], (1,) * 70, "x", None)
        )
    elif choice == 4:
        header["fortran_order"] = rng.choice((True, 1, None, "x"))
    elif choice == 5:
        header.pop(rng.choice(list(header)))
    text = repr(header)
    if choice == 6:
        text = rng.choice(
            ("(" * 3000, "-" * 6000, "{" * 200, "[" * 9000, text.replace(")", "L,)"), text + "\x00", "0" * 9000)
        )
    encoded = text.encode("latin1", "replace") + b"\n"
    length = len(encoded) if choice != 7 else rng.choice((0, 1, 10, 65535, len(encoded) + 7))
    version = rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00")) if rng.random() < 0.1 else b"\x01\x00"
    packed = struct.pack("<H", length % 65536) if version == b"\x01\x00" else struct.pack("<I", length)
    return b"\x93NUMPY" + version + packed + encoded + body


def _array(content: bytes, rng: random.Random) -> bytes:
    """Change values, type, shape or order of an array; the result is a valid npy."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    choice = rng.randrange(8)
    with np.errstate(all="ignore"):
        if choice <= 2 and array.size and array.dtype.kind in "iuf":
            flat = array.reshape(-1).copy()
            place = rng.choice((0, -1, rng.randrange(len(flat))))
            if array.dtype.kind == "f":
                flat[place] = rng.choice((np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0, 1e-45))
            else:
                near = [int(flat[place]) + 1, int(flat[place]) - 1, len(flat), *NUMBERS]
                limits = np.iinfo(array.dtype)
                flat[place] = min(max(rng.choice(near), int(limits.min)), int(limits.max))
            array = flat.reshape(array.shape)
        elif choice == 3:
            kind = rng.choice(
                ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u4", "u8", "b1", ">i4", ">f4", "S4", "U4", "c8")
            )
            array = array.astype(kind)
        elif choice == 4:
            array = array[: rng.randrange(len(array) + 1)] if array.ndim else array.reshape(1)
        elif choice == 5:
            array = np.concatenate([array, array]) if array.ndim else np.stack([array, array])
        elif choice == 6:
            array = np.asfortranarray(array.reshape(-1, 1) if rng.random() < 0.5 else array[None])
        elif array.ndim and len(array) > 1:
            array = array[::-1].copy()
    return _npy_bytes(array)


def _npy(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((_header, _header, _array, _array, raw))(content, rng)


_CENTRAL, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def _directory(content: bytes, rng: random.Random) -> bytes:
    """Change a field of a record of the archive: flags, method, checksum, sizes, lengths of names, offsets."""
    signature = rng.choice((_CENTRAL, _CENTRAL, _LOCAL, _END))
    places = [match.start() for match in re.finditer(re.escape(signature), content)]
    if not places:
        return raw(content, rng)
    fields = {
        _CENTRAL: (6, 8, 10, 16, 20, 24, 28, 30, 32, 42),
        _LOCAL: (6, 8, 14, 18, 22, 26, 28),
        _END: (8, 10, 12, 16, 20),
    }
    data, at = bytearray(content), rng.choice(places) + rng.choice(fields[signature])
    size = rng.choice("HI")
    packed = struct.pack(f"<{size}", rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(size)))
    data[at : at + len(packed)] = packed
    return bytes(data)


def _members(content: bytes, rng: random.Random) -> bytes:
    """Rebuild the archive with a member changed, removed, doubled, renamed or compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    method, choice = zipfile.ZIP_STORED, rng.randrange(10)
    if members:
        place = rng.randrange(len(members))
        name, body = members[place]
        if choice <= 5:
            members[place] = name, _npy(body, rng)
        elif choice == 6:
            del members[place]
        elif choice == 7:
            members.append(
                (rng.choice((name, "x.npy", "dense.npy", "indptr.npy")), members[rng.randrange(len(members))][1])
            )
        elif choice == 8:
            members[place] = rng.choice(("x", "", "shape.npy", "../x.npy")), body
        else:
            method = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        written: set[str] = set()
        for name, body in members:
            if name in written:  # zipfile warns about it, and numpy takes the last one
                continue
            written.add(name)
            archive.writestr(zipfile.ZipInfo(name), body, method)
    return stream.getvalue()


def _npz(content: bytes, rng: random.Random) -> bytes:
    return _several(content, rng, [_members, _members, _members, _directory, raw])


# safetensors, gzip ---------------------------------------------------------------------------------------------------


def _safetensors(content: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    choice = rng.randrange(6)
    if choice <= 2:
        header = change_json(json.loads(content[8 : 8 + length]), rng)
        if choice == 2 and isinstance(header, dict) and header:
            entry = header[rng.choice(list(header))]
            if isinstance(entry, dict) and "dtype" in entry:
                entry["dtype"] = rng.choice(
                    ("F64", "F32", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "C64", "X", "U16")
                )
        encoded = json.dumps(header).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]
    if choice == 3:
        return struct.pack("<Q", rng.choice(NUMBERS) % 2**64) + content[8:]
    if choice == 4 and len(content) > 8 + length + 8:
        data = bytearray(content)
        at = 8 + length + 4 * rng.randrange((len(content) - 8 - length) // 4)
        data[at : at + 4] = rng.choice((struct.pack("<f", float("nan")), struct.pack("<f", float("inf")), b"\xff" * 4))
        return bytes(data)
    return raw(content, rng)


def _gzip(content: bytes, rng: random.Random) -> bytes:
    choice = rng.randrange(4)
    if choice == 0:
        return raw(content, rng)
    if choice == 1:
        return content + rng.choice((content, b"x", b"\x00" * 20, content[:10]))
    return gzip.compress(_text(gzip.decompress(content), rng), 1, mtime=0)


_BY_SUFFIX: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".npz": _npz, ".npy": _npy, ".jsonl": _json_lines, ".json": _json, ".safetensors": _safetensors, ".gz": _gzip,
    ".faiss": raw,
}  # fmt: skip
