"""What is repeated since it failed is told at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

def test_one_that_passes_when_repeated():
    seen = Path("seen")
    before = seen.exists()
    seen.touch()
    assert before

def test_one_that_fails():
    assert {sound}

def test_one_that_passes():
    Path("passed").write_text(Path("passed").read_text() + "." if Path("passed").exists() else ".")
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def repeated(folder: Path, *, sound: bool) -> tuple[int, list[str]]:
    """The status of a repetition, and its last lines, from where it tells of tests."""
    (folder / "test_it.py").write_text(TESTS.replace("{sound}", str(sound)))
    assert run(folder, "pytest", "-q").returncode == 1
    again = run(folder, "scripts.repeat_failed")
    lines = again.stdout.splitlines()
    return again.returncode, lines[next(at for at, line in enumerate(lines) if line.startswith("unit: 1")) :]


def test_what_passed_only_when_repeated_is_named_at_the_end_and_nothing_else_is_run_again(tmp_path: Path) -> None:
    told = [
        "unit: 1 failed at first and passed when repeated; the cause is still there:",
        "  test_it.py::test_one_that_passes_when_repeated",
    ]
    assert repeated(tmp_path, sound=True) == (0, told)
    assert (tmp_path / "passed").read_text() == "."


def test_a_repetition_fails_with_what_fails_again_and_still_names_the_others(tmp_path: Path) -> None:
    status, told = repeated(tmp_path, sound=False)
    assert status == 1 and told[1:] == ["  test_it.py::test_one_that_passes_when_repeated"]
