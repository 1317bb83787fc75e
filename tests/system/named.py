"""Coordinators behind a name, which a member joins and a client asks, in a network of its own: test_names.py starts it by `unshare`.

The name has the addresses that a DNS server says, which the system's resolver and gRPC's ask.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from specsplit.cli.local import Child
from specsplit.client import Client
from specsplit.client.result import Gatherer, Result
from specsplit.settings import ClientSettings
from tests.support.name_server import NameServer
from tests.system.conftest import as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
NAME, PORT = "coordinators.test", 50050
HOSTS = "127.0.0.2", "127.0.0.3", "127.0.0.4"
STREAMS, TOKENS = 8, 60
ASKED: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0.9, "ignore_eos": True}


def main() -> None:
    """Everything, one after the other."""
    with network() as names, ExitStack() as stack:
        coordinators = {host: started(stack, "coordinator", listen=f"{host}:{PORT}") for host in HOSTS}
        own = {host: stack.enter_context(Client(each.address)) for host, each in coordinators.items()}
        names.addresses[NAME] = HOSTS[:1]
        started(stack, "verifier", coordinator=f"dns:///{NAME}:{PORT}", insecure=True, paced_step_base_ms=50.0)
        as_soon_as(lambda: members(own) == [1, 0, 0])
        names.addresses[NAME] = HOSTS
        as_soon_as(lambda: members(own) == [1, 1, 1])
        by_name = Client(f"dns:///{NAME}:{PORT}", ClientSettings(insecure=True))
        streams_outlive(coordinators, own, stack.enter_context(by_name))
        names.addresses[NAME] = HOSTS[:1]
        as_soon_as(lambda: own[HOSTS[0]].cluster().coordinators == 1)


def streams_outlive(coordinators: dict[str, Child], own: dict[str, Client], client: Client) -> None:
    """Streams of a client that knows the name alone are on all coordinators, and whole though two are killed."""
    as_soon_as(lambda: one_each(client, own))
    with ThreadPoolExecutor(STREAMS) as pool:
        alone = [pieces_of(each) for each in pool.map(partial(streamed, own[HOSTS[0]]), range(STREAMS))]
        streams = [pool.submit(streamed, client, seed) for seed in range(STREAMS)]
        as_soon_as(lambda: all(each.cluster().running for each in own.values()))
        for host in HOSTS[1:]:
            coordinators[host].kill()
        results = [each.result(120) for each in streams]
    assert [pieces_of(each) for each in results] == alone, f"{results} and alone {alone}"
    assert all(len(each.tokens) == each.usage.completion_tokens == TOKENS for each in results)


def one_each(client: Client, own: dict[str, Client]) -> bool:
    """Whether as many streams as there are coordinators are one on each, as they are once the channel is connected to all."""
    streams = [client.stream(prompt(0), **ASKED) for _ in own]
    for stream in streams:
        next(stream)
    running = [each.cluster().running for each in own.values()]
    for stream in streams:
        stream.close()
    as_soon_as(lambda: not any(each.cluster().running for each in own.values()))
    return running == [1 for _ in own]


def streamed(client: Client, seed: int) -> Result:
    gatherer = Gatherer()
    for event in client.stream(prompt(seed), seed=seed, **ASKED):
        gatherer.add(event)
    return gatherer.result()


def prompt(seed: int) -> str:
    return f"def f{seed}(values):\n"


def pieces_of(result: Result) -> tuple[str, Sequence[int]]:
    return result.text, result.tokens


def members(own: dict[str, Client]) -> list[int]:
    return [len(client.cluster().members) for client in own.values()]


def started(stack: ExitStack, service: str, **settings: object) -> Child:
    child = Child(f"{service}-{time.monotonic_ns()}", service, {"model": POCKET, **settings}, None)
    stack.callback(child.kill)
    child.wait_listening(120)
    return child


@contextmanager
def network() -> Iterator[NameServer]:
    """The loopback of this network is up, and its name server answers."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file, NameServer() as names:
        file.write("nameserver 127.0.0.1\n")
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
        yield names


if __name__ == "__main__":
    main()
