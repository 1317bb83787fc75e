"""The pods of the StatefulSet in deploy/kubernetes/ranks as containers: its command, its variables, the names that its service gives."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from scripts.containers.shell import Failed, expect
from scripts.containers.stack import ROOT, Stack

_FOLDER = ROOT / "deploy" / "kubernetes"
_IMAGE = "specsplit-verifier"
LEAVE_S = 60
"""A pod without sessions leaves long before that."""


class StatefulSet:
    """What the base and, over it, the overlay say of the verifier."""

    def __init__(self) -> None:
        base, ranks = (_first(_FOLDER / folder / "verifier.yaml") for folder in ("base", "ranks"))
        self.service: str = base["spec"]["serviceName"]
        self._containers = [each["spec"]["template"]["spec"]["containers"][0] for each in (base, ranks)]
        self.command: list[str] = self._containers[-1]["command"]
        """What a pod runs in the place of the image's entry point."""
        self.pods = tuple(f"{base['metadata']['name']}-{number}" for number in range(ranks["spec"]["replicas"]))

    def variables(self, pod: str) -> dict[str, str]:
        """Those of a pod, with references to one another filled in."""
        entries = {entry["name"]: entry for each in self._containers for entry in each["env"]}
        values = {name: entry.get("value", pod) for name, entry in entries.items()}
        return {name: re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], value) for name, value in values.items()}


class Pods:
    """As many containers as the StatefulSet has replicas, in the network of a stack. Use it as a context manager."""

    def __init__(self, stack: Stack) -> None:
        """Nothing runs before `start`."""
        self._stack = stack
        self._set = StatefulSet()
        self.names = self._set.pods

    def start(self, pod: str) -> None:
        """Start one, as Kubernetes does: a container that ends is started again."""
        program, *arguments = self._set.command
        names = ["--name", self._name(pod), "--hostname", pod, "--network-alias", f"{pod}.{self._set.service}"]
        rights = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges:true"]
        given = [f"--env={name}={value}" for name, value in self._set.variables(pod).items()]
        given += [f"--volume={ROOT / 'models' / 'pocket'}:/models:ro", f"--network={self._stack.network}"]
        self._docker(
            "run",
            "--detach",
            "--restart=always",
            "--no-healthcheck",  # Kubernetes has probes of its own
            *names,
            *rights,
            *given,
            f"--entrypoint={program}",
            _IMAGE,
            *arguments,
        )

    def stop(self, pod: str) -> None:
        """Tell one to leave, as Kubernetes does before it replaces a pod, and give it time. Raises Failed if it takes all of that."""
        began = time.monotonic()
        self._docker("stop", f"--time={LEAVE_S}", self._name(pod))
        expect(time.monotonic() - began < LEAVE_S, f"{pod} had not left {LEAVE_S} s after it was told to")

    def remove(self, pods: Sequence[str]) -> None:
        """With no time to leave."""
        self._docker("rm", "--force", *map(self._name, pods))

    def _name(self, pod: str) -> str:
        return f"{self._stack.network}-{pod}"

    def _docker(self, *arguments: str) -> str:
        return self._stack.engine.docker(*arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is Failed:
                for pod in self.names:
                    print(f"containers: {pod}\n{self._docker('logs', '--tail=30', self._name(pod))}", flush=True)
            self.remove(self.names)
        except Failed as failure:
            print(f"containers: {failure}", flush=True)  # the engine removes what this leaves


def _first(file: Path) -> dict[str, Any]:
    """The first object of a file."""
    return next(iter(yaml.safe_load_all(file.read_text())))
