"""Streams that are closed, full, gone or in another encoding, and Ctrl-C in the first second: real processes, started by a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specsplit.requests import Delta, GenerateEvent, GenerateRequest
from tests.client.scripted import DONE, Scripted
from tests.support.ranks import free_port

POCKET = "models/pocket/target"
PROGRAM = f"{sys.executable} -m specsplit"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run `specsplit` with what is behind it, as a shell would."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {PROGRAM} {command}"],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_a_command_whose_output_cannot_be_written_says_so_and_exits_1(where: str, why: str) -> None:
    done = shell(f"--version {where}")
    assert done.returncode == 1
    assert done.stderr.decode() == f"specsplit: the output could not be written: {why}\n"


def test_a_reader_that_has_seen_enough_ends_a_command_quietly() -> None:
    done = shell("--help | true")
    assert done.returncode in (0, 141), "0 if all was written before the reader left"
    assert done.stderr == b""


def test_who_writes_into_a_pipe_without_a_reader_ends_as_by_sigpipe() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PROGRAM.split(), "--version"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_what_stderr_cannot_take_changes_nothing(where: str) -> None:
    assert shell(f"--version {where}").returncode == 0
    assert shell(f"nothing {where}").returncode == 2


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("generate <&-", "--prompt: is missing; give it, or pipe the text into stdin"),
        (r"generate < <(printf 'ab\xff')", "--prompt: stdin is no text in UTF-8 (byte 0xff at 2); expected that"),
        (r"generate -p $'ab\xff'", "--prompt: is no text in UTF-8 (at 2); expected that"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_a_sentence(command: str, sentence: str) -> None:
    done = shell(command, PYTHONUTF8="1")
    assert (done.returncode, done.stderr.decode()) == (2, f"specsplit: {sentence}\n")


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "é → 日本".encode()),
        ("latin-1", b"\xe9 \\u2192 \\u65e5\\u672c"),
        ("ascii", b"\\xe9 \\u2192 \\u65e5\\u672c"),
    ],
)
def test_what_the_terminal_has_no_letters_for_is_spelt_out_and_the_rest_of_the_answer_comes(
    coordinator: Scripted, encoding: str, expected: bytes
) -> None:
    def answer(request: GenerateRequest) -> Iterator[GenerateEvent]:
        yield Delta("é → 日本", (11, 12), 2)
        yield Delta(" and on", (13,))
        yield DONE

    coordinator.script = answer
    done = shell(f"generate -p x --address {coordinator.address}", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert expected + b" and on" in done.stdout


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_service_serves_whatever_its_streams_are(streams: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = f"exec {PROGRAM} serve coordinator --model {POCKET} --listen {address} {streams}"
    service = subprocess.Popen(["bash", "-c", command])
    try:
        deadline = time.monotonic() + 60
        while shell(f"health {address}").returncode and time.monotonic() < deadline:
            assert service.poll() is None
        assert shell(f"health {address}").returncode == 0
        service.terminate()
        assert service.wait(30) == 0
    finally:
        service.kill()
        service.wait()


@pytest.mark.parametrize("module", ["specsplit.cli", "typer", "specsplit.rpc.server", "specsplit.cli.local"])
def test_ctrl_c_during_an_import_exits_130_without_a_word(module: str, tmp_path: Path) -> None:
    """A hook of the interpreter sends the signal when the module is looked for."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, signal, sys\n"
        f"def hook(event, details):\n"
        f"    if event == 'import' and details[0] == {module!r}:\n"
        f"        os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        f"sys.addaudithook(hook)\n"
    )
    command = "up --listen 127.0.0.1:0" if module.endswith("local") else f"serve coordinator --model {POCKET}"
    done = shell(command, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
