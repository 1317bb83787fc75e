"""Spans after the fact, sent by the real exporter to a receiver."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.observe import TraceContext, Tracing, set_up_tracing
from specsplit.settings import CoordinatorSettings
from specsplit.values import TraceChanges, TraceScope
from tests.support.otlp import Receiver, receiving

PARENT = TraceContext(0xA0, 0xB0, sampled=True)
UNSAMPLED = TraceContext(0xA0, 0xB0, sampled=False)

contexts = st.builds(TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
Made = Callable[..., Tracing]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def make(receiver: Receiver) -> Iterator[Made]:
    """Makes tracings that send to the receiver; settings without `trace_`."""
    made: list[Tracing] = []

    def make(**settings: object) -> Tracing:
        values = {f"trace_{name}": value for name, value in {"endpoint": receiver.address, **settings}.items()}
        made.append(set_up_tracing("coordinator", CoordinatorSettings.load(model=Path("unused"), **values)))
        return made[-1]

    yield make
    for tracing in made:
        tracing.close()


def off() -> Tracing:
    return set_up_tracing("coordinator", CoordinatorSettings(model=Path("unused"), trace_level=3))


@given(contexts)
def test_a_context_survives_as_a_traceparent(context: TraceContext) -> None:
    assert TraceContext.parse(context.traceparent) == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'A' * 32}-{'1' * 16}-01",
        f"00-{'1' * 31}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01 ",
    ],
)
def test_a_broken_traceparent_is_none_at_all(text: str) -> None:
    assert TraceContext.parse(text) is None


def test_a_traceparent_of_a_later_version_is_read_as_far_as_this_one_knows() -> None:
    parsed = TraceContext.parse(f"01-{'1' * 32}-{'2' * 16}-03-more")
    assert parsed == TraceContext(int("1" * 32, 16), int("2" * 16, 16), sampled=True)


def test_a_span_arrives_with_its_place_its_times_and_all_that_was_said_of_it(receiver: Receiver, make: Made) -> None:
    tracing = make()
    wall_ns, now = time.time_ns(), time.monotonic()
    batch = tracing.batch("step", now - 2, now - 1, attributes={"tokens": 7})
    assert batch is not None
    attributes = {"hit": True, "kind": "ngram", "share": 0.5, "reasons": ["stop"]}
    made = tracing.span("spec_verify", now - 2, now - 1, parent=PARENT, attributes=attributes, links=[batch])
    failed = tracing.span("queue", now - 1, now, parent=PARENT, error="the queue is full")
    tracing.close()
    step, verify, queue = receiver.spans
    assert (step.trace_id, step.span_id) == (f"{batch.trace_id:032x}", f"{batch.span_id:016x}")
    assert (step.parent_id, step.attributes, step.links) == ("", {"tokens": 7}, ())
    assert made is not None and failed is not None
    assert (verify.trace_id, verify.parent_id, verify.span_id) == (
        f"{0xA0:032x}",
        f"{0xB0:016x}",
        f"{made.span_id:016x}",
    )
    assert (verify.attributes, verify.links) == (attributes, ((step.trace_id, step.span_id),))
    assert (verify.service, verify.kind, verify.failed) == ("specsplit-coordinator", "internal", False)
    assert abs(verify.end_ns - verify.start_ns - 10**9) < 1000
    assert abs(queue.end_ns - wall_ns) < 5 * 10**9
    assert (queue.failed, queue.sentence) == (True, "the queue is full")


def test_what_belongs_below_a_span_can_be_made_before_it(receiver: Receiver, make: Made) -> None:
    tracing = make()
    decode = tracing.below(PARENT)
    tracing.span("spec_verify", 1, 2, parent=decode)
    tracing.span("decode", 0, 3, parent=PARENT, context=decode)
    tracing.close()
    inner, outer = receiver.spans
    assert (inner.parent_id, outer.parent_id) == (outer.span_id, f"{0xB0:016x}")
    assert inner.trace_id == outer.trace_id


@pytest.mark.parametrize("parent", [None, UNSAMPLED])
def test_a_request_that_nobody_traces_has_no_spans(receiver: Receiver, make: Made, parent: TraceContext | None) -> None:
    tracing = make(level=3)
    assert not tracing.follows(1, parent)
    assert tracing.span("decode", 0, 1, parent=parent) is None
    tracing.close()
    assert receiver.spans == []


def test_level_and_modules_say_what_is_wanted_and_change_while_it_runs(make: Made) -> None:
    tracing = make(level=2, ratio=0.25)

    def wanted() -> list[int]:
        return [level for level in (1, 2, 3) if tracing.wants(level) and tracing.follows(level, PARENT)]

    assert wanted() == [1, 2]
    for changes, levels in (
        (TraceChanges(level=3), [1, 2, 3]),
        (TraceChanges(level=0), []),
        (TraceChanges(modules=("drafter", "verifier")), []),
        (TraceChanges(modules=("coordinator",), level=1), [1]),
        (TraceChanges(), [1, 2]),
    ):
        tracing.apply(changes)
        assert wanted() == levels
    assert tracing.scope == TraceScope(2, 0.25)


def test_a_change_out_of_range_is_refused_and_changes_nothing(make: Made) -> None:
    tracing = make(level=2)
    with pytest.raises(InvalidRequest, match="trace_level: is 4"):
        tracing.apply(TraceChanges(level=4))
    assert tracing.scope.level == 2


def test_without_an_endpoint_nothing_is_wanted_and_nothing_is_made() -> None:
    tracing = off()
    tracing.apply(TraceChanges(level=3))
    assert (tracing.sink, tracing.wants(1), tracing.follows(1, PARENT), tracing.current()) == (None, False, False, None)
    assert tracing.span("decode", 0, 1, parent=PARENT) is None
    assert tracing.batch("step", 0, 1) is None
    with tracing.within(PARENT):
        pass
    tracing.close()


def test_without_opentelemetry_an_endpoint_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specsplit.observe.otlp", None)  # as if an import in it had failed
    with pytest.raises(Unavailable, match=r"pip install 'specsplit\[otel\]'"):
        set_up_tracing("coordinator", CoordinatorSettings(model=Path("unused"), trace_endpoint="127.0.0.1:4317"))


SERVE = """
import asyncio, sys
from pathlib import Path
from specsplit.rpc import Server, dial
from specsplit.settings import CoordinatorSettings

