"""Every span that specsplit makes. docs/traces.md is printed from this table, and tests compare what real processes send with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specsplit.values import DrafterKind


@dataclass(frozen=True)
class SpanAttribute:
    """One attribute of a span."""

    name: str
    type: type
    """bool, int, float, str, or list for several texts."""
    meaning: str
    optional: bool = False
    """True: only where the meaning says so."""


@dataclass(frozen=True)
class SpanRow:
    """One row of the table: a name of spans, and what is true of them."""

    name: str
    service: str
    level: int
    """The lowest trace_level at which the span is made."""
    parent: str | None
    """`place` of the row it hangs below; None: the root of a trace of its own."""
    count: str
    """How many there are."""
    meaning: str
    attributes: tuple[SpanAttribute, ...] = ()
    kind: str = "internal"
    """OpenTelemetry's kind of span: internal, server or client."""
    link: str | None = None
    """`place` of the batch span that each of them links to."""
    drafters: frozenset[DrafterKind] = frozenset(DrafterKind)
    """Kinds of drafter with which there are such spans."""

    @property
    def place(self) -> str:
        """The key of the row: service, kind and name."""
        return f"{self.service} {self.kind} {self.name}"


def _text(name: str, meaning: str, *, optional: bool = False) -> SpanAttribute:
    return SpanAttribute(name, str, meaning, optional)


def _number(name: str, meaning: str, *, optional: bool = False) -> SpanAttribute:
    return SpanAttribute(name, int, meaning, optional)


def _real(name: str, meaning: str, *, optional: bool = False) -> SpanAttribute:
    return SpanAttribute(name, float, meaning, optional)


def _flag(name: str, meaning: str) -> SpanAttribute:
    return SpanAttribute(name, bool, meaning)


GENERATE_CALL = "/specsplit.v1.CoordinatorService/Generate"
ENGINE_CALL = "/vllm.grpc.engine.VllmEngine/Generate"
DECODE_CALL = "/specsplit.v1.VerifierService/Decode"

_WITH_MODEL = frozenset(kind for kind in DrafterKind if kind.needs_model)
_SERVER = (
    _text("rpc.system", "`grpc`"),
    _text("rpc.service", "full name of the gRPC service"),
    _text("rpc.method", "name of the call"),
    _number("rpc.grpc.status_code", "number of the gRPC status that ended the call; 1 if the caller went away"),
    _text("rpc.user_agent", "what the caller says it is", optional=True),
    _text("net.peer.ip", "the caller's address", optional=True),
    _text("net.peer.port", "the caller's port", optional=True),
    _text("net.peer.name", "`localhost` for a caller on this machine", optional=True),
)
_CLIENT = _SERVER[:4]
_SESSION = _text("request_id", "the request's name, as the reply gives it")

