"""Writes docs/traces.md from the table of spans, or with --check says whether it is what the table gives."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.printed import ROOT, finish
from specsplit.observe.span_table import SPANS, SpanRow
from specsplit.values import DrafterKind

PAGE = ROOT / "docs" / "traces.md"
TYPES = {bool: "flag", int: "integer", float: "number", str: "text", list: "texts"}

INTRODUCTION = """\
# Traces

<!-- Printed by `python -m scripts.print_spans`; edit specsplit/observe/span_table.py or the script, not this page. -->

A request leaves one trace: from the program that asked, through coordinator and verifier, to the drafter. Give every service the
address of an OTLP receiver (gRPC):

```
pip install 'specsplit[otel]'
specsplit serve verifier --trace-endpoint 127.0.0.1:4317 --trace-level 2 ...
```

Without an endpoint nothing of OpenTelemetry is loaded and no object is made for a span. With one, three things say what is traced.
`specsplit trace` changes them in the whole cluster while it runs; services start with their own [settings](settings.md):

* **level**: 1 the stages of a request, 2 its steps too, 3 the parts of a step too; 0 nothing.
* **ratio**: the share of requests. It is drawn where a trace begins. A request that comes with a `traceparent` of its own is traced if
  that says so, whatever the ratio here; so every request has all of its spans or none.
* **modules**: the services that make spans. One that makes none passes the trace on.

```
specsplit trace --level 3 --ratio 0.01
specsplit trace --modules drafter
specsplit trace --reset
```

`specsplit trace` alone shows what is changed, to clients too. Changing is for operators; [how they are given](operations.md#as-an-operator)
where callers are asked who they are.

`specsplit.client` puts a request below the OpenTelemetry span that is current in the calling program, if there is one. Any other gRPC
client sends the header `traceparent` ([W3C Trace Context](https://www.w3.org/TR/trace-context/)). Log records that are written in the
course of a call carry `trace_id` and `span_id`.

## How they hang together

Requests share steps and expansions. So a step is a trace of its own, and the `spec_verify` of each request in it links to it. Such a
batch span is made if a traced request took part.

What a drafter does hangs below the verifier's `decode`: `traceparent` travels in the `open` event of a session, since all sessions of a
verifier share one stream. A `spec_draft` and a `spec_verify` of one request overlap if the drafter grew ahead; that is the point of it.

Spans are made when what they tell of is over, from the records that the engines hand out anyway. Only calls are begun and ended as
such. Times are those of the monotonic clock, moved to the time of day by one offset per process. Between machines spans are as far
apart as the machines' clocks.

Every span with the service that makes it, the level from which up it does, and how many there are:
"""

ATTRIBUTES = """\
## What each of them says

Of an attribute that is not always there, the meaning says when. Resources: `service.name` is `specsplit-` and the service,
`service.instance.id` the member id, if one is set, or host and process. Failed spans have status ERROR and the sentence of the error; a
call counts as failed on the server's side if the fault is not the caller's.
"""


def _tree() -> Iterator[str]:
    """Every span below its parent, with service, level and number."""
    rows = [(f"{'  ' * depth}{span.name}{_kind(span)}", span) for span, depth in _ordered(None, 0)]
    width = max(len(name) for name, _ in rows)
    yield "```"
    for name, span in rows:
        link = "" if span.link is None else f"; links to its {span.link.rpartition(' ')[2]}"
        yield f"{name:{width}}  {span.service:11}  {span.level}  {span.count}{link}"
    yield "```"


def _ordered(parent: str | None, depth: int) -> Iterator[tuple[SpanRow, int]]:
    for span in SPANS:
        if span.parent == parent:
            yield span, depth
            yield from _ordered(span.place, depth + 1)


def _kind(span: SpanRow) -> str:
    return "" if span.kind == "internal" else f" ({span.kind})"


def _section(span: SpanRow) -> Iterator[str]:
    yield f"### {span.service}: `{span.name}`{_kind(span)}"
    yield ""
    yield span.meaning + _drafters(span)
    yield ""
    if span.attributes:
        yield "| attribute | value | meaning |"
        yield "|---|---|---|"
        for each in span.attributes:
            optional = " (not always)" if each.optional else ""
            yield f"| `{each.name}` | {TYPES[each.type]}{optional} | {each.meaning} |"
        yield ""


def _drafters(span: SpanRow) -> str:
    without = [kind.value for kind in DrafterKind if kind not in span.drafters]
    return f" Drafters of kind {', '.join(without)} make none." if without else ""


def page() -> str:
    """docs/traces.md as the table has it."""
    lines = [INTRODUCTION, *_tree(), "", ATTRIBUTES]
    for span in SPANS:
        lines += _section(span)
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    raise SystemExit(finish(PAGE, page(), "print_spans", __doc__))
