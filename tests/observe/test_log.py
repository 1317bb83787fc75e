"""What a log line looks like."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from specsplit.build import build
from specsplit.errors import printable, printable_json
from specsplit.observe import announce, fields, set_up
from specsplit.settings import DrafterSettings


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Every line of stderr, each a JSON object; nothing on stdout."""
    streams = capsys.readouterr()
    assert streams.out == ""
    return [json.loads(line) for line in streams.err.splitlines()]


def test_a_record_is_one_line_on_stderr_with_its_values_behind(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier", log_format="text")
    logging.getLogger("specsplit.test").info(
        "session %s", "opened", extra=fields(session=3, prompt="two words", drafter="")
    )
    streams = capsys.readouterr()
    assert streams.out == ""
    moment, rest = streams.err.rstrip("\n").split(" ", 1)
    assert moment.endswith("Z")
    assert rest == "info verifier specsplit.test session opened session=3 prompt='two words' drafter=''"


def test_where_nobody_reads_along_a_record_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier")
    logging.getLogger("specsplit.test").warning(
        "session %s", "opened", extra=fields(session=3, path=Path("a/b"), word="né\n")
    )
    (line,) = written(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "service": "verifier",
        "logger": "specsplit.test",
        "message": "session opened",
        "session": 3,
        "path": "a/b",
        "word": "né\n",
    }


def test_a_value_with_the_name_of_a_part_of_the_line_takes_nothing_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier")
    logging.getLogger("specsplit.test").info("joined", extra=fields(service="drafter", level=2))
    (line,) = written(capsys)
    assert (line["service"], line["service_"], line["level"], line["level_"]) == ("verifier", "drafter", "info", 2)


def test_a_record_within_a_span_carries_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier")
    context = trace.SpanContext(0xAB, 0xCD, is_remote=True, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        logging.getLogger("specsplit.test").info("within")
    logging.getLogger("specsplit.test").info("without")
    within, without = written(capsys)
    assert (within["trace_id"], within["span_id"]) == (f"{0xAB:032x}", f"{0xCD:016x}")
    assert "trace_id" not in without


def test_setting_up_twice_writes_once_and_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier", "debug")
    set_up("verifier", "warning")
    logging.getLogger("specsplit.test").info("quiet")
    logging.getLogger("specsplit.test").warning("loud")
    assert [line["message"] for line in written(capsys)] == ["loud"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_goes_with_its_line(log_format: Any, capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier", log_format=log_format)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("specsplit.test").exception("it failed")
    err = capsys.readouterr().err
    text = json.loads(err)["exception"] if log_format == "json" else err.split("it failed\n")[1]
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("ValueError: why")


def test_the_build_and_the_resolved_settings_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("drafter")
    announce("drafter", DrafterSettings(model=Path("models/draft")))
    (line,) = written(capsys)
    assert (line["message"], line["model"], line["kv_tokens"]) == ("drafter starts", "models/draft", None)
    assert line["build"] == build()


def test_a_line_to_read_spells_what_would_give_a_terminal_orders(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("verifier", log_format="text")
    try:
        raise ValueError("\x1b[2Jgone")
    except ValueError:
        logging.getLogger("specsplit.test").exception("from \x1b[2J", extra=fields(member_id="v\x07"))
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\x07" not in err
    assert r"from \x1b[2J member_id=v\x07" in err and "\nValueError: \\x1b[2Jgone\n" in err


RAW = "\x07\x1b\x7f\x9b\u2028\u202e\u2066"
"""C0, DEL, C1, a line separator, and orders to write the other way round."""


def test_a_line_of_json_has_nothing_raw_that_a_terminal_obeys_and_gives_all_of_it_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("verifier", log_format="json")
    try:
        raise ValueError(f"{RAW}gone")
    except ValueError:
        logging.getLogger("specsplit.test").exception("from %s über", RAW, extra=fields(member_id=RAW, other=[RAW]))
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and not set(RAW) & set(err)
    assert "über" in err and r"\u009b" in err and r"\u202e" in err
    line = json.loads(err)
    assert (line["message"], line["member_id"], line["other"]) == (f"from {RAW} über", RAW, [RAW])
    assert line["exception"].endswith(f"ValueError: {RAW}gone")


@given(st.text())
def test_json_for_a_terminal_is_the_same_json(text: str) -> None:
    line = printable_json(json.dumps({text: text}, ensure_ascii=False))
    assert printable(line) == line and json.loads(line) == {text: text}
