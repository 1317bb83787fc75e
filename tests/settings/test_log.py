"""What a log line looks like."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from specsplit.observe import announce, fields, set_up
from specsplit.settings import DrafterSettings


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_a_record_is_one_line_on_stderr_with_its_values_behind(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier")
    logging.getLogger("specsplit.test").info(
        "session %s", "opened", extra=fields(session=3, prompt="two words", drafter="")
    )
    streams = capsys.readouterr()
    assert streams.out == ""
    moment, rest = streams.err.rstrip("\n").split(" ", 1)
    assert moment.endswith("Z")
    assert rest == "info verifier specsplit.test session opened session=3 prompt='two words' drafter=''"


def test_setting_up_twice_writes_once_and_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier", "debug")
    set_up("verifier", "warning")
    logging.getLogger("specsplit.test").info("quiet")
    logging.getLogger("specsplit.test").warning("loud")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_traceback_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("specsplit.test").exception("it failed")
    assert capsys.readouterr().err.rstrip().endswith("ValueError: why")


def test_the_resolved_settings_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("drafter")
    announce("drafter", DrafterSettings(model=Path("models/draft")))
    assert "drafter starts" in (line := capsys.readouterr().err)
    assert "model=models/draft" in line
    assert "kv_tokens=65536" in line
