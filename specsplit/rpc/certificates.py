"""Certificates, keys and authorities: read from PEM files, checked, and read again when they change."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from specsplit.errors import InvalidRequest
from specsplit.rpc.reloading import Reloaded
from specsplit.settings.dialling import Transport
from specsplit.settings.files import read_text

if TYPE_CHECKING:
    from specsplit.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class Pems:
    """PEM texts; None for what is not given."""

    authority: bytes | None
    """Whoever signed the peer's certificate."""
    chain: bytes | None
    """This side's certificate, and the key to it."""
    key: bytes | None = field(repr=False)

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Key and chain as a server has them."""
        assert self.key is not None and self.chain is not None, "a server with TLS has both"
        return self.key, self.chain


def shown_to_servers(settings: Transport) -> Pems | None:
    """What a channel that is dialled now shows and checks; None: it is in the clear. An open channel keeps what it was dialled with.

    Raises InvalidRequest if the files are no good the first time.
    """
    if settings.tls_ca is None:
        return None
    return _files(settings.tls_ca, "tls_ca", settings.tls_cert, settings.tls_key).value


def channel_credentials(settings: Transport) -> grpc.ChannelCredentials | None:
    """What to dial with now; None: in the clear. Raises InvalidRequest if the files are no good the first time."""
    pems = shown_to_servers(settings)
    return None if pems is None else grpc.ssl_channel_credentials(pems.authority, pems.key, pems.chain)


def server_credentials(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    """What to listen with, for as long as the server runs; None: in the clear. Raises InvalidRequest if the files are no good now."""
    if settings.tls_cert is None:
        return None
    served = _Served(_files(settings.tls_client_ca, "tls_client_ca", settings.tls_cert, settings.tls_key))
    first = served.configuration()
    changed: Any = served.changed  # None says that nothing has changed, which the published types leave out
    return grpc.dynamic_ssl_server_credentials(first, changed, settings.tls_client_ca is not None)


class _Served:
    """The certificate of a server, asked for at every handshake."""

    def __init__(self, files: Reloaded[Pems]) -> None:
        self._files = files
        self._current = files.value

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What it is now."""
        return grpc.ssl_server_certificate_configuration([self._current.pair], self._current.authority)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What it is now, if that is new. Called on a thread of gRPC's."""
        now = self._files.value
        if now is self._current:
            return None
        self._current = now
        return self.configuration()


@lru_cache(maxsize=64)
def _files(authority: Path | None, field: str, chain: Path | None, key: Path | None) -> Reloaded[Pems]:
    """The files of one set of settings, remembered, so that a later dial has the old ones where the new are no good."""
    paths: Sequence[Path] = [path for path in (authority, chain, key) if path is not None]
    return Reloaded(paths, lambda: _read(authority, field, chain, key))


def _read(authority: Path | None, field: str, chain: Path | None, key: Path | None) -> Pems:
    """Raises InvalidRequest for a file that cannot be read, is no PEM, or a key that is not the certificate's."""
    pems = Pems(_certificates(field, authority), _certificates("tls_cert", chain), _pem("tls_key", key))
    if chain is not None and key is not None:
        _check_pair(chain, key)
    return pems


def _certificates(field: str, path: Path | None) -> bytes | None:
    pem = _pem(field, path)
    if pem is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidRequest(
                field, f"{path} holds no certificate in PEM, or one that is damaged: {error}"
            ) from error
    return pem


def _check_pair(chain: Path, key: Path) -> None:
    """Raise InvalidRequest unless that is the key of this certificate."""
    try:
        # an encrypted key is refused, not asked about
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidRequest(
                "tls_key", f"{key} is the key of another certificate than {chain} (tls_cert)"
            ) from error
        raise InvalidRequest(
            "tls_key", f"{key} holds no private key in PEM that can be read without a passphrase: {error}"
        ) from error


def _pem(field: str, path: Path | None) -> bytes | None:
    return None if path is None else read_text(field, path, twice=True).encode()
