"""Writes docs/protocol.md from the code, or with --check says whether it is what the code gives.

States, events and transitions come from `specsplit.speculation.states`, what an event carries from its class, the calls from the proto
descriptors and the comments above them in protos/specsplit/v1, the statuses from `specsplit.rpc.catalogue`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from smg_grpc_proto.generated import vllm_engine_pb2

from scripts.printed import ROOT, finish
from specsplit.draft_events import FeaturesRead
from specsplit.features import Features
from specsplit.rpc.catalogue import CODES
from specsplit.speculation import TRANSITIONS, Commit, Event, Grow, Side, State
from specsplit.speculation.states import StateMachine
from specsplit.v1 import cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2
from specsplit.vllm_engine.servicer import VllmEngineServicer
from specsplit.wire import vllm, vllm_operations

PROTOS = ROOT / "protos"
PAGE = ROOT / "docs" / "protocol.md"
FILES: Sequence[FileDescriptor] = (
    coordinator_pb2.DESCRIPTOR,
    cluster_pb2.DESCRIPTOR,
    verifier_pb2.DESCRIPTOR,
    drafter_pb2.DESCRIPTOR,
)
HOLDERS = {Side.ORIGINAL: "drafter", Side.MIRROR: "verifier"}

INTRODUCTION = """\
# The protocol

<!-- Printed by `python -m scripts.print_protocol`; edit the code, not this page. -->

