from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NoDraftsCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_DRAFTS_CAUSE_UNSPECIFIED: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_REQUEST: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_PLAN: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_NO_DRAFTER: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_REFUSED: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_RESTING: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_EMPTY: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_LATE: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_PRICE: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_ROOM: _ClassVar[NoDraftsCause]
    NO_DRAFTS_CAUSE_MEMORY: _ClassVar[NoDraftsCause]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class DrafterKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFTER_KIND_UNSPECIFIED: _ClassVar[DrafterKind]
    DRAFTER_KIND_NGRAM: _ClassVar[DrafterKind]
    DRAFTER_KIND_STANDALONE: _ClassVar[DrafterKind]
    DRAFTER_KIND_EAGLE: _ClassVar[DrafterKind]
    DRAFTER_KIND_EAGLE3: _ClassVar[DrafterKind]
    DRAFTER_KIND_MULTI_LAYER_EAGLE: _ClassVar[DrafterKind]
    DRAFTER_KIND_DFLASH: _ClassVar[DrafterKind]
    DRAFTER_KIND_DSPARK: _ClassVar[DrafterKind]

class FeatureFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_FORMAT_UNSPECIFIED: _ClassVar[FeatureFormat]
    FEATURE_FORMAT_FLOAT32: _ClassVar[FeatureFormat]
    FEATURE_FORMAT_BFLOAT16: _ClassVar[FeatureFormat]
    FEATURE_FORMAT_FLOAT16: _ClassVar[FeatureFormat]
    FEATURE_FORMAT_FP8_E4M3: _ClassVar[FeatureFormat]
