"""common.proto: what the messages of several services have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specsplit.errors import InvalidRequest
from specsplit.features import LAST, FeatureFormat, FeatureLayout, FeatureNeed
from specsplit.membership import Role
from specsplit.v1 import cluster_pb2 as cluster_pb
from specsplit.v1 import common_pb2 as pb
from specsplit.v1 import coordinator_pb2 as coordinator_pb
from specsplit.values import (
    Adapter,
    AdapterLoad,
    Constraint,
    ConstraintKind,
    DrafterInfo,
    DrafterKind,
    FinishReason,
    Load,
    ModelInfo,
    Plan,
    PlanChanges,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TraceChanges,
    Usage,
    Vocabulary,
)

if TYPE_CHECKING:
    from smg_grpc_proto.generated import vllm_engine_pb2 as gateway_pb  # pyright: ignore[reportMissingTypeStubs]

_KINDS = {
    DrafterKind.NGRAM: pb.DRAFTER_KIND_NGRAM,
    DrafterKind.STANDALONE: pb.DRAFTER_KIND_STANDALONE,
    DrafterKind.EAGLE: pb.DRAFTER_KIND_EAGLE,
    DrafterKind.EAGLE3: pb.DRAFTER_KIND_EAGLE3,
    DrafterKind.MULTI_LAYER_EAGLE: pb.DRAFTER_KIND_MULTI_LAYER_EAGLE,
    DrafterKind.DFLASH: pb.DRAFTER_KIND_DFLASH,
    DrafterKind.DSPARK: pb.DRAFTER_KIND_DSPARK,
}
_KINDS_BACK = {wire: kind for kind, wire in _KINDS.items()}
_FORMATS = {
    FeatureFormat.TARGET: pb.FEATURE_FORMAT_UNSPECIFIED,
    FeatureFormat.FLOAT32: pb.FEATURE_FORMAT_FLOAT32,
    FeatureFormat.BFLOAT16: pb.FEATURE_FORMAT_BFLOAT16,
    FeatureFormat.FLOAT16: pb.FEATURE_FORMAT_FLOAT16,
    FeatureFormat.FP8_E4M3: pb.FEATURE_FORMAT_FP8_E4M3,
}
_FORMATS_BACK: dict[int, FeatureFormat] = {int(wire): each for each, wire in _FORMATS.items()}
_REASONS = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}
_REASONS_BACK: dict[int, FinishReason] = {int(wire): reason for reason, wire in _REASONS.items()}

_Constrained: TypeAlias = pb.Constraint | coordinator_pb.GenerateRequest
"""Messages of ours with the fields of a constraint. A gateway's has the same."""

_MOST = 2**32 - 1
"""The largest sum that a message holds (uint32)."""


def fields_of(value: object, **own: Any) -> dict[str, Any]:
    """The fields of a value that its message has by the same names; those in `own` are written so."""
    return {**vars(value), **own}


def kind_to_wire(kind: DrafterKind) -> pb.DrafterKind:
    return _KINDS[kind]


def kind_from_wire(kind: pb.DrafterKind, field: str = "kind") -> DrafterKind:
    """Raises InvalidRequest, naming `field`, for a kind this version does not know."""
    found = _KINDS_BACK.get(kind)
    if found is None:
        raise InvalidRequest(field, f"is {kind}, expected one of {[k.value for k in _KINDS]}")
    return found


