"""What a user gets from the wheel, installed bare into a venv of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specsplit.rpc import COORDINATOR_SERVICE, dial_blocking

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "models" / "pocket" / "target"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a venv that holds the wheel without extras."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-compile", "-c", ROOT / "constraints.txt", wheel], check=True, cwd=folder)
    return folder / "bin"


@contextmanager
def coordinator(bare: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A coordinator started as a user starts it, and its address."""
    command = [bare / "specsplit", "serve", "coordinator", "--model", TARGET]
    environment = {**os.environ, "SPECSPLIT_COORDINATOR_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(command, env=environment, cwd=bare, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("specsplit coordinator listening on 127.0.0.1:")
            yield process, line.split()[-1]
        finally:
            if process.poll() is None:
                process.kill()


def health_of(address: str) -> int:
    """The first status of a watch that is not NOT_SERVING."""
    with dial_blocking(address) as channel:
        request = health_pb2.HealthCheckRequest(service=COORDINATOR_SERVICE)
        replies = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=30, wait_for_ready=True)  # pyright: ignore[reportAttributeAccessIssue]
        statuses = (reply.status for reply in replies)
        status = next(each for each in statuses if each != health_pb2.HealthCheckResponse.NOT_SERVING)
        replies.cancel()
    return status


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"specsplit", "specsplit_drafter", "specsplit_verifier", "specsplit_coordinator"}
    assert {"specsplit/py.typed", "specsplit/v1/common_pb2.py", "specsplit/v1/common_pb2.pyi"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_base_install_brings_no_torch(bare: Path) -> None:
    code = "import importlib.util as u; print([m for m in ('torch', 'transformers', 'safetensors') if u.find_spec(m)])"
    out = subprocess.run([bare / "python", "-c", code], check=True, capture_output=True, text=True, cwd=bare).stdout
    assert out.strip() == "[]"


def test_the_base_install_imports_without_a_warning(bare: Path) -> None:
    code = "import specsplit.client, specsplit.cli, specsplit_coordinator.edge.service"
    subprocess.run([bare / "python", "-W", "error", "-c", code], check=True, cwd=bare)


def test_the_coordinator_of_the_base_install_starts_answers_health_and_leaves_on_sigterm(bare: Path) -> None:
    with coordinator(bare) as (process, address):
        assert health_of(address) == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with dial_blocking(address) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=0.5)


def test_a_verifier_of_the_base_install_says_what_to_install(bare: Path) -> None:
    command = [bare / "specsplit", "serve", "verifier", "--model", TARGET]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=bare)
    assert done.returncode == 1
    assert "pip install 'specsplit[engine]'" in done.stderr
    assert done.stderr.count("\n") == 1
