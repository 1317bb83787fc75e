from specsplit.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "token_ids", "sampling", "stopping", "plan", "drafter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.Sampling
    stopping: _common_pb2.Stopping
    plan: _common_pb2.Plan
    drafter: DrafterAddress
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., stopping: _Optional[_Union[_common_pb2.Stopping, _Mapping]] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., drafter: _Optional[_Union[DrafterAddress, _Mapping]] = ...) -> None: ...

class DrafterAddress(_message.Message):
    __slots__ = ("member_id", "address", "features")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    address: str
    features: _common_pb2.FeatureNeed
    def __init__(self, member_id: _Optional[str] = ..., address: _Optional[str] = ..., features: _Optional[_Union[_common_pb2.FeatureNeed, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("tokens", "finished")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    tokens: TokensEvent
    finished: FinishedEvent
    def __init__(self, tokens: _Optional[_Union[TokensEvent, _Mapping]] = ..., finished: _Optional[_Union[FinishedEvent, _Mapping]] = ...) -> None: ...

class TokensEvent(_message.Message):
    __slots__ = ("token_ids", "num_correct_drafts", "speculation")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRECT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_correct_drafts: int
    speculation: _common_pb2.SpeculationStatistics
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_correct_drafts: _Optional[int] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ...) -> None: ...

class FinishedEvent(_message.Message):
    __slots__ = ("reason", "stop_token_id", "usage", "speculation")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    stop_token_id: int
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStatistics
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStatistics, _Mapping]] = ...) -> None: ...
