"""vllm_engine.proto of the package smg-grpc-proto: what a gateway and vLLM's engine say to each other, and so a gateway and us.

A request becomes our own `GenerateRequest` message and is read as such, so that there is one place where requests are checked. What
specsplit does not have is refused by the name of its field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from google.protobuf.message import Message
from smg_grpc_proto.generated import common_pb2 as gateway_pb  # pyright: ignore[reportMissingTypeStubs]
from smg_grpc_proto.generated import vllm_engine_pb2 as pb  # pyright: ignore[reportMissingTypeStubs]

from specsplit.engine import EngineLoad, ModelConfig
from specsplit.errors import InvalidRequest, Unsupported
from specsplit.requests import Delta, Done, GenerateEvent, GenerateRequest, TokenPrompt
from specsplit.v1 import common_pb2 as own_common_pb
from specsplit.v1 import coordinator_pb2 as own_pb
from specsplit.values import ModelInfo
from specsplit.wire.checks import check
from specsplit.wire.common import constraint_from_wire, constraint_into
from specsplit.wire.coordinator import generate_from_wire as own_from_wire
from specsplit.wire.coordinator import refuse_unknown
from specsplit.wire.vllm_logprobs import MESSAGE_BYTES, InputLogprobs, check_prompt_fits, output_logprobs

GenerateMessage: TypeAlias = pb.GenerateRequest
GenerateResponseMessage: TypeAlias = pb.GenerateResponse
AbortMessage: TypeAlias = pb.AbortRequest
AbortedMessage: TypeAlias = pb.AbortResponse
HealthQuestion: TypeAlias = pb.HealthCheckRequest
HealthMessage: TypeAlias = pb.HealthCheckResponse
ModelInfoQuestion: TypeAlias = pb.GetModelInfoRequest
ModelInfoMessage: TypeAlias = pb.GetModelInfoResponse
ServerInfoQuestion: TypeAlias = pb.GetServerInfoRequest
ServerInfoMessage: TypeAlias = pb.GetServerInfoResponse
LoadsQuestion: TypeAlias = pb.GetLoadsRequest
LoadsMessage: TypeAlias = pb.GetLoadsResponse
TokenizerQuestion: TypeAlias = gateway_pb.GetTokenizerRequest
TokenizerMessage: TypeAlias = gateway_pb.GetTokenizerChunk

_CHUNK_BYTES: Final = 64 * 2**10
"""Bytes of an archive in one message."""
_NO_MEDIA: Final = "is not supported, since only text is served; leave it out"
_NO_TRANSFER: Final = "is not supported: KV does not move between engines; leave it out"
NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        "mm_inputs": _NO_MEDIA,
        "extra_mm_inputs": _NO_MEDIA,
        "media_refs": _NO_MEDIA,
        "kv_transfer_params": _NO_TRANSFER,
        "kv_transfer_params_json": _NO_TRANSFER,
        "data_parallel_rank": "is not supported: a coordinator chooses the rank, and each has an address of its own; leave it out",
        "truncate_prompt_tokens": "is not supported: no prompt is cut; send one that fits",
    }
)
"""Fields of GenerateRequest and SamplingParams that are refused if they are set, with what is said of them."""


def generate_from_wire(
    message: pb.GenerateRequest, max_message_bytes: int = MESSAGE_BYTES, adapter: str = ""
) -> GenerateRequest:
    """`adapter`: what it is decoded with, of which the message says nothing; empty: none.

    Raises InvalidRequest, naming the field, for no prompt, an unknown field or a value out of range; Unsupported for what is not served.

    So it does for log-probabilities of the prompt that are no one message of so many bytes.

    `original_text`, `skip_special_tokens`, `spaces_between_special_tokens` and `include_stop_str_in_output` say how text is written, and
    only tokens are answered: those of a stop string are among them, whatever the last says.
    """
    check(message)
    refuse_unknown(message)
    _refuse_unserved(message)
    request = own_from_wire(_own(message, adapter))
    check_prompt_fits(len(message.tokenized.input_ids), request.prompt_logprobs, max_message_bytes)
    return request


def _refuse_unserved(message: pb.GenerateRequest) -> None:
    for path, part in ("", message), ("sampling_params.", message.sampling_params):
        for field, _ in part.ListFields():
            if field.name in NOT_SERVED:
                raise Unsupported(path + field.name, NOT_SERVED[field.name])


def _own(message: pb.GenerateRequest, adapter: str) -> own_pb.GenerateRequest:
    """Make a message of ours of the request. Raises InvalidRequest for a number that ours has no place for."""
    asked = message.sampling_params
    own = own_pb.GenerateRequest(
        request_id=message.request_id,
        sampling=_sampling(asked),
        stopping=_stopping(asked),
        stop=asked.stop,
        n=asked.n or 1,
        adapter=adapter,
        include_stop_str_in_output=asked.include_stop_str_in_output,
    )
    constraint_into(own, constraint_from_wire(asked))
    if asked.HasField("logprobs"):
        own.logprobs = _not_negative("logprobs", asked.logprobs)
    if asked.HasField("prompt_logprobs"):
        own.prompt_logprobs = _not_negative("prompt_logprobs", asked.prompt_logprobs)
    match message.WhichOneof("input"):
        case "tokenized":
            own.tokens.token_ids.extend(message.tokenized.input_ids)
            own.tokens.SetInParent()
        case "text":
            own.text = message.text
        case _:
            raise InvalidRequest("input", "is absent, expected tokenized or text")
    return own


def _sampling(asked: pb.SamplingParams) -> own_common_pb.Sampling:
    """A field at 0 that means nothing there is absent, as vLLM's own servicer has it; an absent temperature is 1."""
    sampling = own_common_pb.Sampling(
        temperature=_decimal(asked.temperature) if asked.HasField("temperature") else 1.0,
        top_p=_decimal(asked.top_p) or 1.0,
        top_k=asked.top_k,
        min_p=_decimal(asked.min_p),
        frequency_penalty=_decimal(asked.frequency_penalty),
        presence_penalty=_decimal(asked.presence_penalty),
        repetition_penalty=_decimal(asked.repetition_penalty) or 1.0,
    )
    for token, bias in asked.logit_bias.items():
        sampling.logit_bias[_not_negative(f"logit_bias[{token}]", token)] = _decimal(bias)
    if asked.HasField("seed"):
        sampling.seed = _not_negative("seed", asked.seed)
    return sampling


