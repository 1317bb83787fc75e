"""What must hold of the images and of a stack that is up. Every check raises Failed, and says in a sentence what it has seen."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.containers.engine import Engine
from scripts.containers.shell import Failed, expect
from scripts.containers.stack import IMAGES, SERVICES, Stack
from specsplit.client import Client, Delta, Result
from specsplit.client.result import Gatherer
from specsplit.membership import Member
from specsplit.values import DrafterInfo, ModelInfo, PlanChanges

PROMPT = "class Stack:\n    def __init__(self):\n"
MAX_TOKENS = 300
SERIAL = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, draft_ahead=False, wait_budget_us=2_000_000)
"""Steps wait for their drafts: the pocket target's are so short that its verifier would have the drafter rest otherwise."""
COORDINATOR_MB = 250
"""What the coordinator's image may hold over its base."""
_USER = "10001:10001"
_HAS_TORCH = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
_SCRAPE = """
import socket, urllib.request
for address in sorted({entry[4][0] for entry in socket.getaddrinfo(%r, 9464, socket.AF_INET)}):
    print(urllib.request.urlopen(f"http://{address}:9464/metrics", timeout=10).read().decode())
"""


def check_images(engine: Engine, base: str) -> str:
    """No image runs as root; the coordinator's is small and has no torch."""
    sizes: dict[str, float] = {}
    for name in (base, *(f"specsplit-{each}" for each in IMAGES)):
        image = json.loads(engine.docker("image", "inspect", name))[0]
        sizes[name] = image["Size"] / 1e6
        if name != base:
            expect(
                image["Config"]["User"] == _USER, f"image {name} runs as {image['Config']['User']!r}, expected {_USER}"
            )
    over = {service: sizes[f"specsplit-{service}"] - sizes[base] for service in IMAGES}
    expect(
        over["coordinator"] < COORDINATOR_MB,
        f"the coordinator's image holds {over['coordinator']:.0f} MB over its base",
    )
    program = ["--entrypoint", "python", "specsplit-coordinator", "-c", _HAS_TORCH]
    expect(
        engine.docker("run", "--rm", "--network=none", *program).strip() == "False", "the coordinator's image has torch"
    )
    listed = ", ".join(f"{service} {size:.0f} MB" for service, size in over.items())
    return f"images over their base of {sizes[base]:.0f} MB: {listed}; none runs as root"


@dataclass(frozen=True)
class Proof:
    """Checks of a running stack, in the order in which they are to be made: each but the last leaves every service running."""

    stack: Stack
    client: Client

    def generates(self) -> str:
        """The text comes through the published port, and the drafter takes part and changes nothing of it."""
        self._await_drafters(1)
        result, plain = self._generate(), self._generate(drafter="none")
        self._check_same(result, plain)
        expect(result.speculation.accepted > 0, f"nothing of what {result.done.drafter!r} drafted was accepted")
        with urllib.request.urlopen(f"http://{self.stack.page}/", timeout=10) as page:
            expect(b"<html" in page.read(), "the coordinator's page is no HTML")
        return f"{_speed(result)} with {result.done.drafter}; {plain.speculation.steps} without, and the same text; the page is there"

    def survives_the_drafter(self, kill: Callable[[str], object]) -> str:
        """The drafter's container is killed amid a request, and the text does not change; brought back, it drafts again."""
        plain = self._generate(drafter="none")
        (container,) = self.stack.containers("drafter")
        gatherer, after = Gatherer(), 0
        for number, event in enumerate(self.client.stream(PROMPT, max_tokens=MAX_TOKENS, ignore_eos=True)):
            gatherer.add(event)
            if number == 2:
                kill(container)
            after += number > 2 and isinstance(event, Delta)
        expect(after > 0, "the request was over before the drafter's container was killed")
        self._check_same(gatherer.result(), plain)
        self._await_drafters(0)
        alone = self._generate()
        self._check_same(alone, plain)
        expect(not alone.done.drafter, f"drafter {alone.done.drafter!r} took part although it was killed")
        self.stack.compose("up", "--detach", "--no-build")
        self.stack.wait_healthy(120)
        self._await_drafters(1)
        again = self._generate()
        self._check_same(again, plain)
        expect(again.speculation.accepted > 0, "nothing was accepted after the drafter had come back")
        return f"killed: the same text, in {_speed(gatherer.result())}; brought back: in {_speed(again)}"

    def scales(self) -> str:
        """A second drafter gets an address of its own, and both can be reached."""
        self.stack.compose("up", "--detach", "--no-build", "--scale", "drafter=2")
        self.stack.wait_healthy(120)
        addresses = {member.address for member in self._await_drafters(2)}
        expect(len(addresses) == 2, f"both drafters say that they are at {addresses}")
        return f"--scale drafter=2: drafters at {' and '.join(sorted(addresses))}"

    def tells(self) -> str:
        """Every line of every log is a JSON object without a traceback, and every process shows its metrics."""
        lines = 0
        for service in SERVICES:
            for container in self.stack.containers(service):
                lines += sum(1 for _ in records_of(service, self.stack.log(container)))
        (coordinator,) = self.stack.containers("coordinator")
        series = 0
        for service in SERVICES:
            shown = self.stack.python(coordinator, _SCRAPE % service)
            found = [line for line in shown.splitlines() if line.startswith("specsplit_")]
            expect(bool(found), f"the metrics of {service} hold nothing of specsplit's")
            series += len(found)
        return f"{lines} lines of logs, each a JSON object; {series} series in metrics"

    def leaves(self, *services: str) -> str:
        """Told to stop, every container of these services drains and leaves with status 0."""
        self.stack.compose("stop", *services, timeout_s=150)
        for service in services:
            for container in self.stack.containers(service):
                status = self.stack.inspect(container)["State"]["ExitCode"]
                expect(status == 0, f"{service} left with status {status}\n{self.stack.log(container)[-2000:]}")
        return f"stopped: {' and '.join(services)} left with status 0"

    def _generate(self, drafter: str | None = None) -> Result:
        return self.client.generate(
            PROMPT, max_tokens=MAX_TOKENS, ignore_eos=True, drafter=drafter, plan=SERIAL, timeout_s=60
        )

    def _check_same(self, result: Result, plain: Result) -> None:
        expect(result.tokens == plain.tokens, f"{result.text!r} is not {plain.text!r}")

    def _await_drafters(self, count: int) -> list[Member]:
        """The drafters, once there are `count` of them and a verifier."""
        deadline = time.monotonic() + 30
        while True:
            members = self.client.cluster(timeout_s=10).members
            drafters = [member for member in members if isinstance(member.role, DrafterInfo)]
            if len(drafters) == count and any(isinstance(member.role, ModelInfo) for member in members):
                return drafters
            expect(
                time.monotonic() < deadline, f"expected {count} drafters and a verifier in the cluster, found {members}"
            )
            time.sleep(0.2)


def records_of(service: str, log: str) -> Iterator[dict[str, object]]:
    """What a service logged; what it prints on purpose, when it listens, is left out."""
    for line in log.splitlines():
        if line.startswith(f"specsplit {service} listening "):
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise Failed(f"{service} wrote a line that is no JSON object: {line}") from error
        expect("Traceback" not in line and record.get("level") != "error", f"{service} logged a failure: {line}")
        yield record


def _speed(result: Result) -> str:
    return f"{result.usage.completion_tokens} tokens in {result.speculation.steps} steps"
