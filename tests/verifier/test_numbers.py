"""A target whose numbers break for one session's text ends that session, where it would have ended without a drafter."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from specsplit.errors import SpecsplitError
from specsplit.rpc import code_of
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.values import Sampling, Stopping
from specsplit_verifier.edge.verifier import Verifier
from tests.support.drafting import drafter_process
from tests.support.toys import alphabet_target
from tests.verifier.conftest import decode, verifier_over

pytestmark = pytest.mark.usefixtures("forked")


async def until_it_fails(verifier: Verifier, request: DecodeRequest) -> tuple[bytes, SpecsplitError]:
    """What a session got to see, and what ended it."""
    tokens: list[int] = []
    try:
        async for event in verifier.decode(request):
            assert isinstance(event, Tokens)
            tokens += event.tokens
    except SpecsplitError as error:
        return bytes(tokens), error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.01, top_k=3, top_p=0.9, min_p=0.1, seed=5)])
async def test_a_session_without_numbers_ends_alone(tmp_path: Path, sampling: Sampling) -> None:
    folder = alphabet_target(tmp_path, broken="k")
    async with verifier_over(folder) as verifier:
        (text, error), (others, _), (at_once, _) = await asyncio.gather(
            until_it_fails(verifier, DecodeRequest("broken", b"gh", sampling, Stopping(20))),
            decode(verifier, DecodeRequest("others", b"lm", sampling, Stopping(20))),
            until_it_fails(verifier, DecodeRequest("broken from the start", b"akb", sampling, Stopping(20))),
        )
        assert not verifier.failed.is_set()
        later, _ = await decode(verifier, DecodeRequest("later", b"a", sampling, Stopping(5)))
    assert text == b"ijk"
    assert at_once == b""
    assert bytes(others[:5]) == b"nopqr"
    assert bytes(later) == b"bcdef"
    assert code_of(error).name == "INTERNAL"
    assert "no token for position 5" in str(error)


async def test_a_draft_without_numbers_costs_its_session_nothing_but_drafts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The drafter proposes k after c, which the target does not; the NaN of that node reaches the whole tree."""
    folder = alphabet_target(tmp_path / "target", broken="k")
    draft = alphabet_target(tmp_path / "draft", wrong={"c": "k"})
    serial = {"draft_ahead": False, "wait_budget_us": 5_000_000}
    async with (
        drafter_process("standalone", model=draft) as endpoint,
        verifier_over(folder, **serial) as verifier,
    ):
        text, _ = await until_it_fails(verifier, DecodeRequest("r", b"a", stopping=Stopping(20), drafter=endpoint))
        until_k, end = await decode(
            verifier, DecodeRequest("r", b"d", stopping=Stopping(20, (ord("k"),)), drafter=endpoint)
        )
    assert text == b"bcdefghijk"
    assert re.search("session 1: .* going on without drafts", caplog.text)
    assert bytes(until_k) == b"efghij"
    assert end.stop_token == ord("k"), "what comes behind it is not asked"