NO_DRAFTS_CAUSE_UNSPECIFIED: NoDraftsCause
NO_DRAFTS_CAUSE_REQUEST: NoDraftsCause
NO_DRAFTS_CAUSE_PLAN: NoDraftsCause
NO_DRAFTS_CAUSE_NO_DRAFTER: NoDraftsCause
NO_DRAFTS_CAUSE_REFUSED: NoDraftsCause
NO_DRAFTS_CAUSE_RESTING: NoDraftsCause
NO_DRAFTS_CAUSE_EMPTY: NoDraftsCause
NO_DRAFTS_CAUSE_LATE: NoDraftsCause
NO_DRAFTS_CAUSE_PRICE: NoDraftsCause
NO_DRAFTS_CAUSE_ROOM: NoDraftsCause
NO_DRAFTS_CAUSE_MEMORY: NoDraftsCause
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
DRAFTER_KIND_UNSPECIFIED: DrafterKind
DRAFTER_KIND_NGRAM: DrafterKind
DRAFTER_KIND_STANDALONE: DrafterKind
DRAFTER_KIND_EAGLE: DrafterKind
DRAFTER_KIND_EAGLE3: DrafterKind
DRAFTER_KIND_MULTI_LAYER_EAGLE: DrafterKind
DRAFTER_KIND_DFLASH: DrafterKind
DRAFTER_KIND_DSPARK: DrafterKind
FEATURE_FORMAT_UNSPECIFIED: FeatureFormat
FEATURE_FORMAT_FLOAT32: FeatureFormat
FEATURE_FORMAT_BFLOAT16: FeatureFormat
FEATURE_FORMAT_FLOAT16: FeatureFormat
FEATURE_FORMAT_FP8_E4M3: FeatureFormat

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    logit_bias: _containers.ScalarMap[int, float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("num_steps", "topk", "num_draft_tokens", "wait_budget_us", "draft_ahead")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOPK_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_BUDGET_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_AHEAD_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    topk: int
    num_draft_tokens: int
    wait_budget_us: int
    draft_ahead: bool
    def __init__(self, num_steps: _Optional[int] = ..., topk: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., wait_budget_us: _Optional[int] = ..., draft_ahead: bool = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("adaptive", "max_draft_tokens")
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    adaptive: str
    max_draft_tokens: int
    def __init__(self, adaptive: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("accept_length", "step_s", "token_s", "rate", "static_rate")
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    STATIC_RATE_FIELD_NUMBER: _ClassVar[int]
    accept_length: float
    step_s: float
    token_s: float
    rate: float
    static_rate: float
    def __init__(self, accept_length: _Optional[float] = ..., step_s: _Optional[float] = ..., token_s: _Optional[float] = ..., rate: _Optional[float] = ..., static_rate: _Optional[float] = ...) -> None: ...

class DrafterReport(_message.Message):
    __slots__ = ("member_id", "sessions", "steps", "accepted", "held_s", "round_trip_s", "sampled", "movable")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    sessions: int
    steps: float
    accepted: float
    held_s: float
    round_trip_s: float
    sampled: bool
    movable: int
    def __init__(self, member_id: _Optional[str] = ..., sessions: _Optional[int] = ..., steps: _Optional[float] = ..., accepted: _Optional[float] = ..., held_s: _Optional[float] = ..., round_trip_s: _Optional[float] = ..., sampled: bool = ..., movable: _Optional[int] = ...) -> None: ...

class SpeculationReport(_message.Message):
    __slots__ = ("adaptive", "max_draft_tokens", "launched", "accept_length", "hit_rate", "step_s", "token_s", "estimate", "drafters", "no_drafts")
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHED_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    adaptive: str
    max_draft_tokens: int
    launched: Plan
    accept_length: float
    hit_rate: float
    step_s: float
    token_s: float
    estimate: Estimate
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterReport]
    no_drafts: NoDrafts
    def __init__(self, adaptive: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ..., launched: _Optional[_Union[Plan, _Mapping]] = ..., accept_length: _Optional[float] = ..., hit_rate: _Optional[float] = ..., step_s: _Optional[float] = ..., token_s: _Optional[float] = ..., estimate: _Optional[_Union[Estimate, _Mapping]] = ..., drafters: _Optional[_Iterable[_Union[DrafterReport, _Mapping]]] = ..., no_drafts: _Optional[_Union[NoDrafts, _Mapping]] = ...) -> None: ...

class NoDrafts(_message.Message):
    __slots__ = ("cause", "nodes", "cost_ratio", "tokens", "rarely")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    COST_RATIO_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RARELY_FIELD_NUMBER: _ClassVar[int]
    cause: NoDraftsCause
    nodes: int
    cost_ratio: float
    tokens: float
    rarely: bool
    def __init__(self, cause: _Optional[_Union[NoDraftsCause, str]] = ..., nodes: _Optional[int] = ..., cost_ratio: _Optional[float] = ..., tokens: _Optional[float] = ..., rarely: bool = ...) -> None: ...

class TraceChanges(_message.Message):
    __slots__ = ("level", "ratio", "modules")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    level: int
    ratio: float
    modules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, level: _Optional[int] = ..., ratio: _Optional[float] = ..., modules: _Optional[_Iterable[str]] = ...) -> None: ...

class Stopping(_message.Message):
    __slots__ = ("max_tokens", "stop_token_ids", "ignore_eos", "min_tokens")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_tokens: int
    def __init__(self, max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., min_tokens: _Optional[int] = ...) -> None: ...

class WeightsUpdate(_message.Message):
    __slots__ = ("folder", "restart", "timeout_s")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    folder: str
    restart: bool
    timeout_s: float
    def __init__(self, folder: _Optional[str] = ..., restart: bool = ..., timeout_s: _Optional[float] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "grammar", "choice", "structural_tag")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: bool
    regex: str
    grammar: str
    choice: ChoiceConstraint
    structural_tag: str
    def __init__(self, json_schema: _Optional[str] = ..., json_object: bool = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choice: _Optional[_Union[ChoiceConstraint, _Mapping]] = ..., structural_tag: _Optional[str] = ...) -> None: ...

class ChoiceConstraint(_message.Message):
    __slots__ = ("choices",)
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("size", "digest")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    size: int
    digest: str
    def __init__(self, size: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("picked", "top_token_ids", "top", "picked_texts", "top_texts")
    PICKED_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PICKED_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TEXTS_FIELD_NUMBER: _ClassVar[int]
    picked: _containers.RepeatedScalarFieldContainer[float]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top: _containers.RepeatedScalarFieldContainer[float]
    picked_texts: _containers.RepeatedScalarFieldContainer[str]
    top_texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, picked: _Optional[_Iterable[float]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top: _Optional[_Iterable[float]] = ..., picked_texts: _Optional[_Iterable[str]] = ..., top_texts: _Optional[_Iterable[str]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("first", "token_ids", "logprobs")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: Logprobs
    def __init__(self, first: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStatistics(_message.Message):
    __slots__ = ("steps", "drafted", "accepted", "hits", "misses", "accept_length")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    steps: int
    drafted: int
    accepted: int
    hits: int
    misses: int
    accept_length: float
    def __init__(self, steps: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., accept_length: _Optional[float] = ...) -> None: ...

class FeatureNeed(_message.Message):
    __slots__ = ("layers", "hidden_size", "format", "projection", "projected_size")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    PROJECTED_SIZE_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    hidden_size: int
    format: FeatureFormat
    projection: str
    projected_size: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., hidden_size: _Optional[int] = ..., format: _Optional[_Union[FeatureFormat, str]] = ..., projection: _Optional[str] = ..., projected_size: _Optional[int] = ...) -> None: ...

class FeatureLayout(_message.Message):
    __slots__ = ("width", "format")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    width: int
    format: FeatureFormat
    def __init__(self, width: _Optional[int] = ..., format: _Optional[_Union[FeatureFormat, str]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "vocabulary", "max_context", "eos_token_ids", "takes_chat", "looks_up", "adapters")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TAKES_CHAT_FIELD_NUMBER: _ClassVar[int]
    LOOKS_UP_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocabulary: Vocabulary
    max_context: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    takes_chat: bool
    looks_up: bool
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, model: _Optional[str] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ..., max_context: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., takes_chat: bool = ..., looks_up: bool = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    rank: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class AdapterLoad(_message.Message):
    __slots__ = ("name", "sessions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    sessions: int
    def __init__(self, name: _Optional[str] = ..., sessions: _Optional[int] = ...) -> None: ...

class DrafterInfo(_message.Message):
    __slots__ = ("kind", "model", "vocabulary", "max_context", "features")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    kind: DrafterKind
    model: str
    vocabulary: Vocabulary
    max_context: int
    features: FeatureNeed
    def __init__(self, kind: _Optional[_Union[DrafterKind, str]] = ..., model: _Optional[str] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ..., max_context: _Optional[int] = ..., features: _Optional[_Union[FeatureNeed, _Mapping]] = ...) -> None: ...

class GroupRank(_message.Message):
    __slots__ = ("group_id", "rank", "size")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    rank: int
    size: int
    def __init__(self, group_id: _Optional[str] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("machine", "cores", "threads", "device")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    machine: str
    cores: _containers.RepeatedScalarFieldContainer[int]
    threads: int
    device: str
    def __init__(self, machine: _Optional[str] = ..., cores: _Optional[_Iterable[int]] = ..., threads: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class WaveReport(_message.Message):
    __slots__ = ("number", "parked", "wanted")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    number: int
    parked: bool
    wanted: bool
    def __init__(self, number: _Optional[int] = ..., parked: bool = ..., wanted: bool = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("sessions", "waiting", "free_pages", "total_pages", "steps", "step_ms", "page_size", "kv_window", "layer_window", "window_pages", "free_window_pages", "adapters")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAYER_WINDOW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_WINDOW_PAGES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    waiting: int
    free_pages: int
    total_pages: int
    steps: int
    step_ms: float
    page_size: int
    kv_window: int
    layer_window: int
    window_pages: int
    free_window_pages: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterLoad]
    def __init__(self, sessions: _Optional[int] = ..., waiting: _Optional[int] = ..., free_pages: _Optional[int] = ..., total_pages: _Optional[int] = ..., steps: _Optional[int] = ..., step_ms: _Optional[float] = ..., page_size: _Optional[int] = ..., kv_window: _Optional[int] = ..., layer_window: _Optional[int] = ..., window_pages: _Optional[int] = ..., free_window_pages: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterLoad, _Mapping]]] = ...) -> None: ...
