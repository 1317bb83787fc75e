"""How to dial a peer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from specsplit.errors import InvalidRequest
from specsplit.observe.tracing import Tracing
from specsplit.rpc.options import channel_options
from specsplit.settings import TransportSettings
from specsplit.settings.address import split
from specsplit.wire.reading import Read, response_reader

_Channel = TypeVar("_Channel", grpc.Channel, grpc.aio.Channel)
_SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def dial(address: str, settings: TransportSettings | None = None, tracing: Tracing | None = None) -> grpc.aio.Channel:
    """An asyncio channel to host:port; it connects when first used. The caller closes it.

    With `tracing` that is on, calls that carry out a request get a span and take the trace along.

    Raises InvalidRequest if the address or the CA file is no good.
    """
    settings = settings or TransportSettings()
    split("address", address)
    options, interceptors = channel_options(settings), _interceptors(tracing)
    if settings.tls_ca is None:
        return _reading(grpc.aio.insecure_channel(address, options=options, interceptors=interceptors))
    credentials = _credentials(settings.tls_ca)
    return _reading(grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors))


def dial_blocking(address: str, settings: TransportSettings | None = None) -> grpc.Channel:
    """Like `dial`, for code without an event loop."""
    settings = settings or TransportSettings()
    split("address", address)
    if settings.tls_ca is None:
        return _reading(grpc.insecure_channel(address, options=channel_options(settings)))
    credentials = _credentials(settings.tls_ca)
    return _reading(grpc.secure_channel(address, credentials, options=channel_options(settings)))


def _reading(channel: _Channel) -> _Channel:
    """The channel; answers of its calls that cannot be read come as `Malformed` (grpc would give None, and log a traceback)."""
    for shape in _SHAPES:
        setattr(channel, shape, _reading_calls(getattr(channel, shape)))
    return channel


def _reading_calls(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(method: str, request_serializer: Any = None, response_deserializer: Read | None = None, **how: Any) -> Any:
        read = None if response_deserializer is None else response_reader(response_deserializer)
        return make(method, request_serializer, read, **how)

    return made


def _interceptors(tracing: Tracing | None) -> list[grpc.aio.ClientInterceptor] | None:
    if tracing is None or tracing.sink is None:
        return None
    from specsplit.rpc.traced import client_interceptor  # noqa: PLC0415 (off means off: nothing of it is loaded)

    return [client_interceptor(tracing)]


def _credentials(tls_ca: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=read_pem("tls_ca", tls_ca))


def read_pem(field: str, path: Path) -> bytes:
    """The bytes of a PEM file. Raises InvalidRequest naming the setting."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(field, f"cannot read {path}: {error.strerror}") from error
