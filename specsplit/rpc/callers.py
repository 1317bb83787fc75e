"""Who calls: a bearer token or the certificate of the connection, looked up in the files that an operator wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specsplit.errors import Unauthenticated, quoted
from specsplit.identity import ANONYMOUS, ANYBODY, CallerRole, Identity, digest, roles_of, tokens_of
from specsplit.observe.record import fields
from specsplit.rpc.permissions import check_permitted, described, needed
from specsplit.rpc.reloading import Reloaded
from specsplit.settings.files import read

if TYPE_CHECKING:
    from specsplit.settings import ServiceSettings

_log = logging.getLogger(__name__)

HEADER = "authorization"
"""The metadata that carries a token."""
SCHEME = "Bearer "
_NAMES = ("x509_common_name", "x509_subject_alternative_name")
"""Where gRPC tells the subject names of a caller's certificate, which TLS has checked; the common name counts first."""
_EVERYONE = frozenset(CallerRole)
_Parse = Callable[[str], Mapping[str, Identity]]
_Roles = Mapping[str, frozenset[CallerRole]]

_caller: ContextVar[Identity] = ContextVar("caller", default=ANYBODY)


def caller() -> Identity:
    """Who made the call that is being served."""
    return _caller.get()


class Call(Protocol):
    """The parts of a servicer's context that say who calls."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class Callers:
    """The callers that a server knows."""

    def __init__(self, settings: ServiceSettings, process: str = "") -> None:
        """Reads the files that the settings name. Raises InvalidRequest. `process`: which kind of server it is, such as "verifier"."""
        self._process = process
        self._tokens = _file("tokens_file", settings.tokens_file, tokens_of)
        self._subjects = _file("roles_file", settings.roles_file, roles_of)
        self._anonymous = settings.anonymous_clients
        self._roles: _Roles = {}
        self._said: tuple[Mapping[str, Identity], ...] = ()
        """What the files said when `_roles` was made of them."""

    def admit(self, method: str, call: Call, port: frozenset[CallerRole] = _EVERYONE) -> None:
        """Note who calls "/service/Method" on a port for callers of these roles.

        Raises Unauthenticated if he shows nothing, or nothing that is known; PermissionDenied if he is known and may not.
        """
        wanted = needed(method, self._process)
        if wanted is None:
            return
        try:
            identity = self._identify(call)
        except Unauthenticated as error:
            raise Unauthenticated(f"{method.rpartition('/')[2]} needs {described(wanted)}: {error}") from None
        check_permitted(method, wanted, identity, port)
        _caller.set(identity)

    @property
    def roles(self) -> _Roles:
        """The roles of every caller by name, as the files say now; the same object until one of them changes."""
        said = tuple(file.value for file in (self._tokens, self._subjects) if file is not None)
        if len(said) != len(self._said) or any(new is not old for new, old in zip(said, self._said, strict=True)):
            self._said, roles = said, dict[str, frozenset[CallerRole]]()
            for identity in (each for file in said for each in file.values()):
                roles[identity.name] = roles.get(identity.name, frozenset()) | identity.roles
            self._roles = roles
        return self._roles

    def check_still(self, method: str, name: str, port: frozenset[CallerRole] = _EVERYONE) -> None:
        """Raise Unauthenticated if a caller that was let in is not known by this name any more, PermissionDenied if it has no role left."""
        wanted, roles = needed(method, self._process) or frozenset(), self.roles.get(name)
        if roles is None:
            needs = f"{method.rpartition('/')[2]} needs {described(wanted)}"
            raise Unauthenticated(f"{needs}: {quoted(name)} is not known here any more (tokens_file, roles_file)")
        check_permitted(method, wanted, Identity(name, roles), port)

    def _identify(self, call: Call) -> Identity:
        """A token counts before a certificate."""
        if self._tokens is None and self._subjects is None:
            return ANYBODY
        token = None if self._tokens is None else _token_of(call)
        if self._tokens is not None and token is not None:
            return _known(self._tokens.value.get(digest(token)), "the token shown is not known here (tokens_file)")
        if self._subjects is not None:
            return self._by_certificate(self._subjects.value, call)
        if self._anonymous:
            return ANONYMOUS
        raise Unauthenticated(
            f"no token was shown; callers have it in a file (token_file), and send it as '{HEADER}: Bearer …'"
        )

    def _by_certificate(self, subjects: Mapping[str, Identity], call: Call) -> Identity:
        shown = call.auth_context()
        names = [name.decode(errors="replace") for key in _NAMES for name in shown.get(key, ())]
        known = next((subjects[name] for name in names if name in subjects), None)
        return _known(known, f"no name of the certificate shown is known here (roles_file): {quoted(', '.join(names))}")


def _known(identity: Identity | None, otherwise: str) -> Identity:
    if identity is None:
        raise Unauthenticated(otherwise)
    return identity


def _token_of(call: Call) -> str | None:
    for key, value in call.invocation_metadata() or ():
        if key == HEADER and isinstance(value, str) and value[: len(SCHEME)].lower() == SCHEME.lower():
            return value[len(SCHEME) :]
    return None


def _file(field: str, path: Path | None, parse: _Parse) -> Reloaded[Mapping[str, Identity]] | None:
    return None if path is None else Reloaded([path], partial(_read, field, path, parse))


def _read(field: str, path: Path, parse: _Parse) -> Mapping[str, Identity]:
    """The identities of a file. One that names nobody is no error, since that is how everybody is shut out, but it is logged."""
    found = read(field, path, parse)
    if not found:
        _log.warning("%s names nobody: every caller is unknown until it names one", field, extra=fields(file=str(path)))
    return found
