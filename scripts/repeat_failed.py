"""Runs tests that have just failed once more, by themselves, and says which passed only then: `python -m scripts.repeat_failed`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
COMMAND = (sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none")


def failed(file: Path = FAILED) -> list[str]:
    """Names of the tests that failed when pytest was last run; none if it has written none."""
    return sorted(json.loads(file.read_text())) if file.exists() else []


def told(before: list[str], after: list[str]) -> list[str]:
    """What is said of those that failed `before`, of which those in `after` failed again."""
    passed = [name for name in before if name not in after]
    if not passed:
        return []
    return [
        f"unit: {len(passed)} failed at first and passed when repeated; the cause is still there:",
        *map("  ".__add__, passed),
    ]


def main() -> int:
    """The exit status of the repetition."""
    before = failed()
    print("unit: what failed is run once more, by itself; what fails again fails", flush=True)
    status = subprocess.run(COMMAND, check=False).returncode
    for line in told(before, failed()):
        print(line, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
