"""What must hold of two ranks: in one container (deploy/compose.ranks.yaml), and in a pod each (deploy/kubernetes/ranks)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scripts.containers.pods import Pods
from scripts.containers.shell import expect
from scripts.containers.stack import Stack
from specsplit.client import Client, Result
from specsplit.values import DrafterInfo

RANKS = 2
PROMPTS = ("class Stack:\n    def __init__(self):\n", "def fibonacci(n: int) -> int:\n")
MAX_TOKENS = 100
TERMINATED = 1
"""The status of a torchrun that was told to stop, however well its ranks left."""
_KILL_A_RANK = """
import os, pathlib, signal
os.kill(int(pathlib.Path("/proc/1/task/1/children").read_text().split()[-1]), signal.SIGKILL)
"""


def own_texts(client: Client) -> dict[str, Sequence[int]]:
    """What a verifier that is alone writes without a drafter, by prompt."""
    return {
        prompt: client.generate(prompt, max_tokens=MAX_TOKENS, ignore_eos=True, drafter="none").tokens
        for prompt in PROMPTS
    }


@dataclass(frozen=True)
class Group:
    """Checks of a group behind a coordinator."""

    client: Client
    own: Mapping[str, Sequence[int]]
    """What the target writes by itself."""

    def in_one_container(self, stack: Stack) -> str:
        """The verifier of the stack is a group, and one of its processes is killed: the container goes on, and the others come again."""
        stack.compose("up", "--detach", "--no-build", "verifier")
        stack.wait_healthy(180)
        (container,) = stack.containers("verifier")
        first, before = self._serve(), stack.inspect(container)["State"]["StartedAt"]
        began = time.monotonic()
        stack.python(container, _KILL_A_RANK)
        self._serve(first)
        expect(stack.inspect(container)["State"]["StartedAt"] == before, "the container was started anew")
        return f"a container of {RANKS} ranks: a request to each has the target's own text; one killed: so again after {_since(began)}"

    def leaves(self, stack: Stack) -> str:
        """Told to stop, the ranks leave in time, and their container is removed."""
        (container,) = stack.containers("verifier")
        stack.compose("stop", "verifier")
        status, log = stack.inspect(container)["State"]["ExitCode"], stack.log(container)
        expect(status == TERMINATED, f"the container of the ranks left with status {status}\n{log[-2000:]}")
        expect("SIGKILL" not in log, f"ranks did not leave in time\n{log[-2000:]}")
        stack.compose("rm", "--force", "verifier")
        return "stopped: the ranks left in time"

    def in_pods(self, pods: Pods) -> str:
        """Each rank is a pod, and one of them is replaced, first when it is lost, then when it was told to leave and did.

        It is not the first, in which the others' torchrun keep what they know.
        """
        for pod in pods.names:
            pods.start(pod)
        first, replaced = self._serve(), pods.names[-1]
        lost_s, second = self._replace(pods, replaced, first)
        began = time.monotonic()
        pods.stop(replaced)
        left = _since(began)
        left_s, _ = self._replace(pods, replaced, second)
        return (
            f"{RANKS} pods of a rank each: a request to each has the target's own text; {replaced} lost and replaced: so again after "
            f"{lost_s}; told to leave, which took {left}, and replaced: so again after {left_s}"
        )

    def _replace(self, pods: Pods, pod: str, group: str) -> tuple[str, str]:
        """A new pod in the place of one of a group -> how long until each rank had written a text again, and the id of the new group."""
        began = time.monotonic()
        pods.remove([pod])
        pods.start(pod)
        another = self._serve(group)
        return _since(began), another

    def _serve(self, lost: str = "") -> str:
        """Wait for a group other than `lost`, and have each of its ranks write a text; its id."""
        group = self._await_group(lost)
        with ThreadPoolExecutor() as pool:
            calls = {prompt: pool.submit(self._generate, prompt) for prompt in PROMPTS}
        results = {prompt: call.result() for prompt, call in calls.items()}
        for prompt, result in results.items():
            expect(result.tokens == self.own[prompt], f"{result.text!r} is not what the target writes by itself")
        verifiers = {result.done.verifier for result in results.values()}
        expect(len(verifiers) == RANKS, f"{RANKS} requests at once went to {verifiers}")
        return group

    def _generate(self, prompt: str) -> Result:
        return self.client.generate(prompt, max_tokens=MAX_TOKENS, ignore_eos=True, timeout_s=60)

    def _await_group(self, lost: str) -> str:
        deadline = time.monotonic() + 180
        while True:
            members = self.client.cluster(timeout_s=10).members
            ranks = [each.group for each in members if each.group is not None and each.group.group_id != lost]
            if len(ranks) == RANKS and any(isinstance(each.role, DrafterInfo) for each in members):
                return ranks[0].group_id
            expect(time.monotonic() < deadline, f"expected a new group of {RANKS} and a drafter, found {members}")
            time.sleep(0.2)


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"
