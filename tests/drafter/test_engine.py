from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from specsplit.clock import SystemClock
from specsplit.draft_events import Close
from specsplit.errors import Unavailable
from specsplit.rpc import dial, wait_until_serving
from specsplit.speculation import Grow
from specsplit.values import Plan
from specsplit_drafter.drafts.proposer import Proposer
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.session_table import Answer, Outgoing
from tests.drafter.toys import TableProposer, open_event, table_of

WAIT_S = 20.0


class Messages(SimpleQueue[Sequence[tuple[int, Answer]]]):
    """An outbox for one stream."""

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        for message in outgoing.values():
            self.put(message)


def start(proposer: Proposer) -> tuple[Engine, Messages]:
    messages = Messages()
    engine = Engine(table_of(proposer, survival=0.2), SystemClock(), messages, lambda: None)
    engine.start()
    return engine, messages


def until_resting(messages: Messages, sessions: int = 1) -> list[Grow]:
    """Every grow up to the last of `sessions` sessions to rest."""
    grows: list[Grow] = []
    while sum(grow.resting for grow in grows) < sessions:
        for _, event in messages.get(timeout=WAIT_S):
            assert isinstance(event, Grow)
            grows.append(event)
    return grows


def test_each_expansion_is_told_at_once_in_one_message() -> None:
    proposer = TableProposer(lambda _: {0: 0.5, 1: 0.3})
    engine, messages = start(proposer)
    stream = engine.open_stream()
    engine.receive(stream, [(1, open_event([2])), (2, open_event([3]))])
    first = messages.get(timeout=WAIT_S)
    assert [session for session, _ in first] == [1, 2]
    grows = until_resting(messages, sessions=2)
    assert {grow.resting for grow in grows} >= {True}
    engine.stop()
    assert len(proposer.batches) == engine.statistics().expansions


def test_statistics_count_what_is_open_and_what_was_done() -> None:
    engine, messages = start(TableProposer(lambda _: {0: 0.5, 1: 0.3}))
    stream = engine.open_stream()
    engine.receive(stream, [(1, open_event([2], plan=Plan(num_steps=1)))])
    grows = until_resting(messages)
    during = engine.statistics()
    engine.receive(stream, [(1, Close())])
    engine.close_stream(stream)
    engine.stop()
    after = engine.statistics()
    assert (during.sessions, during.streams) == (1, 1)
    assert (after.sessions, after.streams) == (0, 0)
    assert after.pushed_nodes == sum(len(grow.ids) for grow in grows)
    assert after.expansions >= 2
    assert after.expansion_ms > 0
    assert engine.load().steps == after.expansions


def test_what_was_learnt_of_the_weights_before_is_forgotten_with_them() -> None:
    table = table_of(TableProposer(lambda _: {0: 0.5}))
    engine, learnt, copied = Engine(table, SystemClock(), Messages(), lambda: None), table.calibrations, list[int]()
    engine.start()
    engine.take_weights(lambda: copied.append(1)).result(WAIT_S)
    engine.stop()
    assert copied and table.calibrations is not learnt


def test_an_engine_whose_weights_are_broken_ends_and_says_so() -> None:
    def copy() -> None:
        raise RuntimeError("the device is gone")

    failed = threading.Event()
    engine = Engine(table_of(TableProposer(lambda _: {0: 0.5})), SystemClock(), Messages(), failed.set)
    engine.start()
    with pytest.raises(Unavailable, match="its weights are broken: the device is gone"):
        engine.take_weights(copy).result(WAIT_S)
    assert failed.wait(WAIT_S)
    engine.stop()


PROGRAM = """
import sys
from specsplit.settings import DrafterSettings
from specsplit_drafter.edge.service import main
code = main(DrafterSettings(kind="ngram"))
assert not {"torch", "opentelemetry"} & sys.modules.keys()
sys.exit(code)
"""


def test_an_ngram_drafter_runs_without_torch_and_leaves_on_sigterm_with_0() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("specsplit drafter listening on 127.0.0.1:")
    asyncio.run(_serving(said.split()[-1]))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors


async def _serving(address: str) -> None:
    async with dial(address) as channel:
        await wait_until_serving(channel, WAIT_S)
