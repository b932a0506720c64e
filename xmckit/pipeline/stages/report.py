"""The report stage: the last of a run. It writes to the top of the run folder, every time, and is never cached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.context import Context
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import Stage, keys_of
from xmckit.report.run_report import write_report
from xmckit.runs import Run, layout


class ReportStage(Stage[Path]):
    """Links the files that people look for to the top of the run folder, and writes the report."""

    cached = False

    def __init__(self, setup: Setup, stages: Sequence[Stage[Any]]):
        super().__init__(setup, layout.REPORT_STAGE)
        self._stages = stages

    def identity(self) -> dict[str, Any]:
        return {"kind": "report", "inputs": keys_of(*self._stages)}

    def produce(self, folder: Path, context: Context) -> Path:
        for stage in self._stages:
            for file in layout.COPIES_AT_TOP.get(stage.name, ()):
                store.compare_file(stage.folder / file)
                store.link_file(stage.folder / file, folder / file)
        return write_report(Run.open(folder))

    def restore(self, folder: Path) -> Path:
        return Run.open(folder).report
