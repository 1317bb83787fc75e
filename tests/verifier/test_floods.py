"""Three drafters that flood a verifier, beside an honest one: they are dropped and named, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from specsplit.membership import Roster
from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, Stopping
from tests.drafter.service_toys import drafter
from tests.support.flooding import KINDS, flooding
from tests.verifier.conftest import decode, verifier_beside_floods

FLOODS = ("unknown", "known", "huge")
TOKENS = 120


async def test_drafters_that_flood_are_dropped_and_named_and_their_sessions_go_on_with_an_honest_one(
    alphabet: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as running:
        honest, _, _ = await running.enter_async_context(drafter())
        floods = [await running.enter_async_context(flooding(KINDS[kind])) for kind in FLOODS]
        drafters = [Endpoint("honest", honest.bound), *floods]
        verifier = await running.enter_async_context(
            verifier_beside_floods(alphabet, draft_ahead=False, wait_budget_us=5_000_000)
        )
        verifier.engine.post(Roster(tuple(drafters)))
        requests = [
            DecodeRequest(str(i), [97 + i], stopping=Stopping(TOKENS), drafter=drafters[i % 4]) for i in range(8)
        ]
        with caplog.at_level(logging.WARNING):
            texts = await asyncio.gather(*(decode(verifier, request) for request in requests))
        streams = verifier.streams.statistics
    circle = bytes(range(97, 123)) * 8
    assert [bytes(tokens) for tokens, _ in texts] == [circle[i + 1 : i + 1 + TOKENS] for i in range(8)]
    assert {address for address, stream in streams.items() if stream.drops} == {each.address for each in floods}
    assert sum(streams[each.address].events_received for each in floods) == 0, "nothing of it was worked on"
    for kind, each in zip(FLOODS, floods, strict=True):
        assert f"drafter {each.address} dropped: " in caplog.text, kind
    assert streams[honest.bound].nodes_received > 0
    assert sum(end.speculation.accepted for _, end in texts) > 0, "the honest one drafts for all of them"
