"""Threads of OpenMP that wait sleep soon in a service, and as the environment says where it says it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specsplit.openmp import SPINS, sleep_at_barriers

torch = pytest.importorskip("torch")
OPTIONS = {"verifier": (), "drafter": ("--kind", "standalone")}
needs_gnu = pytest.mark.skipif(
    "libgomp" not in str(list(Path(torch.__path__[0]).glob("**/libgomp*"))), reason="torch is not built upon GNU OpenMP"
)


def spins(service: str, model: Path, **environment: str) -> str:
    """What GNU OpenMP says of its spinning in a service, which then ends since there is no such model."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "specsplit", "serve", service, *OPTIONS[service], "--model", str(model)],
        env={**unset, "OMP_DISPLAY_ENV": "verbose", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert said, done.stderr
    return said[1]


@needs_gnu
@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_threads_of_a_service_that_wait_sleep_soon(service: str, tmp_path: Path) -> None:
    assert spins(service, tmp_path / "nowhere") == SPINS


@needs_gnu
def test_what_the_environment_says_of_waiting_counts(tmp_path: Path) -> None:
    assert spins("verifier", tmp_path / "nowhere", OMP_WAIT_POLICY="passive") == "0"


def test_the_rest_of_the_environment_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    sleep_at_barriers()
    monkeypatch.delenv("GOMP_SPINCOUNT")
    assert dict(os.environ) == before