def check_tokens(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest naming `field` and the first token id that is not below `vocab_size`."""
    if max(tokens, default=-1) >= vocab_size:
        i, token = next((i, token) for i, token in enumerate(tokens) if token >= vocab_size)
        raise InvalidRequest(f"{field}[{i}]", f"is {token}, outside the vocabulary of {vocab_size} tokens")


def sampling_to_wire(sampling: Sampling) -> pb.Sampling:
    """Write every field."""
    return pb.Sampling(**fields_of(sampling, logit_bias=dict(sampling.logit_bias)))


def sampling_from_wire(message: pb.Sampling, draw_seed: int | None = None) -> Sampling:
    """Absent fields take their defaults; an absent seed is `draw_seed`, or is refused if a sampled session gives none."""
    if not message.HasField("seed") and draw_seed is None and message.temperature > 0:
        raise InvalidRequest("sampling.seed", "is absent, expected a seed for a temperature above 0")
    return Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        seed=message.seed if message.HasField("seed") else draw_seed or 0,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
    )


def check_bias(field: str, sampling: Sampling, vocab_size: int) -> None:
    """Raise InvalidRequest naming `field` and the first biased token id that is not below `vocab_size`."""
    for token, _ in sampling.logit_bias:
        if token >= vocab_size:
            raise InvalidRequest(f"{field}[{token}]", f"is outside the vocabulary of {vocab_size} tokens")


def constraint_into(message: _Constrained, constraint: Constraint | None) -> None:
    """Write a constraint into a message that has the fields of one."""
    match constraint:
        case None:
            pass
        case Constraint(kind=ConstraintKind.JSON_OBJECT):
            message.json_object = True
        case Constraint(kind=ConstraintKind.CHOICE):
            message.choice.choices.extend(constraint.choices)
        case Constraint():
            setattr(message, constraint.kind, constraint.text)


def constraint_from_wire(message: _Constrained | gateway_pb.SamplingParams) -> Constraint | None:
    """Read the constraint of a message that has the fields of one. Raises InvalidRequest for one that is empty."""
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT) if message.json_object else None
        case "choice":
            return Constraint(ConstraintKind.CHOICE, choices=tuple(message.choice.choices))
        case kind:
            return Constraint(ConstraintKind(kind), getattr(message, kind))


def plan_to_wire(plan: Plan | PlanChanges) -> pb.Plan:
    """A field that is None is left out."""
    return pb.Plan(**{name: value for name, value in vars(plan).items() if value is not None})


def plan_from_wire(message: pb.Plan) -> PlanChanges:
    """Absent fields are None."""
    return PlanChanges(
        num_steps=message.num_steps if message.HasField("num_steps") else None,
        topk=message.topk if message.HasField("topk") else None,
        num_draft_tokens=message.num_draft_tokens if message.HasField("num_draft_tokens") else None,
        wait_budget_us=message.wait_budget_us if message.HasField("wait_budget_us") else None,
        draft_ahead=message.draft_ahead if message.HasField("draft_ahead") else None,
    )


def tracing_to_wire(changes: TraceChanges) -> pb.TraceChanges:
    """A field that is None is left out."""
    return pb.TraceChanges(level=changes.level, ratio=changes.ratio, modules=changes.modules or ())


def tracing_from_wire(message: pb.TraceChanges) -> TraceChanges:
    """Absent fields are None."""
    return TraceChanges(
        level=message.level if message.HasField("level") else None,
        ratio=message.ratio if message.HasField("ratio") else None,
        modules=tuple(message.modules) or None,
    )


def stopping_to_wire(stopping: Stopping) -> pb.Stopping:
    """`max_tokens` None is left out."""
    message = pb.Stopping(
        stop_token_ids=stopping.stop_token_ids, ignore_eos=stopping.ignore_eos, min_tokens=stopping.min_tokens
    )
    if stopping.max_tokens is not None:
        message.max_tokens = stopping.max_tokens
    return message


def stopping_from_wire(message: pb.Stopping) -> Stopping:
    """Absent `max_tokens` is None."""
    limit = message.max_tokens if message.HasField("max_tokens") else None
    return Stopping(limit, tuple(message.stop_token_ids), message.ignore_eos, message.min_tokens)


def vocabulary_to_wire(vocabulary: Vocabulary) -> pb.Vocabulary:
    return pb.Vocabulary(size=vocabulary.size, digest=vocabulary.digest)


def vocabulary_from_wire(message: pb.Vocabulary) -> Vocabulary:
    """Raises InvalidRequest for an empty vocabulary."""
    if message.size == 0:
        raise InvalidRequest("vocabulary.size", "is 0, expected the number of token ids")
    return Vocabulary(message.size, message.digest)


def usage_to_wire(usage: Usage) -> pb.Usage:
    return pb.Usage(**vars(usage))


def usage_from_wire(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens)


def speculation_to_wire(statistics: SpeculationStatistics) -> pb.SpeculationStatistics:
    """Write the sums, and what follows from them. A sum that the wire has no room for, which none of a true session is, is written as the
    largest number that it has.
    """
    message = pb.SpeculationStatistics()
    speculation_into(message, statistics)
    return message


def speculation_into(message: pb.SpeculationStatistics, statistics: SpeculationStatistics) -> None:
    """Write the sums in their place, as `speculation_to_wire` does."""
    message.steps = min(statistics.steps, _MOST)
    message.drafted = min(statistics.drafted, _MOST)
    message.accepted = min(statistics.accepted, _MOST)
    message.hits = min(statistics.hits, _MOST)
    message.misses = min(statistics.misses, _MOST)
    message.accept_length = statistics.accept_length


def speculation_from_wire(message: pb.SpeculationStatistics) -> SpeculationStatistics:
    """Read the sums; `accept_length` follows from them and is not read."""
    return SpeculationStatistics(message.steps, message.drafted, message.accepted, message.hits, message.misses)


def reason_to_wire(reason: FinishReason) -> pb.FinishReason:
    return _REASONS[reason]


def reason_from_wire(value: int) -> FinishReason:
    """Raises InvalidRequest for a reason this version does not know."""
    reason = _REASONS_BACK.get(value)
    if reason is None:
        raise InvalidRequest("reason", f"is {value}, expected one of {sorted(_REASONS_BACK)}")
    return reason


def model_to_wire(info: ModelInfo) -> pb.ModelInfo:
    adapters = adapters_to_wire(info.adapters)
    return pb.ModelInfo(**fields_of(info, vocabulary=vocabulary_to_wire(info.vocabulary), adapters=adapters))


def model_from_wire(message: pb.ModelInfo) -> ModelInfo:
    """Raises InvalidRequest for an empty vocabulary or context, and for adapters that could not be told from each other."""
    if message.max_context == 0:
        raise InvalidRequest("max_context", "is 0, expected the context length in tokens")
    return ModelInfo(
        message.model,
        vocabulary_from_wire(message.vocabulary),
        message.max_context,
        tuple(message.eos_token_ids),
        message.takes_chat if message.HasField("takes_chat") else None,
        message.looks_up,
        adapters_from_wire(message.adapters),
    )


def adapters_to_wire(adapters: Iterable[Adapter]) -> list[pb.Adapter]:
    """Write the adapters of a target."""
    return [pb.Adapter(**vars(adapter)) for adapter in adapters]


def adapters_from_wire(messages: Iterable[pb.Adapter]) -> tuple[Adapter, ...]:
    """Raises InvalidRequest for adapters that could not be told from each other."""
    adapters: dict[str, Adapter] = {}
    for i, message in enumerate(messages):
        if not (message.name and message.digest):
            raise InvalidRequest(f"adapters[{i}]", "has no name or no digest, expected both")
        if message.name in adapters:
            raise InvalidRequest(
                f"adapters[{i}].name", f"is {message.name}, which another has; expected different names"
            )
        adapters[message.name] = Adapter(message.name, message.digest, message.rank)
    return tuple(adapters.values())


def drafter_to_wire(info: DrafterInfo) -> pb.DrafterInfo:
    """No vocabulary: the field is left out."""
    return pb.DrafterInfo(
        kind=_KINDS[info.kind],
        model=info.model,
        vocabulary=vocabulary_to_wire(info.vocabulary) if info.vocabulary else None,
        max_context=info.max_context,
        features=need_to_wire(info.features) if info.features else None,
    )


def role_from_wire(message: cluster_pb.RegisterReport | coordinator_pb.Member, name: str) -> Role:
    """A verifier, with its target, or a drafter. Raises InvalidRequest, with the name of the message, if it is neither."""
    match message.WhichOneof("role"):
        case "verifier":
            return model_from_wire(message.verifier)
        case "drafter":
            return drafter_from_wire(message.drafter)
        case _:
            raise InvalidRequest(f"{name}.role", "is absent, expected verifier or drafter")


def drafter_from_wire(message: pb.DrafterInfo) -> DrafterInfo:
    """Raises InvalidRequest for a kind this version does not know."""
    kind = kind_from_wire(message.kind)
    vocabulary = vocabulary_from_wire(message.vocabulary) if message.HasField("vocabulary") else None
    return DrafterInfo(kind, message.model, vocabulary, message.max_context, need_from_wire(message.features))


def need_to_wire(need: FeatureNeed) -> pb.FeatureNeed:
    return pb.FeatureNeed(**fields_of(need, format=_FORMATS[need.format]))


def need_from_wire(message: pb.FeatureNeed) -> FeatureNeed:
    """An absent one needs nothing. Raises InvalidRequest for a layer, a width or a format that cannot be."""
    for i, layer in enumerate(message.layers):
        if layer < LAST:
            raise InvalidRequest(f"features.layers[{i}]", f"is {layer}, expected {LAST} (last) or a layer from 0")
    if message.layers and message.hidden_size == 0:
        raise InvalidRequest("features.hidden_size", "is 0, expected the width of the target")
    if message.projection and message.projected_size == 0:
        raise InvalidRequest("features.projected_size", "is 0, expected the width behind the projection")
    return FeatureNeed(
        tuple(message.layers),
        message.hidden_size,
        _format_from_wire(message.format),
        message.projection,
        message.projected_size,
    )


def layout_to_wire(layout: FeatureLayout) -> pb.FeatureLayout:
    return pb.FeatureLayout(width=layout.width, format=_FORMATS[layout.format])


def layout_from_wire(message: pb.FeatureLayout) -> FeatureLayout:
    """Raises InvalidRequest for a format that is none."""
    return FeatureLayout(message.width, _format_from_wire(message.format))


def _format_from_wire(value: int) -> FeatureFormat:
    found = _FORMATS_BACK.get(value)
    if found is None:
        raise InvalidRequest("features.format", f"is {value}, expected one of {sorted(_FORMATS_BACK)}")
    return found


def load_to_wire(load: Load) -> pb.Load:
    adapters = [pb.AdapterLoad(**vars(each)) for each in load.adapters]
    return pb.Load(**fields_of(load, adapters=adapters))


def load_from_wire(message: pb.Load) -> Load:
    """Raises InvalidRequest if the step time is not a number, or negative."""
    if not 0 <= message.step_ms < math.inf:
        raise InvalidRequest("load.step_ms", f"is {message.step_ms}, expected a finite number that is not negative")
    numbers = {name: getattr(message, name) for name in vars(Load()) if name != "adapters"}
    return Load(**numbers, adapters=tuple(AdapterLoad(each.name, each.sessions) for each in message.adapters))
