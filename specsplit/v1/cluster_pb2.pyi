from specsplit.v1 import common_pb2 as _common_pb2
from specsplit.v1 import verifier_pb2 as _verifier_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("register", "heartbeat", "draining", "wave", "adapters")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    register: RegisterReport
    heartbeat: HeartbeatReport
    draining: DrainingReport
    wave: _common_pb2.WaveReport
    adapters: AdaptersReport
    def __init__(self, register: _Optional[_Union[RegisterReport, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatReport, _Mapping]] = ..., draining: _Optional[_Union[DrainingReport, _Mapping]] = ..., wave: _Optional[_Union[_common_pb2.WaveReport, _Mapping]] = ..., adapters: _Optional[_Union[AdaptersReport, _Mapping]] = ...) -> None: ...

class RegisterReport(_message.Message):
    __slots__ = ("member_id", "address", "verifier", "drafter", "max_sessions", "controllers", "group", "build", "host")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    address: str
    verifier: _common_pb2.ModelInfo
    drafter: _common_pb2.DrafterInfo
    max_sessions: int
    controllers: _containers.RepeatedScalarFieldContainer[str]
    group: _common_pb2.GroupRank
    build: str
    host: _common_pb2.Host
    def __init__(self, member_id: _Optional[str] = ..., address: _Optional[str] = ..., verifier: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., drafter: _Optional[_Union[_common_pb2.DrafterInfo, _Mapping]] = ..., max_sessions: _Optional[int] = ..., controllers: _Optional[_Iterable[str]] = ..., group: _Optional[_Union[_common_pb2.GroupRank, _Mapping]] = ..., build: _Optional[str] = ..., host: _Optional[_Union[_common_pb2.Host, _Mapping]] = ...) -> None: ...

class HeartbeatReport(_message.Message):
    __slots__ = ("load", "lost_drafters", "plan", "speculation", "prefixes", "weights_version", "coordinators", "home")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOST_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    load: _common_pb2.Load
    lost_drafters: _containers.RepeatedScalarFieldContainer[str]
    plan: _common_pb2.Plan
    speculation: _common_pb2.SpeculationReport
    prefixes: _containers.RepeatedScalarFieldContainer[int]
    weights_version: int
    coordinators: int
    home: bool
    def __init__(self, load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ..., lost_drafters: _Optional[_Iterable[str]] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationReport, _Mapping]] = ..., prefixes: _Optional[_Iterable[int]] = ..., weights_version: _Optional[int] = ..., coordinators: _Optional[int] = ..., home: bool = ...) -> None: ...

class DrainingReport(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdaptersReport(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_common_pb2.Adapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_common_pb2.Adapter, _Mapping]]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("registered", "roster", "drain", "plan", "tracing", "hand_over", "start_wave", "coordinator_draining")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TRACING_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    START_WAVE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_DRAINING_FIELD_NUMBER: _ClassVar[int]
    registered: RegisteredDirective
    roster: RosterDirective
    drain: DrainDirective
    plan: PlanDirective
    tracing: TracingDirective
    hand_over: HandOverDirective
    start_wave: StartWaveDirective
    coordinator_draining: CoordinatorDrainingDirective
    def __init__(self, registered: _Optional[_Union[RegisteredDirective, _Mapping]] = ..., roster: _Optional[_Union[RosterDirective, _Mapping]] = ..., drain: _Optional[_Union[DrainDirective, _Mapping]] = ..., plan: _Optional[_Union[PlanDirective, _Mapping]] = ..., tracing: _Optional[_Union[TracingDirective, _Mapping]] = ..., hand_over: _Optional[_Union[HandOverDirective, _Mapping]] = ..., start_wave: _Optional[_Union[StartWaveDirective, _Mapping]] = ..., coordinator_draining: _Optional[_Union[CoordinatorDrainingDirective, _Mapping]] = ...) -> None: ...

class RegisteredDirective(_message.Message):
    __slots__ = ("heartbeat_interval_ms",)
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_ms: int
    def __init__(self, heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class RosterDirective(_message.Message):
    __slots__ = ("drafters",)
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[_verifier_pb2.DrafterAddress]
    def __init__(self, drafters: _Optional[_Iterable[_Union[_verifier_pb2.DrafterAddress, _Mapping]]] = ...) -> None: ...

class HandOverDirective(_message.Message):
    __slots__ = ("from_member", "to", "sessions", "sampled", "other_kind")
    FROM_MEMBER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    OTHER_KIND_FIELD_NUMBER: _ClassVar[int]
    from_member: str
    to: _verifier_pb2.DrafterAddress
    sessions: int
    sampled: bool
    other_kind: bool
    def __init__(self, from_member: _Optional[str] = ..., to: _Optional[_Union[_verifier_pb2.DrafterAddress, _Mapping]] = ..., sessions: _Optional[int] = ..., sampled: bool = ..., other_kind: bool = ...) -> None: ...

class StartWaveDirective(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class DrainDirective(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CoordinatorDrainingDirective(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlanDirective(_message.Message):
    __slots__ = ("plan", "control", "ordered_ms")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    ORDERED_MS_FIELD_NUMBER: _ClassVar[int]
    plan: _common_pb2.Plan
    control: _common_pb2.Control
    ordered_ms: int
    def __init__(self, plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., control: _Optional[_Union[_common_pb2.Control, _Mapping]] = ..., ordered_ms: _Optional[int] = ...) -> None: ...

class TracingDirective(_message.Message):
    __slots__ = ("tracing", "ordered_ms")
    TRACING_FIELD_NUMBER: _ClassVar[int]
    ORDERED_MS_FIELD_NUMBER: _ClassVar[int]
    tracing: _common_pb2.TraceChanges
    ordered_ms: int
    def __init__(self, tracing: _Optional[_Union[_common_pb2.TraceChanges, _Mapping]] = ..., ordered_ms: _Optional[int] = ...) -> None: ...
