"""The channel options that both ends of a connection share."""

from __future__ import annotations

from specsplit.settings.dialling import Transport

Options = list[tuple[str, int | str]]


def shared_options(settings: Transport) -> Options:
    """Make the options that client and server share: message cap and keepalive."""
    keepalive_ms = round(settings.keepalive_s * 1000)
    return [
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(settings: Transport) -> Options:
    """For a server: it also bears its clients' pings, ends who connects and says nothing, and shares its port with nobody."""
    return [
        *shared_options(settings),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.server_handshake_timeout_ms", round(settings.connect_timeout_s * 1000)),
        ("grpc.so_reuseport", 0),
    ]


def channel_options(settings: Transport, known_as: str = "") -> Options:
    """For a client: peers come and go, so it redials soon, and never through an HTTP proxy. `known_as`: the name in the peer's certificate.

    What gRPC calls the least backoff is also its limit for one attempt to connect.
    """
    return [
        *shared_options(settings),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", round(settings.connect_timeout_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        *([("grpc.ssl_target_name_override", known_as)] if known_as else []),
    ]
