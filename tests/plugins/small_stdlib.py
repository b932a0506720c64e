"""A part of the standard library that is read in no time."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from xmckit.data.python_source import StdlibCalls


class SmallStdlib(StdlibCalls):
    @property
    def folder(self) -> Path:
        return Path(sysconfig.get_path("stdlib")) / "json"