One session's speculation has two copies: the drafter's *original* and the verifier's *mirror*. Each copy is in one state, and an
event moves it along the table. An event that the table does not allow is an error that names session, state and event; it ends
drafting for that session and for no other. Grows flow one way and commits the other, and the two may cross on the wire. So a grow
is legal in every state of the mirror, and a commit in every state of the original. Why that is enough:
[design.md](design.md#3-grow-and-commit). The same worked through by hand: [tree.md](tree.md).
"""

FEATURES = """\
## Features

A drafter that reads hidden states of the target says which in its info. They come to it as features, and it says how far it has read, so
that the verifier never sends without bound. Neither moves a copy of the speculation.
"""

CALLS = """\
## Calls

The messages and the meaning of every field: [`protos/specsplit/v1`](../protos/specsplit/v1). Every server has `grpc.health.v1.Health` and
reflection beside its own services.
"""

ENGINE = """\
## The engine protocol

A coordinator also serves `vllm.grpc.engine.VllmEngine`, in which gateways speak to vLLM's engine, and so does every verifier; the
messages are those of the package `smg-grpc-proto` ([ADR 42](adr/0042-the-engine-protocol.md)). A request is read as one of
`CoordinatorService`, with the same checks, and by a coordinator with the same queue, quotas and log; a verifier has no queue but that of
its sessions. What specsplit does not have is refused by the name of its field:
"""

STATUSES = """\
## Statuses

An error is a gRPC status, never a field of a reply. On the other side the status becomes an error again: the same one, but that a
`LoadError` comes back as `Incompatible`. The code of a session's `refuse` event is one of these too.
"""


def attribute_docstrings(owner: type) -> dict[str, str]:
    """The sentence below each attribute of a class, by the attribute's name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        name, text = _assigned(statement), _string(below)
        if name and text:
            found[name] = " ".join(text.split())
    return found


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _string(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return None


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _meanings(owner: type[State] | type[Event]) -> Iterator[str]:
    texts = attribute_docstrings(owner)
    yield from _table((owner.__name__.lower(), "meaning"), ((f"`{each.value}`", texts[each.name]) for each in owner))


def states_of(side: Side) -> list[State]:
    """The states that a copy can be in, in the order of their definition."""
    within = {state for of, state, _ in TRANSITIONS if of is side}
    return [state for state in State if state in within]


def events_of(side: Side) -> list[Event]:
    """The events that can happen to a copy, in the order of their definition."""
    within = {event for of, _, event in TRANSITIONS if of is side}
    return [event for event in Event if event in within]


def _transition_table(side: Side) -> Iterator[str]:
    events = events_of(side)
    rows = (
        [f"`{state.value}`", *(_cell(TRANSITIONS.get((side, state, event))) for event in events)]
        for state in states_of(side)
    )
    yield from _table(["", *(f"`{event.value}`" for event in events)], rows)


def _cell(after: State | None) -> str:
    return "error" if after is None else after.value


def _diagram(side: Side) -> Iterator[str]:
    arrows: dict[tuple[State, State], list[str]] = {}
    for (of, before, event), after in TRANSITIONS.items():
        if of is side:
            arrows.setdefault((before, after), []).append(event.value)
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {StateMachine(0, side).state.value}"
    for (before, after), events in arrows.items():
        yield f"    {before.value} --> {after.value}: {', '.join(events)}"
    yield "```"


def _side(side: Side) -> Iterator[str]:
    yield f"## The {side.value}, held by the {HOLDERS[side]}"
    yield ""
    yield from _transition_table(side)
    yield ""
    yield from _diagram(side)
    yield ""


def _value(owner: type[Grow | Commit | Features | FeaturesRead]) -> Iterator[str]:
    texts = attribute_docstrings(owner)
    yield f"### {_words(owner.__name__)}"
    yield ""
    yield f"{inspect.getdoc(owner)}"
    yield ""
    if texts:
        fields = owner.__dataclass_fields__
        yield from _table(("field", "meaning"), ((f"`{name}`", texts.get(name, "one per node")) for name in fields))
        yield ""


def _words(name: str) -> str:
    """The name of a class in words: "FeaturesRead" is "features read"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _calls() -> Iterator[str]:
    rows: list[tuple[str, str, str, str]] = []
    for file in FILES:
        comments = _comments(PROTOS / file.name)
        for service in file.services_by_name.values():
            for method in service.methods:
                call = f"`{method.name}`"
                rows.append((f"`{service.name}`", call, _shape(method), comments[method.name]))
    yield from _table(("service", "call", "messages", "what it does"), rows)


def _shape(method: MethodDescriptor) -> str:
    asked = f"`{method.input_type.name}`"
    given = f"`{method.output_type.name}`"
    return f"{_streamed(asked, method.client_streaming)} → {_streamed(given, method.server_streaming)}"


def _streamed(name: str, streaming: bool) -> str:
    return f"stream of {name}" if streaming else name


def _comments(proto: Path) -> dict[str, str]:
    """The comment above each call of a proto file: descriptors do not keep it."""
    found = re.findall(r"((?:^ *// .*\n)+) *rpc (\w+)\(", proto.read_text(), re.MULTILINE)
    return {name: " ".join(re.sub(r"^ *// ", "", block, flags=re.MULTILINE).split()) for block, name in found}


def _engine() -> Iterator[str]:
    (service,) = vllm_engine_pb2.DESCRIPTOR.services_by_name.values()
    profile = {f"StartProfileRequest.{name}": why for name, why in vllm_operations.PROFILE_NOT_SERVED.items()}
    refused = sorted({**vllm.NOT_SERVED, **profile}.items())
    yield from _table(("field", "what is said of it"), ((f"`{name}`", why) for name, why in refused))
    yield ""
    calls = ((method, inspect.getdoc(getattr(VllmEngineServicer, method.name)) or "") for method in service.methods)
    yield from _table(
        ("call", "messages", "what it does"), ((f"`{each.name}`", _shape(each), what) for each, what in calls)
    )


def _statuses() -> Iterator[str]:
    rows = (
        (f"`{error.__name__}`", f"`{code.name}`", (inspect.getdoc(error) or "").partition("\n")[0])
        for error, code in CODES.items()
    )
    yield from _table(("error", "status", "when"), rows)


def page() -> str:
    """docs/protocol.md as the code has it."""
    lines = [INTRODUCTION, "## States", "", *_meanings(State), "", "## Events", "", *_meanings(Event), ""]
    for side in Side:
        lines += _side(side)
    lines += ["## What crosses the wire", "", *_value(Grow), *_value(Commit)]
    lines += [FEATURES, *_value(Features), *_value(FeaturesRead)]
    lines += [CALLS, *_calls(), "", ENGINE, *_engine(), "", STATUSES, *_statuses()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(finish(PAGE, page(), "print_protocol", __doc__))
