"""What must hold of the gateway of docker-compose.yml, the OpenAI API before the coordinator."""

from __future__ import annotations

import json
import time
import urllib.request
from urllib.error import HTTPError

from scripts.containers.shell import expect
from scripts.containers.stack import Stack
from specsplit.client import ChatMessage, ChatPrompt, Client

QUESTION = "add two numbers"
MAX_TOKENS = 32
_SCRAPE = """
import urllib.request
print(urllib.request.urlopen("http://gateway:9464/metrics", timeout=10).read().decode())
"""


def answers(stack: Stack, client: Client) -> str:
    """A conversation over HTTP has the text that our own client gets; without the key it is refused; the metrics are there."""
    _await_ready(stack)
    expect(_status(stack, "another key") == 401, "the gateway does not refuse a caller with another key")
    told = json.loads(_ask(stack, stack.http_key))
    own = client.generate(ChatPrompt((ChatMessage("user", QUESTION),)), max_tokens=MAX_TOKENS, timeout_s=60)
    text = told["choices"][0]["message"]["content"]
    expect(text == own.text, f"over HTTP {text!r}, which is not {own.text!r}")
    (coordinator,) = stack.containers("coordinator")
    series = [line for line in stack.python(coordinator, _SCRAPE).splitlines() if line.startswith("smg_")]
    expect(bool(series), "the metrics of the gateway hold nothing of smg's")
    return (
        f"gateway: {told['usage']['completion_tokens']} tokens over HTTP, and the same text; another key is refused; "
        f"{len(series)} series in metrics"
    )


def _ask(stack: Stack, key: str) -> bytes:
    asked = {"model": "target", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": MAX_TOKENS}
    request = urllib.request.Request(
        f"http://{stack.http}/v1/chat/completions",
        data=json.dumps({**asked, "temperature": 0}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def _status(stack: Stack, key: str) -> int:
    try:
        _ask(stack, key)
    except HTTPError as error:
        return error.code
    return 200


def _await_ready(stack: Stack) -> None:
    """It finds the verifier when it looks at the coordinator again."""
    deadline = time.monotonic() + 90
    while not _ready(stack):
        (container,) = stack.containers("gateway")
        expect(time.monotonic() < deadline, f"the gateway is not ready\n{stack.log(container)[-4000:]}")
        time.sleep(0.5)


def _ready(stack: Stack) -> bool:
    try:
        with urllib.request.urlopen(f"http://{stack.http}/readiness", timeout=10):
            return True
    except OSError:
        return False
