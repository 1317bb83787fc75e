"""Coordinators behind a name that a DNS server knows, in a network of its own, where a test may say what the system's resolver is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APART = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    for program in ("unshare", "ip", "mount"):
        if not shutil.which(program):
            return f"there is no {program} (Debian: util-linux, mount, iproute2)"
    tried = subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    return f"this machine gives no network of one's own: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_members_join_every_address_of_a_name_looked_at_again_and_streams_go_on_when_coordinators_are_killed() -> None:
    if why := missing():
        pytest.skip(why)
    command = [*APART, sys.executable, "-m", "tests.system.named"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
