"""How long what a peer sends may be: one limit for every field that a peer can make long.

The transport caps whole messages; these caps name the field. `specsplit.wire.scan` holds large messages to them before they are parsed,
`specsplit.wire.checks` holds every message to them before anything walks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from types import MappingProxyType

from specsplit.errors import InvalidRequest
from specsplit.prefix import REPORTED
from specsplit.values import MAX_BIASES, MAX_LOGPROBS
from specsplit.values.checks import MAX_NAME
from specsplit.values.host import MAX_CORE_RANGES

MAX_NODES = 65_536
"""Nodes of one session, and with that of one grow."""
MAX_TEXT = 2**24
"""Characters of a prompt, of one message of a conversation, or of one piece of output."""
MAX_TOKENS = 2**20
"""Tokens of a sequence, where the context of the model is not known or is longer."""
MAX_CHAT_MESSAGES = 4_096
MAX_ROLE = 64
"""Characters of who says a message of a conversation."""
MAX_STOP_STRINGS = 16
MAX_STOP_STRING = 1_000
"""Characters of one stop string."""
MAX_STOP_TOKENS = 256
MAX_CONSTRAINT = 2**17
"""Characters of a schema, an expression or a grammar: to compile so many takes some seconds at worst."""
MAX_CHOICE_TEXTS = 256
MAX_CHOICE_TEXT = 1_000
"""Characters of one text to choose."""
MAX_LOGGED_TOKENS = 2_048
"""Tokens of one step, or piece of output or prompt, that have log-probabilities."""
MAX_TOKEN_TEXT = 1_000
"""Characters of the text of one token."""
MAX_TRACE_MODULES = 16
MAX_FEATURE_LAYERS = 64
MAX_FEATURE_TOKENS = 65_536
"""Tokens of one features event."""
MAX_FEATURE_BYTES = 2**30
"""The size of one features event; what `max_message_bytes` allows is less."""
MAX_SCOPE = 32
"""Bytes that tell whose session it is."""
MAX_EVENTS = 2_048
"""Events of one message of a stream that carries many sessions."""
MAX_MALFORMED_EVENTS = 64
"""Malformed events in one message of such a stream: each ends its session, and more of them end the stream."""
MAX_HELD = 2_048
"""Events that are sent behind one another in one message, since they were held back."""
MAX_MEMBERS = 2_048
"""Members of a cluster, and with that of a roster."""
MAX_ADAPTERS = 2_048
"""Adapters of one target."""
MAX_CONTROLLERS = 16
MAX_CONTROLLER = 64
"""Characters of the name of one."""
MAX_MEDIA = 256
"""Images and the like that come with a prompt, and parts of one; they are refused, all of them."""
MAX_ABORTED = 4_096
"""Requests that one call ends."""
MAX_SENTENCE = 1_000
"""Characters of what a refusal says."""
MAX_STATUS = 8_192
"""Bytes of the status that a session on such a stream ends with: as much as the metadata of a call have room for."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of one field."""

    entries: int | None = None
    """How many a repeated field may hold; None: it is not repeated."""
    length: int | None = None
    """How long a text (in characters) or bytes may be, each of them if the field is repeated; None: it holds neither."""


_NAME = Limit(length=MAX_NAME)
_SCOPE = Limit(length=MAX_SCOPE)
_TOKENS = Limit(entries=MAX_TOKENS)
_CONSTRAINT = Limit(length=MAX_CONSTRAINT)
_NODES = Limit(entries=MAX_NODES)
_TREE = Limit(entries=MAX_NODES + 1)
_PATH = Limit(entries=MAX_NODES + 1)
_TOP = Limit(entries=MAX_LOGGED_TOKENS * MAX_LOGPROBS)

LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        # common.proto
        "Sampling.logit_bias": Limit(entries=MAX_BIASES),
        "Control.adaptive": Limit(length=MAX_CONTROLLER),
        "SpeculationReport.adaptive": Limit(length=MAX_CONTROLLER),
        "SpeculationReport.drafters": Limit(entries=MAX_MEMBERS),
        "DrafterReport.member_id": _NAME,
        "TraceChanges.modules": Limit(MAX_TRACE_MODULES, MAX_NAME),
        "Stopping.stop_token_ids": Limit(entries=MAX_STOP_TOKENS),
        "Logprobs.picked": Limit(entries=MAX_LOGGED_TOKENS),
        "Logprobs.top_token_ids": _TOP,
        "Logprobs.top": _TOP,
        "Logprobs.picked_texts": Limit(MAX_LOGGED_TOKENS, MAX_TOKEN_TEXT),
        "Logprobs.top_texts": Limit(MAX_LOGGED_TOKENS * MAX_LOGPROBS, MAX_TOKEN_TEXT),
        "PromptLogprobs.token_ids": Limit(entries=MAX_LOGGED_TOKENS),
        "Constraint.json_schema": _CONSTRAINT,
        "Constraint.regex": _CONSTRAINT,
        "Constraint.grammar": _CONSTRAINT,
        "Constraint.structural_tag": _CONSTRAINT,
        "ChoiceConstraint.choices": Limit(MAX_CHOICE_TEXTS, MAX_CHOICE_TEXT),
        "Vocabulary.digest": _NAME,
        "FeatureNeed.layers": Limit(entries=MAX_FEATURE_LAYERS),
        "FeatureNeed.projection": _NAME,
        "ModelInfo.model": _NAME,
        "ModelInfo.eos_token_ids": Limit(entries=MAX_STOP_TOKENS),
        "ModelInfo.adapters": Limit(entries=MAX_ADAPTERS),
        "Adapter.name": _NAME,
        "Adapter.digest": _NAME,
        "AdapterLoad.name": _NAME,
        "Load.adapters": Limit(entries=MAX_ADAPTERS),
        "DrafterInfo.model": _NAME,
        "GroupRank.group_id": _NAME,
        "Host.machine": _NAME,
        "Host.cores": Limit(entries=2 * MAX_CORE_RANGES),
        "Host.device": _NAME,
        "WeightsUpdate.folder": _NAME,
        # coordinator.proto
        "GenerateRequest.request_id": _NAME,
        "GenerateRequest.text": Limit(length=MAX_TEXT),
        "GenerateRequest.stop": Limit(MAX_STOP_STRINGS, MAX_STOP_STRING),
        "GenerateRequest.drafter": _NAME,
        "GenerateRequest.adapter": _NAME,
        "GenerateRequest.resume_from": _TOKENS,
        "GenerateRequest.json_schema": _CONSTRAINT,
        "GenerateRequest.regex": _CONSTRAINT,
        "GenerateRequest.grammar": _CONSTRAINT,
        "GenerateRequest.structural_tag": _CONSTRAINT,
        "ChatPrompt.messages": Limit(entries=MAX_CHAT_MESSAGES),
        "ChatMessage.role": Limit(length=MAX_ROLE),
        "ChatMessage.content": Limit(length=MAX_TEXT),
        "TokenPrompt.token_ids": _TOKENS,
        "GenerateResponse.earlier": Limit(entries=MAX_HELD),
        "DeltaEvent.text": Limit(length=MAX_TEXT),
        "DeltaEvent.token_ids": _TOKENS,
        "DoneEvent.request_id": _NAME,
        "DoneEvent.stop_string": Limit(length=MAX_STOP_STRING),
        "DoneEvent.verifier": _NAME,
        "DoneEvent.drafter": _NAME,
        "GetClusterResponse.members": Limit(entries=MAX_MEMBERS),
        "Member.member_id": _NAME,
        "Member.address": _NAME,
        "Member.build": _NAME,
        "GetClusterResponse.build": _NAME,
        "GetClusterResponse.quotas": Limit(length=MAX_SENTENCE),
        "UpdateWeightsRequest.member_id": _NAME,
        "UpdateWeightsResponse.members": Limit(entries=MAX_MEMBERS),
        "UpdatedMember.member_id": _NAME,
        "UpdatedMember.message": Limit(length=MAX_SENTENCE),
        # drafter.proto
        "DraftRequest.events": Limit(entries=MAX_EVENTS),
        "OpenEvent.token_ids": _TOKENS,
        "DrafterServiceUpdateWeightsResponse.message": Limit(length=MAX_SENTENCE),
        "OpenEvent.traceparent": _NAME,
        "OpenEvent.scope": _SCOPE,
        "OpenEvent.end_token_ids": Limit(entries=2 * MAX_STOP_TOKENS),
        "CommitEvent.token_ids": _PATH,
        "FeaturesEvent.data": Limit(length=MAX_FEATURE_BYTES),
        "FeaturesEvent.scales": Limit(length=4 * MAX_FEATURE_TOKENS),
        "DraftResponse.events": Limit(entries=MAX_EVENTS),
        "GrowEvent.ids": _NODES,
        "GrowEvent.parents": _NODES,
        "GrowEvent.token_ids": _NODES,
        "GrowEvent.edges": _NODES,
        "GrowEvent.rescored_ids": _NODES,
        "GrowEvent.new_edges": _NODES,
        "RefuseEvent.message": Limit(length=MAX_SENTENCE),
        # verifier.proto
        "WatchRequest.request_id": _NAME,
        "WatchedStep.node_ids": _TREE,
        "WatchedStep.parents": _TREE,
        "WatchedStep.token_ids": _TREE,
        "WatchedStep.edges": _TREE,
        "WatchedStep.verified": _TREE,
        "WatchedStep.accepted": _PATH,
        "DecodeRequest.request_id": _NAME,
        "DecodeRequest.token_ids": _TOKENS,
        "DecodeRequest.scope": _SCOPE,
        "DecodeRequest.adapter": _NAME,
        "DecodeResponse.earlier": Limit(entries=MAX_HELD),
        "DecodeSessionsRequest.events": Limit(entries=MAX_EVENTS),
        "BeginEvent.traceparent": _NAME,
        "DecodeSessionsResponse.events": Limit(entries=MAX_EVENTS),
        "FailedEvent.status": Limit(length=MAX_STATUS),
        "DrafterAddress.member_id": _NAME,
        "DrafterAddress.address": _NAME,
        "TokensEvent.token_ids": _PATH,
        "VerifierServiceUpdateWeightsResponse.message": Limit(length=MAX_SENTENCE),
        # cluster.proto
        "RegisterReport.member_id": _NAME,
        "RegisterReport.address": _NAME,
        "RegisterReport.build": _NAME,
        "RegisterReport.controllers": Limit(MAX_CONTROLLERS, MAX_CONTROLLER),
        "AdaptersReport.adapters": Limit(entries=MAX_ADAPTERS),
        "HeartbeatReport.lost_drafters": Limit(MAX_MEMBERS, MAX_NAME),
        "HeartbeatReport.prefixes": Limit(entries=REPORTED),
        "RosterDirective.drafters": Limit(entries=MAX_MEMBERS),
        "HandOverDirective.from_member": _NAME,
        # vllm_engine.proto and common.proto of smg-grpc-proto: what a gateway sends, and what a coordinator reads of an engine
        "vllm.grpc.engine.GenerateRequest.request_id": _NAME,
        "vllm.grpc.engine.GenerateRequest.text": Limit(length=MAX_TEXT),
        "vllm.grpc.engine.GenerateRequest.extra_mm_inputs": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.GenerateRequest.kv_transfer_params_json": Limit(length=MAX_TEXT),
        "vllm.grpc.engine.TokenizedInput.original_text": Limit(length=MAX_TEXT),
        "vllm.grpc.engine.TokenizedInput.input_ids": _TOKENS,
        "vllm.grpc.engine.SamplingParams.stop": Limit(MAX_STOP_STRINGS, MAX_STOP_STRING),
        "vllm.grpc.engine.SamplingParams.stop_token_ids": Limit(entries=MAX_STOP_TOKENS),
        "vllm.grpc.engine.SamplingParams.logit_bias": Limit(entries=MAX_BIASES),
        "vllm.grpc.engine.SamplingParams.json_schema": _CONSTRAINT,
        "vllm.grpc.engine.SamplingParams.regex": _CONSTRAINT,
        "vllm.grpc.engine.SamplingParams.grammar": _CONSTRAINT,
        "vllm.grpc.engine.SamplingParams.structural_tag": _CONSTRAINT,
        "vllm.grpc.engine.ChoiceConstraint.choices": Limit(MAX_CHOICE_TEXTS, MAX_CHOICE_TEXT),
        "vllm.grpc.engine.KvTransferParams.remote_host": _NAME,
        "vllm.grpc.engine.MultimodalInputs.model_specific_tensors": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.MultimodalInputs.mm_placeholders": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.MultimodalInputs.mm_hashes": Limit(MAX_MEDIA, MAX_NAME),
        "vllm.grpc.engine.MultimodalInputs.batched_keys": Limit(MAX_MEDIA, MAX_NAME),
        "vllm.grpc.engine.MultimodalInputs.flat_keys": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.MultimodalInputs.keep_on_cpu_keys": Limit(MAX_MEDIA, MAX_NAME),
        "vllm.grpc.engine.MultimodalInputs.encoder_input_key": _NAME,
        "vllm.grpc.engine.TensorData.shape": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.TensorData.dtype": _NAME,
        "vllm.grpc.engine.TensorData.inline": Limit(length=MAX_FEATURE_BYTES),
        "vllm.grpc.engine.MediaRefs.items": Limit(entries=MAX_MEDIA),
        "vllm.grpc.engine.MediaRef.url": Limit(length=MAX_FEATURE_BYTES),
        "vllm.grpc.engine.EmbedRequest.request_id": _NAME,
        "vllm.grpc.engine.AbortRequest.request_ids": Limit(MAX_ABORTED, MAX_NAME),
        "vllm.grpc.engine.GetLoadsRequest.include": Limit(MAX_MEDIA, MAX_NAME),
        "smg.grpc.common.ShmHandle.name": _NAME,
        "smg.grpc.common.ShmHandle.owner_id": _NAME,
        "smg.grpc.common.RemoteTensorHandle.transport": _NAME,
        "smg.grpc.common.RemoteTensorHandle.descriptor": Limit(length=MAX_FEATURE_BYTES),
        "smg.grpc.common.StartProfileRequest.output_dir": _NAME,
        "smg.grpc.common.StartProfileRequest.activities": Limit(MAX_MEDIA, MAX_NAME),
        "smg.grpc.common.FlushCacheResponse.message": Limit(length=MAX_SENTENCE),
        "smg.grpc.common.ProfileResponse.message": Limit(length=MAX_SENTENCE),
    }
)
"""By message and field; a test holds this table to the protos."""


def limit_of(full_name: str) -> Limit | None:
    """The limit of the field with this full name ("specsplit.v1.Message.field"); None if it has none."""
    return LIMITS.get(full_name.removeprefix("specsplit.v1."))


def check_count(field: str, entries: Sized, limit: int) -> None:
    """Raise InvalidRequest naming `field` for more than `limit` entries."""
    if len(entries) > limit:
        raise InvalidRequest(field, f"has {len(entries):,} entries, expected at most {limit:,}")


def check_length(field: str, value: str | bytes, limit: int) -> None:
    """Raise InvalidRequest naming `field` for a text of more than `limit` characters, or more than so many bytes."""
    if len(value) > limit:
        unit = "characters" if isinstance(value, str) else "bytes"
        raise InvalidRequest(field, f"has {len(value):,} {unit}, expected at most {limit:,}")