SPANS: tuple[SpanRow, ...] = (
    SpanRow(
        GENERATE_CALL,
        "coordinator",
        1,
        None,
        "one per request",
        "The caller's request, from the first byte to the last. It hangs below the caller's span if the metadata name one (`traceparent`).",
        _SERVER,
        kind="server",
    ),
    SpanRow(
        ENGINE_CALL,
        "coordinator",
        1,
        None,
        "one per request of a gateway",
        "The request of a gateway that speaks vLLM's engine protocol, in the place of the call above; `generate` hangs below it then.",
        _SERVER,
        kind="server",
    ),
    SpanRow(
        "generate",
        "coordinator",
        1,
        f"coordinator server {GENERATE_CALL}",
        "one per request",
        "The request, in the words of OpenTelemetry's conventions for generative AI. No text of prompt or output is in it. "
        "An event `failover` (`cause`, the `verifier` that had it, its `tokens` so far) stands for every time that a choice went on "
        "elsewhere.",
        (
            _text("gen_ai.operation.name", "`chat` for a conversation, else `text_completion`"),
            _text("gen_ai.provider.name", "`specsplit`"),
            _text("gen_ai.request.model", "the cluster's target; left out if no verifier was there", optional=True),
            _real("gen_ai.request.temperature", "as asked; 0: argmax"),
            _real("gen_ai.request.top_p", "as asked; 1: all"),
            _number("gen_ai.request.top_k", "as asked; 0: all"),
            _number("gen_ai.request.seed", "as asked or drawn", optional=True),
            _number("gen_ai.request.max_tokens", "as asked; left out if it was not", optional=True),
            _number("gen_ai.request.choice.count", "as asked; left out if it is 1", optional=True),
            SpanAttribute(
                "gen_ai.response.finish_reasons",
                list,
                "`stop` or `length` of every choice; left out if it failed",
                True,
            ),
            _text("gen_ai.response.id", "the request's name", optional=True),
            _text("gen_ai.response.model", "the target that answered", optional=True),
            _number("gen_ai.usage.input_tokens", "tokens of the prompt", optional=True),
            _number("gen_ai.usage.output_tokens", "tokens generated and kept, of all choices", optional=True),
            _real(
                "gen_ai.response.time_to_first_chunk",
                "seconds from the request to its first token; left out if there was none",
                optional=True,
            ),
            _text("error.type", "name of the gRPC status that it failed with, or `CANCELLED`", optional=True),
            _text(
                "specsplit.verifier",
                "member id of the verifier; of several choices those of all, each once",
                optional=True,
            ),
            _number("specsplit.failovers", "how often a choice went on elsewhere; left out if none did", optional=True),
            _text("specsplit.adapter", "the adapter that was asked for; left out if there was none", optional=True),
            _text("specsplit.drafter", "member id of the drafter; left out if there was none", optional=True),
            _number("specsplit.steps", "steps of the target that the request took part in", optional=True),
            _number("specsplit.drafted", "nodes verified", optional=True),
            _number("specsplit.accepted", "nodes accepted", optional=True),
            _number("specsplit.hits", "commits whose bonus was a node", optional=True),
            _number("specsplit.misses", "commits whose bonus was not", optional=True),
            _real("specsplit.accept_length", "committed tokens per step", optional=True),
        ),
    ),
    SpanRow(
        "tokenize",
        "coordinator",
        1,
        "coordinator internal generate",
        "one per request",
        "The prompt becomes tokens, through the chat template if it is a conversation.",
        (_number("tokens", "tokens of the prompt; left out if it could not be read", optional=True),),
    ),
    SpanRow(
        "queue",
        "coordinator",
        1,
        "coordinator internal generate",
        "one per choice of a request, and one more for every failover",
        "Waiting for a place on a verifier; next to nothing if one was free.",
        (_text("verifier", "member id of the verifier that was given; left out if none was", optional=True),),
    ),
    SpanRow(
        "session",
        "coordinator",
        1,
        "coordinator internal generate",
        "one per choice of a request, and one more for every failover",
        "The session on a verifier, from its begin to its end.",
        (_text("verifier", "member id of the verifier"),),
    ),
    SpanRow(
        DECODE_CALL,
        "coordinator",
        1,
        "coordinator internal session",
        "one per session that has a call of its own",
        "The call, as the coordinator sees it. Most sessions of a pair share one call, which belongs to no request and has no span.",
        _CLIENT,
        kind="client",
    ),
    SpanRow(
        DECODE_CALL,
        "verifier",
        1,
        f"coordinator client {DECODE_CALL}",
        "one per session that has a call of its own",
        "The same, as the verifier sees it. Without a coordinator it is the root. `session` hangs below it then.",
        _SERVER,
        kind="server",
    ),
    SpanRow(
        ENGINE_CALL,
        "verifier",
        1,
        None,
        "one per request of a gateway that calls this verifier",
        "The same for a gateway without a coordinator between, in the place of the call above; what is below that is below this then.",
        _SERVER,
        kind="server",
    ),
    SpanRow(
        "session",
        "verifier",
        1,
        "coordinator internal session",
        "one per choice of a request",
        "The session as the verifier sees it, from submission to its end.",
        (_SESSION,),
    ),
    SpanRow(
        "prefill",
        "verifier",
        1,
        "verifier internal session",
        "one per choice of a request",
        "From submission to the end of the step that read the last of the prompt; waiting for KV pages included.",
        (
            _SESSION,
            _number("prompt_tokens", "tokens of the prompt"),
            _number("committed", "tokens behind it that were generated earlier, as on a verifier that was lost"),
            _number("chunks", "steps that read some of it; 0 for a prompt of one token"),
        ),
    ),
    SpanRow(
        "decode",
        "verifier",
        1,
        "verifier internal session",
        "one per choice of a request",
        "From the end of `prefill` to the last commit; where the step that reads the last of the prompt decodes too, from the beginning of "
        "that step, so that the two overlap by it. What drafters do for the request hangs below it, during the prefill too.",
        (
            _SESSION,
            _number("steps", "steps that decoded for the request: as many as it has `spec_verify`"),
            _number("drafted", "nodes verified"),
            _number("accepted", "nodes accepted"),
            _number("hits", "commits whose bonus was a node"),
            _number("misses", "commits whose bonus was not"),
        ),
    ),
    SpanRow(
        "step",
        "verifier",
        2,
        None,
        "one per step that a traced request took part in",
        "One forward pass of the target, and what belongs to it on the engine thread: from the choice of the batch to the hand-over.",
        (
            _number("sessions", "requests that brought a tree"),
            _number("tokens", "tokens in the forward"),
            _number("prefill_tokens", "of these, of prompts"),
            _number("drafted", "nodes verified"),
            _number("accepted", "nodes accepted"),
            _number("committed", "tokens committed"),
            _real("forward_us", "the model's forward"),
            _real("host_us", "everything else on the engine thread since the step before"),
            _real("waited_us", "time before it that was spent waiting for drafters, or for other ranks of the group"),
            _flag("idle", "it was run for other ranks of the group alone"),
        ),
    ),
    SpanRow(
        "spec_verify",
        "verifier",
        2,
        "verifier internal decode",
        "one per request and step: `steps` of the reply's speculation statistics",
        "The tree of one request is verified.",
        (
            _number("step", "which of the request's steps, from 1"),
            _number("num_draft_tokens", "tokens the request had in the step, root included"),
            _number("num_correct_drafts", "nodes accepted"),
            _number("accepted_tokens", "the same, by the name that SGLang's traces give it"),
            _flag("hit", "the bonus was a node; False in the last step of a request too"),
            _number("plan.num_steps", "the plan: deepest node"),
            _number("plan.topk", "the plan: children of one node"),
            _number("plan.num_draft_tokens", "the plan: tokens of the request in one step, root included"),
            _number("batch_size", "requests that brought a tree to the step"),
            _flag("idle", "there was no node: the target decoded alone"),
        ),
        link="verifier internal step",
    ),
    SpanRow(
        "spec_wait",
        "verifier",
        3,
        "verifier internal decode",
        "one per request and step that was waited for",
        "From the commit, or from when the engine had nothing better to do, to the start of the step: waiting for what the drafter grows.",
        (
            _number("step", "the step that came after it, from 1"),
            _number("wait_budget_us", "the plan: longest wait"),
        ),
        link="verifier internal step",
    ),
    SpanRow(
        "prefill_chunk",
        "verifier",
        3,
        "verifier internal prefill",
        "one per step that read some of the prompt",
        "A piece of the prompt is read.",
        (
            _number("first", "position of its first token"),
            _number("tokens", "tokens in it"),
        ),
        link="verifier internal step",
    ),
    SpanRow(
        "spec_draft",
        "drafter",
        2,
        "verifier internal decode",
        "one per commit round of a request: from the open, or a commit, to the next commit or the end",
        "The drafter grows the tree of one request while the verifier verifies. It fails, and says why, if the drafter drops or loses it.",
        (
            _text("kind", "the kind of drafter"),
            _number("round", "commits that the drafter had applied when it began: 0 after the open"),
            _number("expanded", "nodes expanded, the root included"),
            _number("grown", "nodes sent to the verifier"),
            _flag(
                "rested",
                "at the end nothing more was to come: no node was worth growing, or a head waited for features",
            ),
        ),
    ),
    SpanRow(
        "expansion",
        "drafter",
        3,
        None,
        "one per expansion that a traced request took part in",
        "One forward pass of the drafter, or one look-up of a drafter without a model.",
        (
            _text("kind", "the kind of drafter"),
            _number("sessions", "requests that took part"),
            _number("nodes", "nodes in it; a root counts too, and each time while its context is read in parts"),
        ),
    ),
    SpanRow(
        "spec_draft_extend",
        "drafter",
        3,
        "drafter internal spec_draft",
        "one per expansion that read committed tokens of the request",
        "The drafter reads what was committed, the prompt or a commit, so that it knows the root; a head reads the target's features too.",
        (_number("tokens", "committed tokens read"),),
        link="drafter internal expansion",
        drafters=_WITH_MODEL,
    ),
    SpanRow(
        "spec_grow",
        "drafter",
        3,
        "drafter internal spec_draft",
        "one per request and expansion that expanded nodes of it",
        "Nodes of one request are expanded, and what is likely enough of their children is sent.",
        (
            _number("nodes", "nodes expanded, the root included"),
            _number("grown", "nodes sent to the verifier"),
        ),
        link="drafter internal expansion",
    ),
)


