"""How to dial a peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from specsplit.errors import InvalidRequest
from specsplit.identity import token_of
from specsplit.rpc.callers import HEADER, SCHEME
from specsplit.rpc.certificates import channel_credentials
from specsplit.rpc.options import Options, channel_options
from specsplit.rpc.reloading import Reloaded
from specsplit.settings.address import check_dialable, is_loopback, split
from specsplit.settings.addresses import DNS
from specsplit.settings.dialling import Dialling, Transport
from specsplit.settings.files import read
from specsplit.wire.reading import Read, response_reader

if TYPE_CHECKING:
    from specsplit.observe.tracing import Tracing
_Channel = TypeVar("_Channel", grpc.Channel, grpc.aio.Channel)
_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
_SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def dial(
    address: str, settings: Transport | None = None, tracing: Tracing | None = None, *, known_as: str = ""
) -> grpc.aio.Channel:
    """An asyncio channel to host:port, or dns:///name:port for every address of a name; it connects when first used. The caller closes it.

    With `tracing` that is on, calls that carry out a request get a span and take the trace along. `known_as`: the host whose certificate
    the peer shows, if that is not the host of the address.

    Raises InvalidRequest if the address or a file is no good, or the address is beyond this machine and nothing allows to speak in the
    clear.
    """
    settings = settings or Dialling()
    check_reachable("address", address.removeprefix(DNS), settings)
    options, interceptors = [*channel_options(settings, known_as), *_in_turn(address)], _interceptors(tracing)
    credentials, token = channel_credentials(settings), _token(settings)
    if credentials is None:
        return _reading(grpc.aio.insecure_channel(address, options=options, interceptors=interceptors), token)
    return _reading(grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors), token)


def dial_blocking(address: str, settings: Transport | None = None) -> grpc.Channel:
    """Like `dial`, for code without an event loop."""
    settings = settings or Dialling()
    check_reachable("address", address.removeprefix(DNS), settings)
    options, credentials, token = (
        [*channel_options(settings), *_in_turn(address)],
        channel_credentials(settings),
        _token(settings),
    )
    if credentials is None:
        return _reading(grpc.insecure_channel(address, options=options), token)
    return _reading(grpc.secure_channel(address, credentials, options=options), token)


def check_reachable(field: str, address: str, settings: Transport) -> None:
    """Raise InvalidRequest naming `field` unless one may dial this address so: beyond this machine over TLS, or with `insecure`."""
    check_dialable(field, address)
    if settings.tls_ca is None and not settings.insecure and not is_loopback(split(field, address)[0]):
        raise InvalidRequest(
            field,
            f"{address} is on another machine and would be dialled in the clear, texts and tokens included; "
            "give tls_ca (--tls-ca), or allow it with insecure (--insecure)",
        )


def _in_turn(address: str) -> Options:
    """The options of a channel to every address of a name: calls go to each in turn, and the name is looked up again when one is gone."""
    return [("grpc.service_config", _ROUND_ROBIN)] if address.startswith(DNS) else []


def check_shown(settings: Transport) -> None:
    """Raise InvalidRequest if what is shown to peers, or what they are checked against, cannot be read."""
    channel_credentials(settings)
    _token(settings)


def _reading(channel: _Channel, token: Reloaded[str] | None) -> _Channel:
    """The channel, whose calls show the token.

    Answers that cannot be read come as `Malformed` (grpc would give None, and log a traceback).
    """
    for shape in _SHAPES:
        setattr(channel, shape, _reading_calls(getattr(channel, shape), token))
    return channel


def _reading_calls(make: Callable[..., Any], token: Reloaded[str] | None) -> Callable[..., Any]:
    def made(method: str, request_serializer: Any = None, response_deserializer: Read | None = None, **how: Any) -> Any:
        read = None if response_deserializer is None else response_reader(response_deserializer)
        call = make(method, request_serializer, read, **how)
        return call if token is None else _showing(call, token)

    return made


def _showing(call: Callable[..., Any], token: Reloaded[str]) -> Callable[..., Any]:
    def called(*given: Any, metadata: Any = None, **how: Any) -> Any:
        return call(*given, metadata=(*(metadata or ()), (HEADER, SCHEME + token.value)), **how)

    return called


def _token(settings: Transport) -> Reloaded[str] | None:
    return None if settings.token_file is None else _token_in(settings.token_file)


@lru_cache(maxsize=64)
def _token_in(path: Path) -> Reloaded[str]:
    """The token of a file, remembered, so that a later dial has the old one where the new is none."""
    return Reloaded([path], lambda: read("token_file", path, token_of))


def _interceptors(tracing: Tracing | None) -> list[grpc.aio.ClientInterceptor] | None:
    if tracing is None or tracing.sink is None:
        return None
    from specsplit.rpc.traced import client_interceptor  # noqa: PLC0415 (off means off: nothing of it is loaded)

    return [client_interceptor(tracing)]
