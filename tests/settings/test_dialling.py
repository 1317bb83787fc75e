"""A health check is told how to dial without pydantic, and is told what ClientSettings would say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.settings import ClientSettings
from specsplit.settings.dialling import ENV_PREFIX, Dialling, anonymous

_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from([Path("a.pem"), Path("b.pem")]) for name in ("tls_ca", "tls_cert", "tls_key")},
        "insecure": st.booleans(),
    },
)
_ENVIRONMENT = st.fixed_dictionaries(
    {},
    optional={
        **{
            f"{ENV_PREFIX}{name}": st.sampled_from(["", "c.pem", "d.pem"]) for name in ("TLS_CA", "TLS_CERT", "TLS_KEY")
        },
        f"{ENV_PREFIX.lower()}Token_File": st.just("x.token"),
        f"{ENV_PREFIX}ADDRESS": st.sampled_from(["", "h:1"]),
        f"{ENV_PREFIX}INSECURE": st.sampled_from(["", "yes", "0", "perhaps"]),
        f"{ENV_PREFIX}KEEPALIVE_S": st.sampled_from(["", "5", "0"]),
        f"{ENV_PREFIX}ADRESS": st.just("h:1"),
        "HOME": st.just("/"),
    },
)


def _said(make: Any) -> Any:
    try:
        made = make()
    except InvalidRequest as error:
        return str(error)
    values = asdict(made) if isinstance(made, Dialling) else made.model_dump()
    return {**{name: values[name] for name in Dialling.__dataclass_fields__}, "token_file": None}


@given(given=_OPTIONS, environment=_ENVIRONMENT)
def test_it_is_what_the_settings_of_a_client_say_whatever_is_given(
    given: dict[str, Any], environment: dict[str, str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert _said(lambda: anonymous(given)) == _said(lambda: ClientSettings.load(None, **given))


def test_defaults_are_those_of_the_settings() -> None:
    assert _said(Dialling) == _said(ClientSettings)