def row(service: str, name: str, kind: str = "internal") -> SpanRow:
    """The row of a span. Raises KeyError for one that the table does not have."""
    place = f"{service} {kind} {name}"
    found = next((each for each in SPANS if each.place == place), None)
    if found is None:
        raise KeyError(f"there is no span {place} in the table")
    return found


def rows_at(level: int, drafter: DrafterKind | None = None) -> tuple[SpanRow, ...]:
    """What a request that is traced at `level` has spans of; with no drafter, only those that need none."""
    return tuple(
        each
        for each in SPANS
        if each.level <= level and (each.service != "drafter" if drafter is None else drafter in each.drafters)
    )


def problems_of(span: SpanRow, attributes: Iterable[tuple[str, object]]) -> list[str]:
    """What is wrong with the attributes of a span that was made, in sentences; empty: they are those of the table."""
    given = dict(attributes)
    expected = {each.name: each for each in span.attributes}
    missing = [name for name, each in expected.items() if name not in given and not each.optional]
    unknown = [name for name in given if name not in expected]
    wrong = [
        f"{span.name}: {name} is {value!r}, expected {expected[name].type.__name__}"
        for name, value in given.items()
        if name in expected and type(value) is not expected[name].type
    ]
    return [
        *(f"{span.name}: {name} is missing" for name in missing),
        *(f"{span.name}: {name} is not in the table" for name in unknown),
        *wrong,
    ]
