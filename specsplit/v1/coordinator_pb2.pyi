from specsplit.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("update", "member_id", "drafters")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    update: _common_pb2.WeightsUpdate
    member_id: str
    drafters: _common_pb2.DrafterKind
    def __init__(self, update: _Optional[_Union[_common_pb2.WeightsUpdate, _Mapping]] = ..., member_id: _Optional[str] = ..., drafters: _Optional[_Union[_common_pb2.DrafterKind, str]] = ...) -> None: ...

class UpdateWeightsResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[UpdatedMember]
    def __init__(self, members: _Optional[_Iterable[_Union[UpdatedMember, _Mapping]]] = ...) -> None: ...

class UpdatedMember(_message.Message):
    __slots__ = ("member_id", "version", "message")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    version: int
    message: str
    def __init__(self, member_id: _Optional[str] = ..., version: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "chat", "tokens", "sampling", "stopping", "stop", "drafter", "plan", "logprobs", "n", "json_schema", "json_object", "regex", "grammar", "choice", "structural_tag", "adapter", "resume_from", "priority", "stream_interval", "include_stop_str_in_output", "prompt_logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    chat: ChatPrompt
    tokens: TokenPrompt
    sampling: _common_pb2.Sampling
    stopping: _common_pb2.Stopping
    stop: _containers.RepeatedScalarFieldContainer[str]
    drafter: str
    plan: _common_pb2.Plan
    logprobs: int
    n: int
    json_schema: str
    json_object: bool
    regex: str
    grammar: str
    choice: _common_pb2.ChoiceConstraint
    structural_tag: str
    adapter: str
    resume_from: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    stream_interval: int
    include_stop_str_in_output: bool
    prompt_logprobs: int
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., stopping: _Optional[_Union[_common_pb2.Stopping, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., drafter: _Optional[str] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., logprobs: _Optional[int] = ..., n: _Optional[int] = ..., json_schema: _Optional[str] = ..., json_object: bool = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choice: _Optional[_Union[_common_pb2.ChoiceConstraint, _Mapping]] = ..., structural_tag: _Optional[str] = ..., adapter: _Optional[str] = ..., resume_from: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., stream_interval: _Optional[int] = ..., include_stop_str_in_output: bool = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("delta", "done", "earlier")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    delta: DeltaEvent
    done: DoneEvent
    earlier: _containers.RepeatedCompositeFieldContainer[DeltaEvent]
    def __init__(self, delta: _Optional[_Union[DeltaEvent, _Mapping]] = ..., done: _Optional[_Union[DoneEvent, _Mapping]] = ..., earlier: _Optional[_Iterable[_Union[DeltaEvent, _Mapping]]] = ...) -> None: ...

class DeltaEvent(_message.Message):
    __slots__ = ("text", "token_ids", "num_correct_drafts", "logprobs", "index", "prompt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRECT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_correct_drafts: int
    logprobs: _common_pb2.Logprobs
    index: int
    prompt: _common_pb2.PromptLogprobs
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_correct_drafts: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.Logprobs, _Mapping]] = ..., index: _Optional[int] = ..., prompt: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class DoneEvent(_message.Message):
    __slots__ = ("request_id", "reason", "stop_string", "stop_token_id", "usage", "speculation", "seed", "verifier", "drafter", "index", "no_drafts")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: _common_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStatistics
    seed: int
    verifier: str
    drafter: str
    index: int
    no_drafts: _common_pb2.NoDrafts
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ..., seed: _Optional[int] = ..., verifier: _Optional[str] = ..., drafter: _Optional[str] = ..., index: _Optional[int] = ..., no_drafts: _Optional[_Union[_common_pb2.NoDrafts, _Mapping]] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.ModelInfo
    def __init__(self, model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterResponse(_message.Message):
    __slots__ = ("members", "queued", "running", "failovers", "preemptions", "build", "coordinators", "quotas")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FAILOVERS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    queued: int
    running: int
    failovers: int
    preemptions: int
    build: str
    coordinators: int
    quotas: str
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., failovers: _Optional[int] = ..., preemptions: _Optional[int] = ..., build: _Optional[str] = ..., coordinators: _Optional[int] = ..., quotas: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("member_id", "address", "verifier", "drafter", "load", "draining", "silent_ms", "max_sessions", "plan", "speculation", "group", "wave", "build", "host", "weights_version")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    address: str
    verifier: _common_pb2.ModelInfo
    drafter: _common_pb2.DrafterInfo
    load: _common_pb2.Load
    draining: bool
    silent_ms: int
    max_sessions: int
    plan: _common_pb2.Plan
    speculation: _common_pb2.SpeculationReport
    group: _common_pb2.GroupRank
    wave: _common_pb2.WaveReport
    build: str
    host: _common_pb2.Host
    weights_version: int
    def __init__(self, member_id: _Optional[str] = ..., address: _Optional[str] = ..., verifier: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., drafter: _Optional[_Union[_common_pb2.DrafterInfo, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ..., draining: bool = ..., silent_ms: _Optional[int] = ..., max_sessions: _Optional[int] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationReport, _Mapping]] = ..., group: _Optional[_Union[_common_pb2.GroupRank, _Mapping]] = ..., wave: _Optional[_Union[_common_pb2.WaveReport, _Mapping]] = ..., build: _Optional[str] = ..., host: _Optional[_Union[_common_pb2.Host, _Mapping]] = ..., weights_version: _Optional[int] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("told", "plan", "control")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    told: int
    plan: _common_pb2.Plan
    control: _common_pb2.Control
    def __init__(self, told: _Optional[int] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., control: _Optional[_Union[_common_pb2.Control, _Mapping]] = ...) -> None: ...

class SetPlanRequest(_message.Message):
    __slots__ = ("plan", "reset", "control")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    plan: _common_pb2.Plan
    reset: bool
    control: _common_pb2.Control
    def __init__(self, plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., reset: bool = ..., control: _Optional[_Union[_common_pb2.Control, _Mapping]] = ...) -> None: ...

class SetPlanResponse(_message.Message):
    __slots__ = ("told", "plan", "control")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    told: int
    plan: _common_pb2.Plan
    control: _common_pb2.Control
    def __init__(self, told: _Optional[int] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., control: _Optional[_Union[_common_pb2.Control, _Mapping]] = ...) -> None: ...

class GetTracingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTracingResponse(_message.Message):
    __slots__ = ("told", "tracing")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    TRACING_FIELD_NUMBER: _ClassVar[int]
    told: int
    tracing: _common_pb2.TraceChanges
    def __init__(self, told: _Optional[int] = ..., tracing: _Optional[_Union[_common_pb2.TraceChanges, _Mapping]] = ...) -> None: ...

class SetTracingRequest(_message.Message):
    __slots__ = ("tracing", "reset")
    TRACING_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    tracing: _common_pb2.TraceChanges
    reset: bool
    def __init__(self, tracing: _Optional[_Union[_common_pb2.TraceChanges, _Mapping]] = ..., reset: bool = ...) -> None: ...

class SetTracingResponse(_message.Message):
    __slots__ = ("told", "tracing")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    TRACING_FIELD_NUMBER: _ClassVar[int]
    told: int
    tracing: _common_pb2.TraceChanges
    def __init__(self, told: _Optional[int] = ..., tracing: _Optional[_Union[_common_pb2.TraceChanges, _Mapping]] = ...) -> None: ...
