"""The data set `files`: a file or folder in any format that has a reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from xmckit import store
from xmckit.context import Context
from xmckit.errors import DataError, PluginError, UsageError, nearest
from xmckit.params import Configured, DataPath, Params, ReaderSpec, Spec
from xmckit.store.limits import UNLIMITED_GROWTH, Limits

if TYPE_CHECKING:
    from xmckit.data.model import Dataset
    from xmckit.protocols import Reader

AUTO: Final = "auto"
_DEFAULTS = Limits()


class Files(Configured):
    class Params(Params):
        path: DataPath = Field(description="The file or folder.")
        reader: Literal["auto"] | ReaderSpec = Field(
            AUTO,
            description='The format: a reader, alone or with its parameters; "auto" finds the reader that fits.',
        )

        groups: DataPath | None = Field(
            None,
            description="A text file with a line for each training row: its group, or groups separated by tabs.",
        )
        group_labels: DataPath | None = Field(
            None,
            description="A text file with a line for each group: its name and its labels, separated by tabs; without "
            "it a group has the labels of its rows.",
        )

        max_claim: int | None = Field(
            None,
            ge=1,
            description="The most rows, features or labels that a file may claim without having as many bytes "
            f"(default: {_DEFAULTS.max_claim:,}).",
        )
        max_growth: int | None = Field(
            None,
            ge=1,
            description="How many times as large as a compressed file its content may be, if it has more than "
            f"{UNLIMITED_GROWTH >> 20} MiB (default: {_DEFAULTS.max_growth}).",
        )

        @field_validator("reader", mode="before")
        @classmethod
        def _name_alone(cls, value: Any) -> Any:
            return {"use": value} if isinstance(value, str) and value != AUTO else value

    def fingerprint(self, *, context: Context) -> Mapping[str, str]:
        """Return the checksum of every input file, by its name below `path`, or by its parameter."""
        path = self.params.path
        folder = path if path.is_dir() else path.parent
        files = {file.relative_to(folder).as_posix(): file for file in sorted(self._reader(context).files(path))}
        files |= {f"({name})": file for name in ("groups", "group_labels") if (file := getattr(self.params, name))}
        try:
            total = sum(file.stat().st_size for file in files.values())
            with context.progress("checksums", total=total) as bar:
                return {name: store.file_sha256(file, bar.advance) for name, file in files.items()}
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=error.filename or path) from None

    def read(self, *, context: Context) -> Dataset:
        from xmckit.data.group_files import with_groups

        groups, group_labels = self.params.groups, self.params.group_labels
        if groups is None and group_labels is not None:
            raise UsageError("group_labels needs groups: it lists the labels of groups, and groups lists their rows")
        with store.use_limits(max_claim=self.params.max_claim, max_growth=self.params.max_growth):
            dataset = self._reader(context).read(self.params.path, context=context)
            if groups is not None:
                dataset = with_groups(dataset, groups, group_labels)
        train = dataset.train
        if not train.Y.nnz and (train.groups is None or not train.groups.labels.nnz):
            raise DataError(
                "neither a training row nor a group has a label; `xmckit plugins show reader:NAME` says in which field "
                "or file the reader expects labels",
                path=self.params.path,
            )
        return dataset

    def _reader(self, context: Context) -> Reader:
        return find_reader(self.params.path, self.params.reader, context=context)


def find_reader(path: Path, reader: str | Spec, *, context: Context) -> Reader:
    """Return the named reader, or for `auto` the reader that matches `path`."""
    if not path.exists():
        raise DataError("no such file or folder", path=path)
    known = sorted(context.names("reader"))
    if isinstance(reader, Spec):
        if reader.use not in known:
            raise UsageError(
                f"there is no reader {reader.use!r} (known: {', '.join(known)}){nearest(reader.use, known)}"
            )
        return _build_reader(reader.use, reader.options, context)
    usable = _loadable(known, context)
    fitting = [name for name, target in usable.items() if target().matches(path)]
    if len(fitting) == 1:
        return _build_reader(fitting[0], {}, context)
    if fitting:
        raise UsageError(f"{path}: several readers fit ({', '.join(fitting)}). Choose one with `reader`.")
    from xmckit.protocols import ReaderWithHint, offers

    hints = {name: target.looks_for for name, target in usable.items() if offers(target, ReaderWithHint)}
    formats = "; ".join(f"{name}: {hints.get(name, 'its own files')}" for name in usable)
    raise DataError(f"no reader matches. They look for: {formats}", path=path)


def _loadable(names: list[str], context: Context) -> dict[str, type]:
    """Return the readers that load; log the readers of broken plugins."""
    usable = {}
    for name in names:
        try:
            usable[name] = context.resolve("reader", name)
        except PluginError as error:
            context.log(f"skipped the reader {name}: {error}")
    return usable


def _build_reader(name: str, options: Mapping[str, Any], context: Context) -> Reader:
    target = context.resolve("reader", name)
    try:
        return target(**options)
    except ValidationError as error:
        known = list(target.Params.model_fields)
        mistakes = "; ".join(_mistake(mistake, known) for mistake in error.errors())
        raise UsageError(f"the options of the reader {name} are wrong: {mistakes}") from None


def _mistake(mistake: Any, known: list[str]) -> str:
    option = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        return f"{option}: unknown{nearest(option, known)} (options: {', '.join(known) or 'none'})"
    return f"{option}: {mistake['msg']}, found {mistake['input']!r}"
