"""`specsplit up --http-listen` as a whole process."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.request
from contextlib import suppress

from tests.cli.test_up import running
from tests.support.processes import all_gone, children_of
from tests.support.ranks import free_port

UP = ["up", "--model", "models/pocket/target", "--drafter", "ngram", "--listen", "127.0.0.1:0"]


def completion(url: str) -> str:
    """The text of one."""
    body = json.dumps({"model": "target", "prompt": "def f", "max_tokens": 4}).encode()
    asked = urllib.request.Request(f"{url}/completions", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


def test_up_starts_a_gateway_that_answers_when_its_address_is_shown_and_ends_with_the_cluster() -> None:
    with running([*UP, "--http-listen", "127.0.0.1:0"]) as process:
        assert process.stdout is not None and process.stderr is not None
        shown = dict[str, str]()
        for line in process.stdout:
            if line.startswith("ready: "):
                break
            name, _, address = line.strip().partition(" ")
            shown[name] = address
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", shown["gateway"])
        assert completion(shown["gateway"])
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 0
        assert len(children) == 4 and all_gone(children, 0)
    assert "Traceback" not in said


def test_a_gateway_that_cannot_listen_ends_up_with_its_log_and_leaves_nobody_behind() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with running([*UP, "--http-listen", address]) as process:
            children: set[int] = set()
            while process.poll() is None:
                with suppress(FileNotFoundError):  # it has ended meanwhile
                    children.update(children_of(process.pid))
                time.sleep(0.05)
            out, err = process.communicate()
            assert process.returncode == 1
            assert len(children) == 4 and all_gone([*children])
    assert "ready:" not in out
    assert "gateway | " in err and "specsplit: gateway ended with status" in err
