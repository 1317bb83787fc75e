"""The daemon of MPS that the benchmark starts: by pipes of its own, which it is ended by, or it is said why not."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.gpu import pair as pairs
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.job import DRY, Job

RECORDS = """#!/bin/sh
echo "$* $(test "$1" = -d || cat)" >> "$CUDA_MPS_PIPE_DIRECTORY/../../heard"
"""
REFUSES = """#!/bin/sh
echo "Cannot find MPS control daemon process" >&2
exit 1
"""


def control(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program stand where the daemon's is."""
    (folder / "bin").mkdir()
    program = folder / "bin" / pairs.CONTROL
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_a_daemon_of_its_own_is_told_to_end_by_its_own_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control(tmp_path, RECORDS, monkeypatch)
    own = tmp_path / "own"
    own.mkdir()
    with pairs.daemon(own):
        assert os.environ[pairs.PIPES] == str(own / "pipes") and pairs.OWN in os.environ
        assert (tmp_path / "heard").read_text() == "-d \n"
    assert (tmp_path / "heard").read_text() == "-d \n quit\n"
    assert pairs.PIPES not in os.environ and pairs.OWN not in os.environ


def test_a_daemon_that_does_not_start_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(tmp_path, REFUSES, monkeypatch)
    with pytest.raises(subprocess.CalledProcessError), pairs.daemon(tmp_path):
        pass
    assert pairs.PIPES not in os.environ
    findings = Findings("pair")
    pairs.with_mps(Job("cpu", DRY, tmp_path, time.monotonic() + 60, findings))
    (skip,) = findings.skips
    assert (skip.what, skip.why.split(": ")[1]) == ("with MPS", "Cannot find MPS control daemon process")
    pairs.with_mps(Job("cpu", DRY, tmp_path, time.monotonic() + 1, findings))
    assert findings.skips[1].why == "the time of the part was over"


def test_where_another_daemon_runs_or_none_can_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pairs.obstacle() == f"there is no {pairs.CONTROL} here"
    monkeypatch.setenv(pairs.PIPES, str(tmp_path))
    assert str(pairs.obstacle()).startswith("a control daemon runs here already")
