"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from specsplit.settings import ClientSettings, TransportSettings

ADDRESS = ClientSettings().address
"""Where a coordinator listens unless told otherwise."""

AddressOption = Annotated[
    str, typer.Option("--address", metavar="HOST:PORT", envvar="SPECSPLIT_CLIENT_ADDRESS", help="The coordinator.")
]
"""Which coordinator to talk to."""

_TRANSPORT: dict[str, Any] = {
    "tls_ca": Annotated[
        Path | None,
        typer.Option("--tls-ca", metavar="FILE", help="Speak TLS, and check the server against this CA (PEM)."),
    ],
    "tls_cert": Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="Show this certificate to a server that asks (PEM)."),
    ],
    "tls_key": Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate (PEM).")
    ],
    "token_file": Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Show the token in this file.")
    ],
    "insecure": Annotated[
        bool | None,
        typer.Option("--insecure", help="Speak in the clear beyond this machine, token and texts included."),
    ],
}
"""How to talk to it, by name of the setting."""


def with_transport(command: Callable[..., None], *, anonymous: bool = False) -> Callable[..., None]:
    """Give a command, in the place of its parameter `transport`, an option for every setting of a client that concerns its connection.

    What is not given comes from the environment: SPECSPLIT_CLIENT_TLS_CA and so on. `anonymous`: the command shows nobody a token.
    """
    options = {name: option for name, option in _TRANSPORT.items() if not (anonymous and name == "token_file")}

    @wraps(command)
    def told(**given: Any) -> None:
        chosen = transport(**{name: given.pop(name) for name in options})
        command(**given, transport=chosen.model_copy(update={"token_file": None}) if anonymous else chosen)

    own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "transport"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
    told.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    told.__annotations__ = {each.name: each.annotation for each in parameters}
    return told


def transport(**given: object) -> TransportSettings:
    """Make the settings of a client that was given these options. Raises InvalidRequest."""
    return ClientSettings.load(None, **{name: value for name, value in given.items() if value is not None})
