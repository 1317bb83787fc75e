from specsplit.v1 import common_pb2 as _common_pb2
from specsplit.v1 import drafter_pb2 as _drafter_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierServiceUpdateWeightsRequest(_message.Message):
    __slots__ = ("update",)
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    update: _common_pb2.WeightsUpdate
    def __init__(self, update: _Optional[_Union[_common_pb2.WeightsUpdate, _Mapping]] = ...) -> None: ...

class VerifierServiceUpdateWeightsResponse(_message.Message):
    __slots__ = ("version", "message")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    version: int
    message: str
    def __init__(self, version: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("grown", "step", "missed")
    GROWN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    grown: _drafter_pb2.GrowEvent
    step: WatchedStep
    missed: int
    def __init__(self, grown: _Optional[_Union[_drafter_pb2.GrowEvent, _Mapping]] = ..., step: _Optional[_Union[WatchedStep, _Mapping]] = ..., missed: _Optional[int] = ...) -> None: ...

class WatchedStep(_message.Message):
    __slots__ = ("node_ids", "parents", "token_ids", "edges", "verified", "accepted", "bonus_token_id", "committed", "root_position", "commits", "plan", "speculation", "no_drafts")
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BONUS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROOT_POSITION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    edges: _containers.RepeatedScalarFieldContainer[float]
    verified: _containers.RepeatedScalarFieldContainer[bool]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    bonus_token_id: int
    committed: int
    root_position: int
    commits: int
    plan: _common_pb2.Plan
    speculation: _common_pb2.SpeculationStatistics
    no_drafts: _common_pb2.NoDrafts
    def __init__(self, node_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., edges: _Optional[_Iterable[float]] = ..., verified: _Optional[_Iterable[bool]] = ..., accepted: _Optional[_Iterable[int]] = ..., bonus_token_id: _Optional[int] = ..., committed: _Optional[int] = ..., root_position: _Optional[int] = ..., commits: _Optional[int] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ..., no_drafts: _Optional[_Union[_common_pb2.NoDrafts, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "token_ids", "sampling", "stopping", "plan", "drafter", "logprobs", "any_drafter", "committed", "scope", "stream_interval", "constraint", "prompt_logprobs", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ANY_DRAFTER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.Sampling
    stopping: _common_pb2.Stopping
    plan: _common_pb2.Plan
    drafter: DrafterAddress
    logprobs: int
    any_drafter: bool
    committed: int
    scope: bytes
    stream_interval: int
    constraint: _common_pb2.Constraint
    prompt_logprobs: int
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., stopping: _Optional[_Union[_common_pb2.Stopping, _Mapping]] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., drafter: _Optional[_Union[DrafterAddress, _Mapping]] = ..., logprobs: _Optional[int] = ..., any_drafter: bool = ..., committed: _Optional[int] = ..., scope: _Optional[bytes] = ..., stream_interval: _Optional[int] = ..., constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ..., prompt_logprobs: _Optional[int] = ..., adapter: _Optional[str] = ...) -> None: ...

class DecodeSessionsRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DecodeSessionsRequestEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DecodeSessionsRequestEvent, _Mapping]]] = ...) -> None: ...

class DecodeSessionsRequestEvent(_message.Message):
    __slots__ = ("session_id", "begin", "cancel")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    begin: BeginEvent
    cancel: CancelEvent
    def __init__(self, session_id: _Optional[int] = ..., begin: _Optional[_Union[BeginEvent, _Mapping]] = ..., cancel: _Optional[_Union[CancelEvent, _Mapping]] = ...) -> None: ...

class BeginEvent(_message.Message):
    __slots__ = ("request", "timeout_s", "traceparent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request: DecodeRequest
    timeout_s: float
    traceparent: str
    def __init__(self, request: _Optional[_Union[DecodeRequest, _Mapping]] = ..., timeout_s: _Optional[float] = ..., traceparent: _Optional[str] = ...) -> None: ...

class CancelEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DecodeSessionsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DecodeSessionsResponseEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DecodeSessionsResponseEvent, _Mapping]]] = ...) -> None: ...

class DecodeSessionsResponseEvent(_message.Message):
    __slots__ = ("session_id", "response", "failed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    response: DecodeResponse
    failed: FailedEvent
    def __init__(self, session_id: _Optional[int] = ..., response: _Optional[_Union[DecodeResponse, _Mapping]] = ..., failed: _Optional[_Union[FailedEvent, _Mapping]] = ...) -> None: ...

class FailedEvent(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    def __init__(self, status: _Optional[bytes] = ...) -> None: ...

class DrafterAddress(_message.Message):
    __slots__ = ("member_id", "address", "features", "weights_version")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    address: str
    features: _common_pb2.FeatureNeed
    weights_version: int
    def __init__(self, member_id: _Optional[str] = ..., address: _Optional[str] = ..., features: _Optional[_Union[_common_pb2.FeatureNeed, _Mapping]] = ..., weights_version: _Optional[int] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("tokens", "finished", "preempted", "prompt", "earlier")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    tokens: TokensEvent
    finished: FinishedEvent
    preempted: PreemptedEvent
    prompt: _common_pb2.PromptLogprobs
    earlier: _containers.RepeatedCompositeFieldContainer[TokensEvent]
    def __init__(self, tokens: _Optional[_Union[TokensEvent, _Mapping]] = ..., finished: _Optional[_Union[FinishedEvent, _Mapping]] = ..., preempted: _Optional[_Union[PreemptedEvent, _Mapping]] = ..., prompt: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ..., earlier: _Optional[_Iterable[_Union[TokensEvent, _Mapping]]] = ...) -> None: ...

class TokensEvent(_message.Message):
    __slots__ = ("token_ids", "num_correct_drafts", "speculation", "logprobs", "cached_prompt_tokens", "no_drafts")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRECT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_correct_drafts: int
    speculation: _common_pb2.SpeculationStatistics
    logprobs: _common_pb2.Logprobs
    cached_prompt_tokens: int
    no_drafts: _common_pb2.NoDrafts
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_correct_drafts: _Optional[int] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ..., logprobs: _Optional[_Union[_common_pb2.Logprobs, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ..., no_drafts: _Optional[_Union[_common_pb2.NoDrafts, _Mapping]] = ...) -> None: ...

class PreemptedEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishedEvent(_message.Message):
    __slots__ = ("reason", "stop_token_id", "usage", "speculation", "no_drafts")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    stop_token_id: int
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStatistics
    no_drafts: _common_pb2.NoDrafts
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ..., no_drafts: _Optional[_Union[_common_pb2.NoDrafts, _Mapping]] = ...) -> None: ...
