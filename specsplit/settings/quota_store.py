"""The address of a quota store, as the setting has it."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from specsplit.errors import InvalidRequest
from specsplit.settings import address

_FIELD = "quota_store"
_FORM = "expected redis://host:port/number, or rediss:// for TLS"


def check_store(url: str, *, in_the_clear: bool) -> None:
    """Raise InvalidRequest, which never shows the URL since it may hold a password, for another form, or one dialled beyond this machine
    without TLS unless that is allowed `in_the_clear`.
    """
    parts = _parts(url)
    if parts.scheme not in {"redis", "rediss"}:
        raise InvalidRequest(_FIELD, f"has no scheme that is known here; {_FORM}")
    if not parts.hostname:
        raise InvalidRequest(_FIELD, f"has no host; {_FORM}")
    number = parts.path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        raise InvalidRequest(_FIELD, f"has behind its port what is no number of a database; {_FORM}")
    if parts.query or parts.fragment:
        raise InvalidRequest(_FIELD, f"has options behind it, which are not read; {_FORM}")
    if parts.scheme == "redis" and not in_the_clear and not address.is_loopback(parts.hostname):
        raise InvalidRequest(
            _FIELD,
            "is on another machine and would be spoken to in the clear; use rediss://, or allow it with insecure (--insecure)",
        )


def without_password(url: str) -> str:
    """The URL as a log may show it."""
    parts = urlsplit(url)
    user, at, where = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return parts._replace(netloc=f"{name}:***@{where}" if colon else f"{user}{at}{where}").geturl()


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its text repeats the URL
        raise InvalidRequest(_FIELD, f"is no URL; {_FORM}") from None
    return parts
