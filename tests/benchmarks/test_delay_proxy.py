from __future__ import annotations

import socket
import threading
import time

from benchmarks.delay_proxy import DelayProxy, Passed, delayed


def _echo_server() -> tuple[str, int]:
    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    host, port = listener.getsockname()[:2]
    return host, port


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def _read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_bytes_come_back_whole_and_in_order_after_one_delay_in_each_direction() -> None:
    messages, delay_s = [bytes([n]) * (n * 977 % 10_000 + 1) for n in range(40)], 0.1
    host, port = _echo_server()
    with delayed(f"{host}:{port}", delay_s) as proxy, _connect(proxy.address) as connection:
        started = time.monotonic()
        for message in messages:
            connection.sendall(message)
            time.sleep(0.005)  # or several of them were one chunk
        connection.shutdown(socket.SHUT_WR)
        back = _read_all(connection)
        took = time.monotonic() - started
        passed = proxy.passed()
    assert back == b"".join(messages)
    assert took >= 2 * delay_s
    assert took < len(messages) * delay_s, "chunks in flight must overlap, not queue up one delay each"
    assert passed == Passed(len(back), len(back))


def test_a_connection_to_a_dead_target_is_closed_not_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        host, port = gone.getsockname()[:2]
    with _connect(DelayProxy((host, port), 0.0).start()) as connection:
        assert _read_all(connection) == b""
