"""The catalogue of published data sets, the state of local copies, and the data set `repository`.

`catalogue.toml` holds the published facts. A local copy is a folder with the name of the set. `xmckit data fetch` makes
this folder and records size and checksum of every file in `fetched.json`, so that later changes are noticed even if no
checksum is published.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from xmckit import store
from xmckit.context import Context
from xmckit.errors import DataError, StorageError, UsageError, nearest
from xmckit.params import Configured, InputPath, Params

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from xmckit.data.files import Files
    from xmckit.data.model import Dataset

RECORD = "fetched.json"
State = Literal["there", "half-downloaded", "damaged", "missing"]


Size = Annotated[int, Field(ge=0)]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _CatalogueModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KnownFile(_CatalogueModel):
    """The size and checksum of a file, if known."""

    bytes: Size | None = None
    sha256: Sha256 | None = None


class _FetchRecord(BaseModel):
    """The part of `fetched.json` that is read back."""

    files: Mapping[str, KnownFile]


class ArchiveSource(_CatalogueModel):
    """A published archive, with its size and checksum if known."""

    address: str
    bytes: Size | None = None
    md5: Md5 | None = None
    sha256: Sha256 | None = None

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The strongest known checksum: algorithm and value."""
        checksums = (("sha256", self.sha256), ("md5", self.md5))
        return next(((algorithm, value) for algorithm, value in checksums if value), None)


class Entry(_CatalogueModel):
    """A data set in `catalogue.toml`; all numbers are the published ones."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    title: str
    about: str
    licence: str
    citation: str
    page: str
    by_hand: str
    rows: int | None = None
    test_rows: int | None = None
    features: int | None = None
    labels: int | None = None
    propensity: str | None = None
    sources: tuple[ArchiveSource, ...] = ()
    unpack: Mapping[str, str] = Field(default_factory=dict)
    files: Mapping[str, KnownFile] = Field(default_factory=dict)

    @property
    def needed(self) -> dict[str, KnownFile]:
        """The files of the set's folder, with their known sizes and checksums."""
        return {**{name: KnownFile() for name in self.unpack}, **self.files}


@functools.cache
def catalogue() -> Mapping[str, Entry]:
    """Return all sets of the catalogue by name."""
    content = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
    return {name: Entry(name=name, **facts) for name, facts in content.items()}


def find_entry(name: str) -> Entry:
    """Return the set of this name, in upper or lower case."""
    known = catalogue()
    entry = known.get(name.lower())
    if entry is None:
        raise UsageError(f"there is no data set '{name}'{nearest(name.lower(), known)} (known: {', '.join(known)})")
    return entry


def download_folder(folder: Path) -> Path:
    """Return the folder of an unfinished download, beside the folder of the set."""
    return folder.with_name(f".{folder.name}.download")


def downloaded_bytes(folder: Path) -> int:
    """Return the size of an unfinished download."""
    return sum(file.stat().st_size for file in download_folder(folder).glob("*") if file.suffix in (".part", ".done"))


def known_files(entry: Entry, folder: Path) -> dict[str, KnownFile]:
    """Return size and checksum of each file: as published, otherwise as recorded when it was fetched."""
    known = entry.needed
    if (folder / RECORD).is_file():
        try:
            recorded = _FetchRecord.model_validate(store.read_json(folder / RECORD)).files
        except ValueError:
            raise store.damaged(folder / RECORD, "it has no record of the fetched files") from None
        for name in known.keys() & recorded.keys():
            if known[name] == KnownFile():
                known[name] = recorded[name]
    return known


def faults(entry: Entry, folder: Path) -> list[str]:
    """Return the missing files and the files of wrong size."""
    problems = []
    for name, known in known_files(entry, folder).items():
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif known.bytes not in (None, size := (folder / name).stat().st_size):
            problems.append(f"{name} has {size:,} bytes, expected {known.bytes:,}")
    return problems


def state(entry: Entry, folder: Path) -> tuple[State, list[str]]:
    """Return the state of the set in `folder`, and what is wrong; checksums are not compared."""
    if folder.is_dir():
        try:
            wrong = faults(entry, folder)
        except StorageError as error:
            wrong = [str(error)]
        return ("damaged", wrong) if wrong else ("there", [])
    if waiting := downloaded_bytes(folder):
        return "half-downloaded", [f"{waiting:,} bytes are downloaded"]
    return "missing", []


