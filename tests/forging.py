"""What a forger does after changing the files of a run: give them the checksums of their new content."""

from __future__ import annotations

from pathlib import Path

from xmckit import store


def reseal(run: Path) -> None:
    """Write new checksums for all files of a run folder that has checksums."""
    for record in [*run.glob(f"*/*/{store.STAGE_RECORD}"), run / store.RUN_RECORD]:
        content = store.read_json(record)
        listed = {name for name, entry in content.get("files", {}).items() if isinstance(entry, dict)}
        files = {name: store.file_checksums(record.parent / name) for name in listed}
        store.write_record(record, {**content, "files": {**content.get("files", {}), **files}})
