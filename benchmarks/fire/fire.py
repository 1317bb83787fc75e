"""One run of `python -m benchmarks fire`: what every part of it is given."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.context import Context
from benchmarks.fire.ending import Ending
from benchmarks.fire.logs import Logs
from benchmarks.fire.mix import PICKS
from benchmarks.known import Known, known_texts
from benchmarks.ports import free_ports
from specsplit.cli.local import LocalCluster

LONGEST = 64
"""Tokens of a known text."""
DRAFTERS = ("standalone", "eagle3", "ngram")
VERIFIER: dict[str, object] = {"paced_step_base_ms": 20.0, "drafter_lost_after_s": 1.0, "drain_s": 3.0}
"""Steps last 20 ms, as on an accelerator with a large model, so that there is something to interrupt."""
DRAFTER: dict[str, object] = {"drain_s": 3.0}
COORDINATOR: dict[str, object] = {"drain_s": 3.0, "failover_s": 30.0}
STOP_S = 30.0
EVERYBODY: dict[str, object] = {"metrics_listen": "127.0.0.1:0", "log_format": "json", "log_level": "info"}


@dataclass(frozen=True)
class Fire:
    """What is drawn, where logs go, and how to show progress."""

    context: Context
    seed: int
    """Decides everything that is drawn."""
    folder: Path
    """The folder of this run, below build/fire."""
    ending: Ending = field(default_factory=Ending)
    only: Sequence[str] = ()
    """Names of the cases of the fuzz part that are played again, and nothing else."""
    corpus: Path | None = None
    """The honest conversations of the run that they are of; None: they are recorded."""

    def say(self, line: str) -> None:
        """Show a line of progress."""
        with suppress(OSError):  # a terminal that has gone ends no part
            self.context.console.print(line, highlight=False, markup=False)

    def chance(self, what: str) -> random.Random:
        """Draws of one stream, which no other stream disturbs."""
        return random.Random(f"{what} {self.seed}")

    @cached_property
    def known(self) -> Sequence[Known]:
        """The target's own texts, computed without drafter: greedy ones by transformers, all others by a verifier alone."""
        with self.ending.starting():
            return asyncio.run(known_texts(self.context.target, LONGEST, choices=2, picks=PICKS))

    @contextmanager
    def cluster(
        self, part: str, *, verifiers: int = 1, drafters: Sequence[str] = DRAFTERS
    ) -> Iterator[tuple[LocalCluster, Logs]]:
        """A cluster of processes, and their logs, which stay in the folder `part` of this run. The coordinator keeps its port.

        To be entered outside of an event loop. At the end everybody is told to leave. Raises SystemExit if the run was told to end.
        """
        models = {
            kind: self.context.models / folder for kind, folder in (("standalone", "draft"), ("eagle3", "eagle3"))
        }
        with Logs(self.folder / part) as logs:
            cluster = LocalCluster(
                self.context.target, models, verifiers=verifiers, drafters=drafters,
                listen=f"127.0.0.1:{free_ports(1)}", coordinator=COORDINATOR | EVERYBODY, verifier=VERIFIER | EVERYBODY,
                drafter=DRAFTER | EVERYBODY, listener=logs.hear, stop_timeout_s=STOP_S,
            )  # fmt: skip
            try:
                with self.ending.starting():
                    cluster.start()
                yield cluster, logs
            finally:
                cluster.stop()
            logs.left(cluster.children)
