"""`specsplit up --http-listen` as a whole process."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from specsplit.client import Client
from tests.cli.test_up import running
from tests.clients.programs import POCKET
from tests.support.adapters import write_adapter
from tests.support.processes import all_gone, children_of
from tests.support.ranks import free_port

UP = ["up", "--model", "models/pocket/target", "--drafter", "ngram", "--listen", "127.0.0.1:0"]


def completion(url: str, model: str = "target") -> str:
    """The text of one."""
    body = json.dumps({"model": model, "prompt": "def f", "max_tokens": 12, "temperature": 0}).encode()
    asked = urllib.request.Request(f"{url}/completions", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


def addresses(lines: Iterable[str]) -> Mapping[str, str]:
    """Where each process is, by its name, as `up` shows it before it is ready."""
    shown = dict[str, str]()
    for line in lines:
        if line.startswith("ready: "):
            break
        name, _, address = line.strip().partition(" ")
        shown[name] = address
    return shown


def test_an_adapter_is_a_model_of_its_own_whose_text_is_that_of_our_own_client(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        write_adapter(tmp_path / name, POCKET / "target", number)
    adapted = ["--set", f"verifier.adapters_dir={tmp_path}", "--http-listen", "127.0.0.1:0"]
    with running([*UP, *adapted]) as process:
        assert process.stdout is not None
        shown = addresses(process.stdout)
        with urllib.request.urlopen(f"{shown['gateway']}/models", timeout=60) as answer:
            models = {each["id"] for each in json.load(answer)["data"]}
        texts = {model: completion(shown["gateway"], model) for model in models}
        with Client(shown["coordinator"]) as client:
            own = {
                model: client.generate("def f", max_tokens=12, adapter="" if model == "target" else model).text
                for model in models
            }
    assert models == {"target", "first", "second"}
    assert texts == own and len({*texts.values()}) == 3


def test_up_starts_a_gateway_that_answers_when_its_address_is_shown_and_ends_with_the_cluster() -> None:
    with running([*UP, "--http-listen", "127.0.0.1:0"]) as process:
        assert process.stdout is not None and process.stderr is not None
        shown = addresses(process.stdout)
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
