"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsplit.settings.address import is_loopback, split
from specsplit.settings.dialling import ADDRESS as _ADDRESS
from specsplit.settings.dialling import anonymous

if TYPE_CHECKING:
    from specsplit.settings import TransportSettings

ADDRESS = _ADDRESS
"""Where a coordinator listens unless told otherwise."""

AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        envvar="SPECSPLIT_CLIENT_ADDRESS",
        help="The coordinator; several with commas between, or dns:///NAME:PORT.",
    ),
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


def with_transport(command: Callable[..., None], *, shows_token: bool = True) -> Callable[..., None]:
    """Give a command, in the place of its parameter `transport`, an option for every setting of a client that concerns its connection.

    What is not given comes from the environment: SPECSPLIT_CLIENT_TLS_CA and so on. Without `shows_token` the command shows nobody a token.
    """
    options = {name: (option, None) for name, option in _TRANSPORT.items() if shows_token or name != "token_file"}

    def made(**given: Any) -> object:
        chosen = {name: value for name, value in given.items() if value is not None}
        return transport(**chosen) if shows_token else anonymous(chosen)

    return with_options(command, "transport", options, made)


def with_options(
    command: Callable[..., None], parameter: str, options: Mapping[str, tuple[Any, Any]], make: Callable[..., object]
) -> Callable[..., None]:
    """Give a command several options in the place of one parameter, which gets what `make` makes of them.

    `options` has for each its annotation and its default.
    """

    @wraps(command)
    def wrapper(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        command(**given, **{parameter: make(**chosen)})

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        if each.name == parameter:
            parameters += [_keyword(name, *option) for name, option in options.items()]
        else:
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    wrapper.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def as_options(address: str, settings: TransportSettings | None) -> list[str]:
    """The words on the command line that reach a coordinator at `address` as these settings do."""
    if settings is None:
        return []
    files = {name: value for name in _TRANSPORT if isinstance(value := getattr(settings, name), Path)}
    words = [word for name, file in files.items() for word in (f"--{name.replace('_', '-')}", str(file))]
    in_clear = settings.tls_ca is None and not is_loopback(split("address", address)[0])
    return [*words, "--insecure"] if in_clear else words


def transport(**given: object) -> TransportSettings:
    """Make the settings of a client that was given these options. Raises InvalidRequest."""
    from specsplit.settings import ClientSettings  # noqa: PLC0415 (pydantic, which a health check has no need of)

    return ClientSettings.load(None, **given)
