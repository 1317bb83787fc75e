"""Which specsplit this is: the version, and the commit that it was built from where that is known."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from specsplit import __version__

PROTOCOL = "specsplit.v1"
"""The package of the protos, which peers have to share."""
COMMIT_VARIABLE = "SPECSPLIT_COMMIT"
"""The variable in which an image, that has no checkout, carries the commit that it was built from."""
_DIGITS = 12
_COMMIT = "# branch.oid "
_ROOT = Path(__file__).resolve().parents[1]


@cache
def build() -> str:
    """The version, and behind a + the commit if it is known; "-dirty" behind that if the checkout has changes."""
    commit = _of_checkout(_ROOT) or _of_installation() or _of_image()
    return f"{__version__}+{commit}" if commit else __version__


def _of_checkout(root: Path) -> str:
    """The commit that is checked out; empty if this code runs from no checkout."""
    if not (root / ".git").exists():
        return ""
    # describe --dirty would write the index, and get in the way of whoever commits meanwhile
    command = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch", "-uno"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):  # no git, or none that answers
        return ""
    found = [line.removeprefix(_COMMIT)[:_DIGITS] for line in lines if line.startswith(_COMMIT)]
    changed = any(not line.startswith("#") for line in lines)
    return "".join(found) + ("-dirty" if found and changed else "")


def _of_installation() -> str:
    """The commit that pip installed from a repository (PEP 610); empty if it was installed otherwise."""
    try:
        origin: Any = json.loads(distribution("specsplit").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    return str(origin.get("vcs_info", {}).get("commit_id", ""))[:_DIGITS]


def _of_image() -> str:
    """The commit that the image was told of when it was built; empty if it was not, or this runs in none."""
    return os.environ.get(COMMIT_VARIABLE, "").strip()
