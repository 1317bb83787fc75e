"""Ranks that several of torchrun's agents start, as pods do: those of one start of the group meet, and no others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from specsplit.errors import RankLost
from specsplit.model.ranks.mesh import TorchMesh
from tests.support.ranks import free_port


class Agent:
    """What torchrun is inside: a process that meets the other agent and starts one rank of two.

    It is forked, since importing torch takes seconds.
    """

    def __init__(self, log: Path, endpoint: str, *, host: bool) -> None:
        self._log = log
        log.touch()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_run_agent, args=(log, endpoint, host))
        self.process.start()

    def met(self) -> str:
        """The processes of both ranks when they met last; empty before that."""
        return self._log.read_text()

    def kill(self) -> None:
        """With its rank, as the end of a container does."""
        assert self.process.pid is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()


def _run_agent(log: Path, endpoint: str, host: bool) -> None:
    os.setsid()
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        2,
        2,
        1,
        run_id="two",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"is_host": host, "keep_alive_interval": 1, "keep_alive_max_attempt": 5},
        local_addr="127.0.0.1",
        max_restarts=9,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(),
    )
    elastic_launch(config, _run_rank)(log)


def _run_rank(log: Path) -> None:
    """Meet the other rank, say so, and exchange numbers with it until it is lost."""
    mesh = TorchMesh(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 30.0)
    log.write_text(str(mesh.exchange([os.getpid()])))
    try:
        while True:
            mesh.exchange([0])
            time.sleep(0.05)
    except RankLost:
        os._exit(1)


@contextmanager
def running(*agents: Agent) -> Iterator[None]:
    try:
        yield
    finally:
        for agent in agents:
            if agent.process.is_alive():
                agent.kill()


def await_meeting(*agents: Agent, other_than: str = "") -> str:
    """Who has met, once the ranks of these agents are together, in another meeting than that."""
    until = time.monotonic() + 60
    while len(last := {agent.met() for agent in agents}) > 1 or not last.isdisjoint({"", other_than}):
        assert time.monotonic() < until, last
        time.sleep(0.05)
    return last.pop()


@pytest.mark.timeout(150)
def test_a_group_meets_again_when_the_agent_of_one_of_its_ranks_is_replaced(tmp_path: Path) -> None:
    torch.set_num_threads(1)  # a pool of threads would not live through the fork
    endpoint = f"127.0.0.1:{free_port()}"
    stays, goes = Agent(tmp_path / "0", endpoint, host=True), Agent(tmp_path / "1", endpoint, host=False)
    with running(stays, goes):
        first = await_meeting(stays, goes)
        goes.kill()
        comes = Agent(tmp_path / "2", endpoint, host=False)
        with running(comes):
            await_meeting(stays, comes, other_than=first)
