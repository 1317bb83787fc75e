"""Verifier and drafter joined by a wire that delays, crosses the two directions, drops peers and reconnects, on a seed.

What joins them is tests.support.loopback.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, Plan, Stopping, Vocabulary
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from tests.drafter.toys import Distribution, TableProposer
from tests.support.loopback import ADDRESSES, MOVES, TICKS_S, Loopback
from tests.support.ticking import TickingClock

VOCAB = 6
MAX_NODES = 20
PLAN = Plan(num_steps=3, topk=2, num_draft_tokens=5)
LIMIT = 60


def target(sequence: Sequence[int]) -> int:
    """What the target picks behind a sequence."""
    return (3 * sequence[-1] + len(sequence) % 2 + 1) % VOCAB


def draft(sequence: Sequence[int]) -> Distribution:
    """A draft that is right half of the time as first choice, and now and then not at all."""
    right = target(sequence)
    match len(sequence) % 4:
        case 0 | 1:
            return {right: 0.7, (right + 1) % VOCAB: 0.3}
        case 2:
            return {(right + 1) % VOCAB: 0.6, right: 0.4}
        case _:
            return {(right + 2) % VOCAB: 1.0}


def truth(prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens that the target writes behind a prompt."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(target(sequence))
    return sequence[len(prompt) :]


class World(Loopback):
    """A verifier whose sessions are past their prompts, and drafters of tables."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        chance = random.Random(len(prompts))
        clock = TickingClock(lambda: chance.choice(TICKS_S))
        tables = {
            address: SessionTable(TableProposer(draft, Vocabulary(VOCAB)), TableLimits(16, 4), clock)
            for address in ADDRESSES
        }
        super().__init__(DrafterPool(Vocabulary(VOCAB), MAX_NODES), tables, MAX_NODES)
        pool = PagePool(64, 4)
        for number, prompt in enumerate(prompts, start=1):
            request = DecodeRequest(str(number), tuple(prompt), stopping=Stopping(LIMIT))
            session = Session(number, request, PLAN, StopRule(LIMIT), PageTable(pool), list(prompt), len(prompt) - 1)
            self.attach(session, Endpoint("", ADDRESSES[number % 2]))
        self.drafters.roster([Endpoint(a, a) for a in ADDRESSES], (), self.now)
        self.send_outgoing()

    def step(self, session: Session) -> None:
        self.apply_grows()
        taken = session.take(session.tree_limits)
        picks: list[int] = []
        paths: list[list[int]] = []
        for token, parent in zip(taken.tokens, taken.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else session.tokens[:-1]), token])
            picks.append(target(paths[-1]))
        self.commit(session, taken, picks)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_wire_does_the_text_is_the_targets_own(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), min_size=1, max_size=3))
    world = World(prompts)
    written = dict(world.sessions)
    for _ in range(data.draw(st.integers(5, 80))):
        address = data.draw(st.sampled_from(ADDRESSES))
        match data.draw(st.sampled_from(MOVES)):
            case "step" if world.sessions:
                world.step(data.draw(st.sampled_from(list(world.sessions.values()))))
            case "to drafter":
                world.deliver_to_drafter(address)
            case "expand":
                world.expand(address)
            case "to verifier":
                world.deliver_to_verifier(address)
            case "drop" if data.draw(st.integers(0, 3)) == 0:
                world.drop(address)
            case _:
                world.cool_down()
        for session in written.values():
            assert session.tokens[session.prompt_length :] == truth(session.request.tokens, session.generated)
            assert not isinstance(session.drafter, DraftSession) or len(session.drafter.mirror) <= MAX_NODES
    world.drain(400)
    world.check_at_rest()
