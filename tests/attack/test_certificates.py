"""Forged verdicts and proofs: the checker accepts no false claim, and no edit ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from xmckit_argmax.cli.certificates import certificates

from benchmarks.reliability.certificates import attack, edits, false_claims, write_original
from xmckit import store


def assert_nothing_got_through(tmp_path: Path, share: float, least: int) -> None:
    write_original(tmp_path / "original")
    found = attack(tmp_path / "original", share=share)
    assert found["mistakes"] == []
    assert (found["false_claims_accepted"], found["tracebacks"]) == (0, 0)
    assert found["tried"] >= least
    assert found["rejected"] > 0.5 * found["tried"]


def test_some_edits_of_every_kind(tmp_path: Path) -> None:
    assert_nothing_got_through(tmp_path, share=0.0015, least=30)


@pytest.mark.slow
def test_every_edit_of_every_field(tmp_path: Path) -> None:
    assert_nothing_got_through(tmp_path, share=1.0, least=30_000)


def test_the_truth_notices_what_a_checker_could_miss(tmp_path: Path) -> None:
    """An attack that could not fail would say nothing."""
    folder = tmp_path / "original"
    write_original(folder)
    assert CliRunner().invoke(certificates, ["check", str(folder)]).exit_code == 0
    assert false_claims(folder) == []
    assert sum(1 for _ in edits(folder)) > 30_000
    verdicts = store.read_json(folder / "verdicts.json")
    for verdict in verdicts["results"][0]["verdicts"]:
        verdict["status"] = "argmaxable" if verdict["status"] == "unargmaxable" else "unargmaxable"
    verdicts["results"][1]["verdicts"][-1]["margin"] = 0.123
    store.write_json(folder / "verdicts.json", verdicts)
    assert len(false_claims(folder)) >= len(verdicts["results"][0]["verdicts"])
