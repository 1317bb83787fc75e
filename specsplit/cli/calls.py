"""Whether the children of `specsplit up` would let one another in, and a client."""

from __future__ import annotations

from collections.abc import Mapping

from specsplit.cli.handed import Handed
from specsplit.cli.serve import option_of
from specsplit.errors import InvalidRequest
from specsplit.identity import CallerRole, digest, token_of, tokens_of
from specsplit.rpc.channel import check_shown
from specsplit.settings import CoordinatorSettings, ServiceSettings, TransportSettings
from specsplit.settings.files import read_text

_CALLS = (("verifier", "coordinator"), ("drafter", "coordinator"), ("coordinator", "verifier"), ("verifier", "drafter"))
"""Who dials whom."""


def check_calls(handed: Handed, checked: Mapping[str, ServiceSettings]) -> None:
    """Raise InvalidRequest where one service would not be let in by another."""
    for caller, server in _CALLS:
        if caller not in checked or server not in checked:
            continue
        if lack := _lack(checked[caller], checked[server]):
            raise InvalidRequest(handed.place(caller, lack[0]), f"is required: the {server} {lack[1]}")
        if unfit := _unfit(checked[caller], checked[server], CallerRole.MEMBER):
            raise InvalidRequest(handed.place(caller, "token_file"), f"{unfit}; the {server} needs that of a member")
        if checked[caller].tls_ca is not None and not checked[server].secured:
            raise InvalidRequest(
                handed.place(server, "tls_cert"), f"is required: the {caller} speaks TLS, since it was given tls_ca"
            )


def _lack(caller: TransportSettings, server: ServiceSettings, *, client: bool = False) -> tuple[str, str] | None:
    """The setting that a caller lacks to be let in, and why."""
    if server.secured and caller.tls_ca is None:
        return "tls_ca", "speaks TLS, and its certificate has to be checked against an authority"
    if server.tls_client_ca is not None and caller.tls_cert is None:
        return "tls_cert", "asks callers for a certificate (tls_client_ca)"
    shown = caller.token_file is not None or server.roles_file is not None or (client and server.anonymous_clients)
    return None if server.tokens_file is None or shown else ("token_file", "asks callers for a token (tokens_file)")


def _unfit(caller: TransportSettings, server: ServiceSettings, role: CallerRole) -> str | None:
    """What is wrong with the token that a caller shows, where the server asks for one of somebody in this role."""
    if caller.token_file is None or server.tokens_file is None:
        return None
    token = token_of(read_text("token_file", caller.token_file))
    known = tokens_of(read_text("tokens_file", server.tokens_file)).get(digest(token))
    if known is None:
        return f"{caller.token_file} holds a token that {server.tokens_file} does not know"
    return None if role in known.roles else f"{caller.token_file} holds the token of {known.name!r}, who is no {role}"


def reaching(
    coordinator: CoordinatorSettings, verifier: ServiceSettings, transport: TransportSettings
) -> TransportSettings:
    """How a client reaches the coordinator; the authority is that of the verifiers if no other was given."""
    if transport.tls_ca is not None and not coordinator.secured:
        raise InvalidRequest(
            "--tls-ca",
            "is given (or SPECSPLIT_CLIENT_TLS_CA), but the coordinator speaks no TLS; leave it out, or give tls_cert and tls_key of the "
            "coordinator (--set coordinator.tls_cert=FILE)",
        )
    given = {"tls_ca": transport.tls_ca or verifier.tls_ca, "insecure": transport.insecure or coordinator.insecure}
    chosen = transport.model_copy(update=given)
    if lack := _lack(chosen, coordinator, client=True):
        raise InvalidRequest(option_of(lack[0]), f"is required: the coordinator {lack[1]}; give that of a client")
    try:
        check_shown(chosen)
    except InvalidRequest as error:
        raise InvalidRequest(option_of(error.field), error.problem) from error
    if unfit := _unfit(chosen, coordinator, CallerRole.CLIENT):
        raise InvalidRequest("--token-file", f"{unfit}; give that of a client")
    return chosen