async def main():
    server = Server(CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0"), "coordinator", services=[])
    async with dial(await server.start(), None, server.tracing):
        pass
    await server.stop()

asyncio.run(main())
import specsplit.client, specsplit.cli, specsplit_coordinator.edge.service
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_an_endpoint_a_service_loads_nothing_of_opentelemetry() -> None:
    run = subprocess.run([sys.executable, "-c", SERVE], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"trace_endpoint": "nowhere"}, "trace_endpoint: is 'nowhere'"),
        ({"trace_level": 4}, "trace_level: is 4"),
        ({"trace_ratio": 1.5}, "trace_ratio: is 1.5"),
        (
            {"trace_modules": "verifier,oracle"},
            "trace_modules: has 'oracle', expected some of coordinator, verifier, drafter",
        ),
        ({"metrics_listen": "here"}, "metrics_listen: is 'here'"),
        ({"metrics_listen": "0.0.0.0:9100"}, "metrics_listen: 0.0.0.0:9100 can be reached"),
    ],
)
def test_a_setting_that_is_no_good_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        CoordinatorSettings.load(None, model=Path("unused"), **settings)
    assert str(caught.value).startswith(named)


def test_modules_are_a_list_with_commas_and_metrics_may_be_for_all_if_that_is_allowed() -> None:
    settings = CoordinatorSettings(
        model=Path("unused"), trace_modules=" verifier, drafter", metrics_listen="0.0.0.0:9100", insecure=True
    )
    assert settings.trace_scope == TraceScope(modules=("verifier", "drafter"))