def _stopping(asked: pb.SamplingParams) -> own_common_pb.Stopping:
    return own_common_pb.Stopping(
        max_tokens=asked.max_tokens if asked.HasField("max_tokens") else None,
        stop_token_ids=asked.stop_token_ids,
        ignore_eos=asked.ignore_eos,
        min_tokens=asked.min_tokens,
    )


def _not_negative(field: str, value: int) -> int:
    if value < 0:
        raise InvalidRequest(f"sampling_params.{field}", f"is {value}, expected none below 0")
    return value


def _decimal(value: float) -> float:
    """The shortest decimal that this float32 stands for: 0.7 was 0.7 before it was sent as one."""
    return float(str(np.float32(value)))


class Responses:
    """Writes what one request gets: as it comes if it is streamed, else all choices at the end of the last, in order.

    Gateways number choices that are not streamed by the order in which they come. What is told of the prompt is in the first chunk of
    choice 0 or, if nothing is streamed, with every choice.
    """

    def __init__(self, request: GenerateRequest, *, streamed: bool, max_message_bytes: int = MESSAGE_BYTES) -> None:
        """A call raises InvalidRequest for log-probabilities of the prompt that are no one message of so many bytes."""
        self._request = request
        self._streamed = streamed
        self._prompt = InputLogprobs(request.prompt_logprobs, max_message_bytes)
        self._began = False
        """Whether choice 0 has had a chunk."""
        self._kept: list[list[Delta]] = [[] for _ in range(request.n)]
        """By choice, what has not been streamed."""
        self._ends: dict[int, tuple[Done, list[Delta]]] = {}
        """By choice, ends that have not been told, and what was kept of it: what is told of the prompt may come behind some of them."""

    def __call__(self, event: GenerateEvent, earlier: Sequence[Delta] = ()) -> list[pb.GenerateResponse]:
        """The messages of an event and of deltas before it that were held back."""
        if isinstance(event, Done):
            return self._ended(event, earlier)
        if event.prompt is not None:
            self._prompt.add(event.prompt)
            return []
        deltas = [*earlier, event]
        if not self._streamed:
            self._kept[event.index] += deltas
            return []
        return [pb.GenerateResponse(chunk=self._chunk(deltas))] if any(each.tokens for each in deltas) else []

    def _ended(self, done: Done, earlier: Sequence[Delta]) -> list[pb.GenerateResponse]:
        chunk = [pb.GenerateResponse(chunk=self._chunk(earlier))] if self._streamed and earlier else []
        kept = [] if self._streamed else [*self._kept[done.index], *earlier]
        self._ends[done.index] = done, kept
        if not self._streamed and len(self._ends) < self._request.n:
            return []
        ends = [self._ends.pop(index) for index in sorted(self._ends)]
        return [*chunk, *(pb.GenerateResponse(complete=self._complete(*each)) for each in ends)]

    def _chunk(self, deltas: Sequence[Delta]) -> pb.GenerateStreamChunk:
        tokens, prompt, index = _tokens(deltas), self._request.prompt, deltas[-1].index
        begins = index == 0 and not self._began
        self._began |= begins
        return pb.GenerateStreamChunk(
            token_ids=tokens,
            prompt_tokens=len(prompt.tokens) if isinstance(prompt, TokenPrompt) else 0,
            completion_tokens=len(tokens),
            output_logprobs=output_logprobs(deltas),
            input_logprobs=self._prompt.message() if begins else None,
            index=index,
        )

    def _complete(self, done: Done, deltas: Sequence[Delta]) -> pb.GenerateComplete:
        """Of an end token of the model that ended the choice nothing is said, as vLLM does: nobody asked for it."""
        matched, asked = done.matched_stop, self._request.stopping.stop_token_ids
        told = not self._streamed or (done.index == 0 and not self._began)
        return pb.GenerateComplete(
            output_ids=_tokens(deltas),
            finish_reason=done.reason.value,
            prompt_tokens=done.usage.prompt_tokens,
            completion_tokens=done.usage.completion_tokens,
            cached_tokens=done.usage.cached_prompt_tokens,
            output_logprobs=output_logprobs(deltas),
            input_logprobs=self._prompt.message() if told else None,
            index=done.index,
            matched_token_id=matched if isinstance(matched, int) and matched in asked else None,
            matched_stop_str=matched if isinstance(matched, str) else None,
            spec_accepted_tokens=done.speculation.accepted,
            spec_draft_tokens=done.speculation.drafted,
        )


