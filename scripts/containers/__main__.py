"""`python -m scripts.containers`: builds the images, brings the stack up, breaks it, and takes all of it away again. Needs root."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from scripts.containers import base_image, gateway
from scripts.containers.engine import Engine
from scripts.containers.group import Group, own_texts
from scripts.containers.pods import Pods
from scripts.containers.proof import Proof, check_images
from scripts.containers.shell import Failed, Progress
from scripts.containers.stack import IMAGES, Stack
from specsplit.client import Client
from specsplit.errors import SpecsplitError


def prove(progress: Progress) -> None:
    """Everything, in order. Raises Failed or SpecsplitError."""
    folder = Path(tempfile.mkdtemp(prefix="specsplit-"))
    with Engine(folder) as engine:
        progress.say("a docker engine of our own is up")
        progress.say(f"base image {base_image.NAME}: {base_image.provide(engine, folder)}")
        with Stack(engine, folder) as stack:
            for service in IMAGES:
                stack.compose("build", service, timeout_s=600)
                progress.say(f"built {service}")
            progress.say(check_images(engine, base_image.NAME))
            stack.compose("up", "--detach", "--no-build")
            stack.wait_healthy(120)
            progress.say("up, and every service is healthy")
            with Client(stack.address) as client:
                proof = Proof(stack, client)
                progress.say(proof.generates())
                progress.say(gateway.answers(stack, client))
                progress.say(proof.survives_the_drafter(lambda container: engine.docker("kill", container)))
                progress.say(proof.scales())
                progress.say(proof.tells())
                group, ranks = Group(client, own_texts(client)), stack.overlaid("deploy/compose.ranks.yaml")
                progress.say(proof.leaves("verifier"))
                progress.say(group.in_one_container(ranks))
                progress.say(group.leaves(ranks))
                with Pods(stack) as pods:
                    progress.say(group.in_pods(pods))
                progress.say(proof.leaves("gateway", "coordinator", "drafter"))
    progress.say(f"everything is removed: {folder.exists() or 'containers, images, engine'}")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    """The exit status."""
    if os.geteuid() != 0:
        print("containers: an engine of our own needs root")
        return 2
    signal.signal(signal.SIGTERM, _leave)  # so that what was made is removed
    progress = Progress()
    try:
        prove(progress)
    except (Failed, SpecsplitError) as error:
        progress.say(f"FAILED: {error}")
        return 1
    progress.say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
