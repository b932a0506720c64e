"""Run folders as an API: find and open runs, read their files as typed records.

Public: `Run`, `find_run`, `find_runs` and the names below; `layout` has every file name, `records` every record.
Imports nothing above `xmckit.registry`; the pipeline writes what this package reads.
"""

from __future__ import annotations

from xmckit.runs.find import DEFAULT_ROOT, find_run, find_run_folders, find_runs
from xmckit.runs.records import (
    ComponentFacts,
    HeadFacts,
    HeadVerdicts,
    LabelFacts,
    Manifest,
    Metrics,
    Mismatch,
    StageRecord,
    VerdictSummary,
)
from xmckit.runs.run import Run, is_ensemble, is_run, read_metrics, read_verdicts

__all__ = [
    "DEFAULT_ROOT",
    "ComponentFacts",
    "HeadFacts",
    "HeadVerdicts",
    "LabelFacts",
    "Manifest",
    "Metrics",
    "Mismatch",
    "Run",
    "StageRecord",
    "VerdictSummary",
    "find_run",
    "find_run_folders",
    "find_runs",
    "is_ensemble",
    "is_run",
    "read_metrics",
    "read_verdicts",
]
