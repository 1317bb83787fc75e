"""Two verifier ranks that share the pocket target, started by torchrun as users do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specsplit.cli.local import Child
from specsplit.client import Client
from specsplit.errors import SpecsplitError
from tests.support.ranks import free_port
from tests.system.conftest import eventually

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = ("def main(", "import os\n\nclass")


@pytest.fixture(scope="module", autouse=True)
def all_forked() -> None:
    """None of them: these are started as users start them."""


@pytest.fixture
def coordinator() -> Iterator[str]:
    child = Child("coordinator", "coordinator", {"model": POCKET, "listen": "127.0.0.1:0"}, None)
    try:
        yield child.wait_listening(60)
    finally:
        child.process.kill()
        child.process.wait()


def ranks_of(torchrun: subprocess.Popen[bytes]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()]


def members(client: Client) -> int:
    return len(client.cluster().members)


def answered(client: Client) -> bool:
    try:
        return len(client.generate(PROMPTS[0], max_tokens=8, drafter="none").tokens) == 8
    except SpecsplitError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_serve_a_request_each_and_a_killed_one_is_started_again_with_its_group(
    coordinator: str, tmp_path: Path
) -> None:
    options = ["--model", str(POCKET), "--dp-size", "2", "--rank-timeout-s", "10", "--coordinator", coordinator]
    log = tmp_path / "ranks.log"
    elastic = ["--nproc-per-node", "2", "--max-restarts", "1", "--master-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *elastic, "--master-port", str(free_port())]
    with log.open("wb") as written, Client(coordinator) as client:
        torchrun = subprocess.Popen(
            [*command, "-m", "specsplit", "serve", "verifier", *options],
            stdout=written,
            stderr=written,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            eventually(lambda: members(client) == 2, within_s=120)
            with ThreadPoolExecutor() as pool:
                calls = [pool.submit(client.generate, each, max_tokens=16, drafter="none") for each in PROMPTS]
                assert all(len(call.result(60).tokens) == 16 for call in calls)
            os.kill(ranks_of(torchrun)[1], signal.SIGKILL)
            eventually(lambda: b"rank 1 of 2 is lost" in log.read_bytes(), within_s=30)
            eventually(lambda: log.read_bytes().count(b"joined the cluster") == 4, within_s=120)
            eventually(lambda: answered(client), within_s=30)
        finally:
            torchrun.terminate()
            torchrun.wait(60)
