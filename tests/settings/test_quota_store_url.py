"""The address of a quota store: what is taken, and that a password in it is shown nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsplit.errors import InvalidRequest
from specsplit.settings import CoordinatorSettings
from specsplit.settings.quota_store import without_password

SECRET = "hunter2"


def made(**values: Any) -> CoordinatorSettings:
    return CoordinatorSettings(model=Path("m"), **{"client_max_requests": 4, **values})


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379",
        "redis://localhost:6379/3",
        f"redis://:{SECRET}@[::1]:6379",
        f"rediss://a:{SECRET}@far:6380/0",
    ],
)
def test_what_is_taken(url: str) -> None:
    assert made(quota_store=url).quota_store == url


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            f"http://:{SECRET}@127.0.0.1:6379",
            "has no scheme that is known here; expected redis://host:port/number, or rediss://",
        ),
        (f"{SECRET}@127.0.0.1:6379", "has no scheme"),
        (f"redis://:{SECRET}@", "has no host"),
        (f"redis://:{SECRET}@127.0.0.1:port", "is no URL"),
        (f"redis://:{SECRET}@127.0.0.1:6379/specsplit", "no number of a database"),
        (f"rediss://:{SECRET}@far:6379?ssl_cert_reqs=none", "has options behind it, which are not read"),
        (f"redis://:{SECRET}@far:6379", "on another machine and would be spoken to in the clear; use rediss://"),
    ],
)
def test_what_is_refused_and_without_the_password(url: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match="quota_store: ") as caught:
        made(quota_store=url)
    assert problem in str(caught.value) and SECRET not in str(caught.value)


def test_in_the_clear_it_may_be_if_that_is_allowed() -> None:
    assert made(quota_store="redis://far:6379", insecure=True).quota_store


def test_it_goes_with_a_quota_and_its_password_with_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="quota_store: is for quotas, and none is set; set client_max_requests, "):
        made(quota_store="redis://127.0.0.1", client_max_requests=None)
    with pytest.raises(InvalidRequest, match="quota_store_password_file: goes with quota_store"):
        made(quota_store_password_file=tmp_path / "p")


def test_the_settings_in_the_log_have_no_password() -> None:
    said = json.dumps(made(quota_store=f"redis://alice:{SECRET}@127.0.0.1:6379/3").resolved())
    assert SECRET not in said and "redis://alice:***@127.0.0.1:6379/3" in said
    assert without_password("redis://127.0.0.1:6379") == "redis://127.0.0.1:6379"
    assert without_password("") == ""
    assert without_password("redis://alice@far:1") == "redis://alice@far:1"
