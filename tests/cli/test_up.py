"""`specsplit up` and `demo` as whole processes: over TLS with tokens, with streams that are closed, and Ctrl-C at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from specsplit.cli.tokens import write
from specsplit.identity import CallerRole
from tests.support.certificates import Authority
from tests.support.processes import all_gone, children_of
from tests.support.ranks import free_port

POCKET = "models/pocket/target"
PROGRAM = [sys.executable, "-m", "specsplit"]


@contextmanager
def running(arguments: Sequence[str], streams: str = "") -> Iterator[subprocess.Popen[str]]:
    """`specsplit` with these arguments, its streams redirected as a shell would."""
    command = ["bash", "-c", f'exec "$@" {streams}', "bash", *PROGRAM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def secured(folder: Path) -> Path:
    """A file of settings with TLS and tokens for all services, and the folders of tokens beside it."""
    authority = Authority(folder)
    certificate = authority.certify("localhost")
    write(folder, {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER})
    common = (
        f'tls_cert = "{certificate.chain}"\ntls_key = "{certificate.key}"\ntls_ca = "{authority.pem}"\n'
        f'tokens_file = "{folder}/members/tokens.toml"\ntoken_file = "{folder}/members/member.token"\n'
    )
    services = ("coordinator", "verifier", "drafter")
    (folder / "up.toml").write_text("".join(f"[{service}]\n{common}" for service in services))
    return folder / "up.toml"


@pytest.mark.slow
def test_up_over_tls_with_tokens_prints_a_line_that_generates_and_ends_on_ctrl_c_without_a_warning(
    tmp_path: Path,
) -> None:
    options = ["--model", POCKET, "--drafter", "ngram", "--listen", "localhost:0", "--config", str(secured(tmp_path))]
    token = str(tmp_path / "clients/alice.token")
    with running(["up", *options, "--set", "coordinator.members_listen=localhost:0", "--token-file", token]) as process:
        assert process.stdout is not None and process.stderr is not None
        ready = next((line for line in process.stdout if line.startswith("ready: ")), None)
        assert ready is not None, process.stderr.read()
        line = ready.removeprefix("ready: specsplit ").partition(";")[0].replace("'...'", "'a b a b a'")
        generated = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m specsplit {line} --max-tokens 4 --json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert generated.returncode == 0, generated.stderr
        assert '"verifier": "verifier-0"' in generated.stdout
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 0
        assert len(children) == 3 and all_gone(children, 0)
    assert '"level": "info"' in said
    assert [
        line for line in said.splitlines() if any(word in line for word in ('"warning"', '"error"', "Traceback"))
    ] == []


@pytest.mark.parametrize("there", [1, 3])
def test_ctrl_c_while_up_starts_ends_it_with_130_and_leaves_nobody_behind(there: int) -> None:
    """When its first child has been started, with which others may be by then, and when all have, which have not joined yet."""
    with running(["up", "--model", POCKET, "--drafter", "ngram", "--listen", "127.0.0.1:0"]) as process:
        deadline = time.monotonic() + 60
        while len(children := children_of(process.pid)) < there and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert there <= len(children) <= 3
        assert process.returncode == 130
        assert all_gone(children)  # one that was just being started leaves when its pipe ends, a moment later
    assert "ready:" not in out and "Traceback" not in err


@pytest.mark.slow
def test_up_serves_and_ends_with_its_children_though_its_streams_are_closed() -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ["--model", POCKET, "--drafter", "none", "--listen", address]
    with running(["up", *options], "<&- >&- 2>&-") as process:
        generated = None
        deadline = time.monotonic() + 60
        while generated is None or (generated.returncode and time.monotonic() < deadline):
            assert process.poll() is None
            generated = subprocess.run(
                [*PROGRAM, "generate", "-p", "x", "--max-tokens", "2", "--address", address],
                capture_output=True,
                check=False,
            )
        assert generated.returncode == 0
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert len(children) == 2 and all_gone(children, 0)


@pytest.mark.parametrize(("streams", "status"), [pytest.param("<&- 2>&-", 0, marks=pytest.mark.slow), ("<&- >&-", 1)])
def test_demo_whose_streams_are_closed_says_what_it_can_and_leaves_nobody_behind(streams: str, status: int) -> None:
    with running(["demo", "--max-tokens", "4", "--inflate-layers", "0"], streams) as process:
        children: set[int] = set()
        while process.poll() is None:
            children.update(children_of(process.pid))
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status
        assert (len(children) >= 3) == (status == 0), "none is started for an answer that nobody can be given"
        assert all_gone(sorted(children), 0)
    assert ("The text is identical" in out) == (status == 0)
    assert err == ("" if status == 0 else "specsplit: the output could not be written: Bad file descriptor\n")
