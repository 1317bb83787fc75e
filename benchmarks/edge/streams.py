"""Streams of tokens, by each of the calls that bring them. They run until they are cancelled, and tell the numbers of steps that came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, TypeAlias

import grpc

from benchmarks.edge.calls import COMPLETIONS, GENERATE, SESSIONS
from benchmarks.edge.folder import DIGITS, number_of, numbers_in, tokens_of
from specsplit.requests import GenerateRequest, TokenPrompt
from specsplit.rpc.options import channel_options
from specsplit.sessions import Begin, DecodeRequest, Tokens
from specsplit.settings import TransportSettings
from specsplit.v1 import coordinator_pb2, verifier_pb2
from specsplit.wire.coordinator import generate_to_wire
from specsplit.wire.sessions import FULL_BYTES, begin_event, sessions_requests, sessions_response_events
from specsplit.wire.verifier import decode_to_wire

MOST_TOKENS: Final = 50_000
"""Of an answer over HTTP, where there is a small default."""
Heard: TypeAlias = Callable[[int, Sequence[int]], None]
"""Called with the number of a stream, and with what has come on it."""


async def read(call: str, address: str, streams: int, prompt: str, heard: Heard) -> None:
    """Read so many streams of one call. Raises if one of them ends."""
    if call == COMPLETIONS:
        await asyncio.gather(*(_completed(address, prompt, number, heard) for number in range(streams)))
    async with grpc.aio.insecure_channel(address, options=channel_options(TransportSettings())) as channel:
        if call == SESSIONS:
            await _carried(channel, streams, tokens_of(prompt), heard)
        else:
            await asyncio.gather(*(_one(channel, call, prompt, number, heard) for number in range(streams)))
    raise ConnectionError(f"a stream of {call} ended")


async def _one(channel: grpc.aio.Channel, call: str, prompt: str, number: int, heard: Heard) -> None:
    """A stream of Generate or Decode."""
    tokens = tokens_of(prompt)
    if call == GENERATE:
        request, told = generate_to_wire(GenerateRequest(TokenPrompt(tuple(tokens)))), _generated
    else:
        request, told = decode_to_wire(DecodeRequest("", tokens)), _decoded
    async for message in channel.unary_stream(call)(request.SerializeToString()):
        heard(number, [number_of(token) for token in told(message)])
    raise ConnectionError(f"a stream of {call} ended")


def _generated(message: bytes) -> Iterator[int]:
    event = coordinator_pb2.GenerateResponse.FromString(message)
    for delta in (*event.earlier, event.delta):
        yield from delta.token_ids


def _decoded(message: bytes) -> Iterator[int]:
    event = verifier_pb2.DecodeResponse.FromString(message)
    for tokens in (*event.earlier, event.tokens):
        yield from tokens.token_ids


async def _carried(channel: grpc.aio.Channel, streams: int, tokens: Sequence[int], heard: Heard) -> None:
    """All sessions on one stream, as a coordinator reads them."""
    call = channel.stream_stream(
        SESSIONS,
        request_serializer=verifier_pb2.DecodeSessionsRequest.SerializeToString,
        response_deserializer=verifier_pb2.DecodeSessionsResponse.FromString,
    )()
    begins = (begin_event(number + 1, Begin(DecodeRequest("", tokens))) for number in range(streams))
    for request in sessions_requests(begins, FULL_BYTES):
        await call.write(request)
    async for message in call:
        for session, said in sessions_response_events(message):
            if not isinstance(said, Sequence):
                raise ConnectionError(f"a session failed: {said}")
            for event in said:
                heard(session - 1, [number_of(token) for token in event.tokens] if isinstance(event, Tokens) else [])


async def _completed(address: str, prompt: str, number: int, heard: Heard) -> None:
    """A streamed completion over HTTP."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        asked = {"model": "paced", "prompt": prompt, "max_tokens": MOST_TOKENS, "stream": True, "ignore_eos": True}
        body = json.dumps(asked).encode()
        writer.write(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        left = ""
        async for event in _events(reader):
            left += "".join(choice["text"] for choice in json.loads(event)["choices"])
            numbers = numbers_in(left)
            left = left[DIGITS * len(numbers) :]
            heard(number, numbers)
    finally:
        writer.close()
    raise ConnectionError("a completion ended")


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of server-sent events in a chunked answer. Raises ConnectionError for an answer that is none."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] or b"chunked" not in head.lower():
        raise ConnectionError(f"the gateway answers {head!r} {await reader.read(1000)!r}")
    text = b""
    while size := int(await reader.readline(), 16):
        text += (await reader.readexactly(size + 2))[:-2]
        *events, text = text.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                yield event.removeprefix(b"data: ")
