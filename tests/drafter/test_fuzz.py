"""Whatever bytes a drafter is sent, it answers with a status of the catalogue, and goes on."""

from __future__ import annotations

import pytest

from specsplit.draft_events import Close
from specsplit.features import Features
from specsplit.rpc import DRAFTER_SERVICE
from specsplit.speculation import Commit
from specsplit.wire.drafter import draft_request
from tests.drafter.service_toys import Stream, drafter
from tests.drafter.toys import open_event
from tests.support.fuzz import HEALTH, REFLECTION, check_no_tracebacks, fuzz, methods_of

EXAMPLES = (
    draft_request([(1, open_event([1, 2, 1, 2])), (2, open_event([3, 4, 3]))]),
    draft_request([(1, open_event([1, 2, 1])), (1, Commit(1, 0, (2,))), (1, Features(0, 1, b"1234")), (1, Close())]),
)


@pytest.mark.slow
async def test_a_drafter_survives_messages_that_nobody_means(caplog: pytest.LogCaptureFixture) -> None:
    async with drafter() as (server, channel, running):
        await fuzz(server.bound, methods_of(DRAFTER_SERVICE, HEALTH, REFLECTION), EXAMPLES, rounds=300)
        stream = Stream(channel)
        stream.send((1, open_event([1, 2, 1])))
        assert (await stream.grown(1)).tokens[0] == 2
        await stream.close()
        assert not running.done()
    check_no_tracebacks(caplog.records)
