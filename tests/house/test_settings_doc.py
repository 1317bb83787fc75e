"""docs/settings.md is what the settings classes give, and the example files hold every setting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts.print_settings import PAGE, ROOT, SERVICES, page

COMMENTED = re.compile(r"^# (\w+ = .+)$", re.MULTILINE)


def example(service: str) -> Path:
    return ROOT / service / f"{service}.toml"


def test_the_settings_page_is_what_the_classes_give() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m scripts.print_settings"


@pytest.mark.parametrize("service", SERVICES)
def test_the_example_file_of_a_service_loads(service: str) -> None:
    settings = SERVICES[service].load(example(service))
    assert settings.listen.startswith("127.0.0.1:")


@pytest.mark.parametrize("service", SERVICES)
def test_the_example_file_has_every_setting_and_comments_out_the_defaults(service: str) -> None:
    text = example(service).read_text()
    commented = tomllib.loads("\n".join(COMMENTED.findall(text)))
    fields = SERVICES[service].model_fields
    assert set(commented) | set(tomllib.loads(text)) == set(fields)
    shown = {  # for a setting that is unset by default the example shows what one could write
        name: value for name, value in commented.items() if fields[name].default is not None
    }
    assert shown == {name: fields[name].default for name in shown}
