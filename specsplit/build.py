"""Which specsplit this is: the version, and the commit that it was built from where that is known."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from specsplit import __version__

PROTOCOL = "specsplit.v1"
"""The package of the protos, which peers have to share."""
_DIGITS = 12
_ROOT = Path(__file__).resolve().parents[1]


@cache
def build() -> str:
    """The version, and behind a + the commit if it is known; "-dirty" behind that if the checkout has changes."""
    commit = _of_checkout(_ROOT) or _of_installation()
    return f"{__version__}+{commit}" if commit else __version__


def _of_checkout(root: Path) -> str:
    """The commit that is checked out; empty if this code runs from no checkout."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", f"--abbrev={_DIGITS}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):  # no git, or none that answers
        return ""


def _of_installation() -> str:
    """The commit that pip installed from a repository (PEP 610); empty if it was installed otherwise."""
    try:
        told: Any = json.loads(distribution("specsplit").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    return str(told.get("vcs_info", {}).get("commit_id", ""))[:_DIGITS]
