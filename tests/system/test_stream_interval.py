"""Output that is held back over real processes: the same answer in fewer messages, with a drafter and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.client.options import make_request
from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.rpc import dial_blocking
from specsplit.v1 import coordinator_pb2_grpc
from specsplit.wire.coordinator import generate_events, generate_to_wire

TOKENS = 60


@pytest.fixture(scope="module")
def cluster(alphabet: Path) -> Iterator[LocalCluster]:
    with LocalCluster(alphabet, drafters=["ngram"]) as started:
        yield started


def messages(
    cluster: LocalCluster, interval: int, drafter: str, stop: tuple[str, ...] = ()
) -> list[list[GenerateEvent]]:
    """The events of an answer, by the message that they come in."""
    request = make_request(
        "abcabcabc", max_tokens=TOKENS, ignore_eos=True, drafter=drafter, stream_interval=interval, stop=stop
    )
    with dial_blocking(cluster.address) as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        return [generate_events(message) for message in stub.Generate(generate_to_wire(request), timeout=60)]


def text_of(found: list[list[GenerateEvent]]) -> str:
    return "".join(event.text for each in found for event in each if isinstance(event, Delta))


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_an_answer_is_the_same_in_few_messages(cluster: LocalCluster, drafter: str) -> None:
    alone = messages(cluster, 1, drafter)
    assert len(alone) > 1, "as they come, unless a message is on its way"
    for interval in (7, 32, 1024):
        found = messages(cluster, interval, drafter)
        assert text_of(found) == text_of(alone)
        tokens = [sum(len(e.tokens) for e in each if isinstance(e, Delta)) for each in found]
        assert sum(tokens) == TOKENS and all(count >= interval for count in tokens[1:-1])
        assert len(found) <= 2 + -(-TOKENS // interval), "the first tokens, as many as were asked for at once, the end"
        assert isinstance(found[-1][-1], Done)


def test_a_text_that_ends_the_answer_ends_it_behind_the_same_token(cluster: LocalCluster) -> None:
    whole = text_of(messages(cluster, 1, "none"))
    stop = (whole[20:23],)
    ends = {interval: messages(cluster, interval, "none", stop) for interval in (1, 32)}
    (done, held) = (each[-1][-1] for each in ends.values())
    assert isinstance(done, Done) and isinstance(held, Done)
    assert text_of(ends[1]) == text_of(ends[32]) == whole[: whole.index(stop[0])]
    assert done.usage == held.usage and done.speculation.steps == held.speculation.steps
