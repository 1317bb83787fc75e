from specsplit.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterServiceUpdateWeightsRequest(_message.Message):
    __slots__ = ("update",)
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    update: _common_pb2.WeightsUpdate
    def __init__(self, update: _Optional[_Union[_common_pb2.WeightsUpdate, _Mapping]] = ...) -> None: ...

class DrafterServiceUpdateWeightsResponse(_message.Message):
    __slots__ = ("version", "message")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    version: int
    message: str
    def __init__(self, version: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class GetDrafterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDrafterInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.DrafterInfo
    def __init__(self, info: _Optional[_Union[_common_pb2.DrafterInfo, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DraftRequestEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DraftRequestEvent, _Mapping]]] = ...) -> None: ...

class DraftRequestEvent(_message.Message):
    __slots__ = ("session_id", "open", "commit", "close", "features", "plan")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    open: OpenEvent
    commit: CommitEvent
    close: CloseEvent
    features: FeaturesEvent
    plan: _common_pb2.Plan
    def __init__(self, session_id: _Optional[int] = ..., open: _Optional[_Union[OpenEvent, _Mapping]] = ..., commit: _Optional[_Union[CommitEvent, _Mapping]] = ..., close: _Optional[_Union[CloseEvent, _Mapping]] = ..., features: _Optional[_Union[FeaturesEvent, _Mapping]] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ...) -> None: ...

class OpenEvent(_message.Message):
    __slots__ = ("token_ids", "sampling", "plan", "vocabulary", "max_nodes", "traceparent", "features", "prompt_tokens", "step_us", "scope", "host", "constraint", "end_token_ids")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.Sampling
    plan: _common_pb2.Plan
    vocabulary: _common_pb2.Vocabulary
    max_nodes: int
    traceparent: str
    features: _common_pb2.FeatureLayout
    prompt_tokens: int
    step_us: int
    scope: bytes
    host: _common_pb2.Host
    constraint: _common_pb2.Constraint
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., vocabulary: _Optional[_Union[_common_pb2.Vocabulary, _Mapping]] = ..., max_nodes: _Optional[int] = ..., traceparent: _Optional[str] = ..., features: _Optional[_Union[_common_pb2.FeatureLayout, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., step_us: _Optional[int] = ..., scope: _Optional[bytes] = ..., host: _Optional[_Union[_common_pb2.Host, _Mapping]] = ..., constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ..., end_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitEvent(_message.Message):
    __slots__ = ("number", "deepest_id", "token_ids", "step_us", "seen_id", "floor")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEEPEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    SEEN_ID_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    number: int
    deepest_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    step_us: int
    seen_id: int
    floor: float
    def __init__(self, number: _Optional[int] = ..., deepest_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., step_us: _Optional[int] = ..., seen_id: _Optional[int] = ..., floor: _Optional[float] = ...) -> None: ...

class FeaturesEvent(_message.Message):
    __slots__ = ("first", "count", "data", "scales")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    data: bytes
    scales: bytes
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., scales: _Optional[bytes] = ...) -> None: ...

class CloseEvent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DraftResponseEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DraftResponseEvent, _Mapping]]] = ...) -> None: ...

class DraftResponseEvent(_message.Message):
    __slots__ = ("session_id", "grow", "refuse", "features_read")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GROW_FIELD_NUMBER: _ClassVar[int]
    REFUSE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_READ_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    grow: GrowEvent
    refuse: RefuseEvent
    features_read: FeaturesReadEvent
    def __init__(self, session_id: _Optional[int] = ..., grow: _Optional[_Union[GrowEvent, _Mapping]] = ..., refuse: _Optional[_Union[RefuseEvent, _Mapping]] = ..., features_read: _Optional[_Union[FeaturesReadEvent, _Mapping]] = ...) -> None: ...

class FeaturesReadEvent(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class GrowEvent(_message.Message):
    __slots__ = ("commits", "ids", "parents", "token_ids", "edges", "resting", "rescored_ids", "new_edges")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    RESCORED_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_EDGES_FIELD_NUMBER: _ClassVar[int]
    commits: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    edges: _containers.RepeatedScalarFieldContainer[float]
    resting: bool
    rescored_ids: _containers.RepeatedScalarFieldContainer[int]
    new_edges: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, commits: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., edges: _Optional[_Iterable[float]] = ..., resting: bool = ..., rescored_ids: _Optional[_Iterable[int]] = ..., new_edges: _Optional[_Iterable[float]] = ...) -> None: ...

class RefuseEvent(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