def _tokens(deltas: Iterable[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def abort_from_wire(message: pb.AbortRequest) -> tuple[str, ...]:
    """The ids of the requests that are to end. Raises InvalidRequest for an unknown field or too many."""
    _check(message)
    return tuple(message.request_ids)


def aborted_to_wire() -> pb.AbortResponse:
    return pb.AbortResponse()


def health_to_wire(problem: str) -> pb.HealthCheckResponse:
    """`problem`: why no requests are taken; empty: they are."""
    return pb.HealthCheckResponse(healthy=not problem, message=problem or "requests are taken")


def model_info_to_wire(info: ModelInfo, config: ModelConfig, folder: str) -> pb.GetModelInfoResponse:
    """`folder`: the absolute path of the tokenizer. A name would be looked up by a gateway, in its own folder and on a hub.

    Sampling that a request leaves out has no defaults of the model's.
    """
    return pb.GetModelInfoResponse(
        model_path=folder,
        tokenizer_path=folder,
        served_model_name=info.model,
        is_generation=True,
        max_context_length=info.max_context,
        max_req_input_len=info.max_context - 1,
        vocab_size=info.vocabulary.size,
        eos_token_ids=info.eos_token_ids,
        model_type=config.model_type,
        architectures=config.architectures,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
    )


def server_info_to_wire(load: EngineLoad, uptime_s: float) -> pb.GetServerInfoResponse:
    return pb.GetServerInfoResponse(
        active_requests=load.running + load.waiting,
        uptime_seconds=uptime_s,
        server_type="specsplit",
        data_parallel_size=1,
        max_num_seqs=load.max_running,
    )


def loads_from_wire(message: pb.GetLoadsRequest) -> bool:
    """Whether the one rank that there is was asked for. Raises InvalidRequest for an unknown field, or too many sections."""
    _check(message)
    return message.dp_rank == 0


def loads_to_wire(loads: Sequence[EngineLoad], timestamp: str, build: str) -> pb.GetLoadsResponse:
    return pb.GetLoadsResponse(
        timestamp=timestamp,
        version=build,
        dp_rank_count=len(loads),
        loads=[_load_to_wire(rank, load) for rank, load in enumerate(loads)],
    )


def _load_to_wire(rank: int, load: EngineLoad) -> pb.SchedulerLoad:
    return pb.SchedulerLoad(
        dp_rank=rank,
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=load.used_tokens,
        max_total_num_tokens=load.max_tokens,
        token_usage=load.token_usage,
        utilization=load.utilization,
        max_running_requests=load.max_running,
    )


def archive_to_wire(data: bytes, sha256: str) -> Iterable[gateway_pb.GetTokenizerChunk]:
    """The messages of an archive; the last has the digest."""
    last = (len(data) - 1) // _CHUNK_BYTES
    for number in range(last + 1):
        part = data[number * _CHUNK_BYTES : (number + 1) * _CHUNK_BYTES]
        yield gateway_pb.GetTokenizerChunk(data=part, sha256=sha256 if number == last else "")


def _check(message: Message) -> None:
    check(message)
    refuse_unknown(message)