def manual_steps(entry: Entry, folder: Path) -> str:
    """Describe how to get the set without `xmckit data fetch`."""
    names = ", ".join(entry.needed)
    if not entry.files:
        return f"put {names} into {folder}. {entry.by_hand} See {entry.page}"
    # Recreated files have the same content, but other bytes and checksums.
    return f"copy {names} into {folder}, or recreate them and read them as `files`. {entry.by_hand} See {entry.page}"


def how_to_get(name: str, folders: Sequence[Path]) -> str:
    """Describe how to get a set that no data folder has."""
    entry = catalogue().get(name.lower())
    if entry is None:
        return f"no data set has that name{nearest(name.lower(), catalogue())} (`xmckit data ls` lists them)"
    if name != entry.name:
        return f"the name of that set is written '{entry.name}'"
    root = folders[0] if folders else Path("data")
    hand = manual_steps(entry, root / name)
    if not entry.sources:
        return f"it cannot be fetched: {hand}"
    for folder in folders:
        if downloaded_bytes(folder / name):
            return f"it is half-downloaded: resume with `xmckit data fetch {name} --to {folder}`"
    return f"fetch it with `xmckit data fetch {name} --to {root}`, or {hand}"


class Repository(Configured):
    class Params(Params):
        name: Annotated[Path, InputPath(missing=how_to_get)] = Field(
            description="The name of the set, as `xmckit data ls` lists it: a folder in one of the data folders.",
        )
        split: int = Field(0, ge=0, description="The random split to use, if the set has several.")

    _checked = False

    @property
    def entry(self) -> Entry:
        return find_entry(self.params.name.name)

    def fingerprint(self, *, context: Context) -> Mapping[str, str]:
        """Check all files of the set. Return the checksum of every input file."""
        folder = self.params.name
        wrong = faults(self.entry, folder) if folder.is_dir() else [how_to_get(folder.name, [folder.parent])]
        if wrong:
            raise self._not_the_set(wrong)
        prints = self._files.fingerprint(context=context)
        known = known_files(self.entry, folder)
        changed = [
            f"{name} has changed: its SHA-256 is {prints[name]}, expected {known[name].sha256}"
            for name in prints.keys() & known.keys()
            if known[name].sha256 not in (None, prints[name])
        ]
        if changed:
            raise self._not_the_set(sorted(changed))
        self._checked = True
        return prints

    def read(self, *, context: Context) -> Dataset:
        if not self._checked:
            self.fingerprint(context=context)
        dataset, entry = self._files.read(context=context), self.entry
        actual = {
            "rows": dataset.train.rows,
            "test_rows": dataset.test.rows,
            "features": sum(int(block.shape[1]) for block in dataset.train.blocks.values()),
            "labels": dataset.labels,
        }
        wrong = [
            f"{count:,} {name.replace('_', ' ')}, published are {published:,}"
            for name, count in actual.items()
            if (published := getattr(entry, name)) not in (None, count)
        ]
        if wrong:
            raise self._not_the_set(wrong)
        facts = {"title": entry.title, "licence": entry.licence, "citation": entry.citation, "page": entry.page}
        return replace(
            dataset,
            name=entry.name,
            propensity=dataset.propensity or entry.propensity,
            info={**dataset.info, **facts},
        )

    @property
    def _files(self) -> Files:
        from xmckit.data.files import Files

        reader = {"reader": {"use": "xmc", "split": self.params.split}} if self.params.split else {}
        return Files(path=self.params.name, **reader)

    def _not_the_set(self, reasons: Sequence[str]) -> DataError:
        name, folder = self.entry.name, self.params.name
        again = f"delete the folder and `xmckit data fetch {name} --to {folder.parent}`" if self.entry.sources else ""
        way_out = again or manual_steps(self.entry, folder)
        return DataError(
            f'this is not the set {name}: {"; ".join(reasons)}. To use the files as they are, set use = "files" and '
            f'path = "{folder}"; to get the set, {way_out}',
            path=folder,
        )
