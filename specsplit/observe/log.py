"""Logging to stderr, one line per record; stdout stays free for what a program prints on purpose.

Records are made with the standard library's loggers. structlog lays them out: as a line of JSON, or as a line to read (time, level,
service, logger, sentence, then key=value). A record that is written while a span is current carries its ids.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import structlog
from structlog.stdlib import ProcessorFormatter

from specsplit.build import build
from specsplit.errors import printable, printable_json, shortened
from specsplit.observe.record import FIELDS, fields
from specsplit.observe.tracing import current_span
from specsplit.settings import Settings

LogFormat: TypeAlias = Literal["auto", "json", "text"]

_LONGEST = 4_000
"""Bytes of a sentence or a value: part of it may be somebody else's."""
_Line: TypeAlias = MutableMapping[str, Any]


def set_up(service: str, level: str = "info", log_format: LogFormat = "auto") -> None:
    """Send this process's records from `level` up to stderr, replacing an earlier set-up; `auto` is text on a terminal, else JSON."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(service, as_text))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, _Formatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def announce(service: str, settings: Settings) -> None:
    """Log the build and the resolved settings; called once, at start."""
    logging.getLogger("specsplit").info("%s starts", service, extra=fields(build=build(), **settings.resolved()))


class _Formatter(ProcessorFormatter):
    """Formats records of the standard library with structlog."""

    def __init__(self, service: str, as_text: bool) -> None:
        self._service = service
        render = _as_text if as_text else _as_json
        super().__init__(processors=[self._line, structlog.processors.format_exc_info, render])

    def _line(self, _logger: object, _method: str, event: _Line) -> _Line:
        """Collect what the line says, in order."""
        record: logging.LogRecord = event["_record"]
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: _Line = {
            "time": moment,
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": shortened(str(event["event"]), _LONGEST),
        }
        values: Mapping[str, object] = record.__dict__.get(FIELDS, {})
        line |= {key if key not in line else f"{key}_": _short(value) for key, value in values.items()}
        span = current_span()
        if span is not None:
            line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        return line | {key: event[key] for key in ("exc_info",) if key in event}


def _short(value: object) -> object:
    return shortened(value, _LONGEST) if isinstance(value, str) else value


def _as_json(_logger: object, _method: str, line: _Line) -> str:
    """Render one line of JSON, in which nothing is raw that a terminal would obey."""
    return printable_json(json.dumps(line, default=str, ensure_ascii=False))


def _as_text(_logger: object, _method: str, line: _Line) -> str:
    """Render one line, and the traceback below it if there is one."""
    traceback = printable(line.pop("exception", ""), "\n\t")
    head = [str(line.pop(key)) for key in ("time", "level", "service", "logger", "message")]
    text = " ".join(head + [f"{key}={_quoted(value)}" for key, value in line.items()])
    return printable(text, "\t") + (f"\n{traceback}" if traceback else "")


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(character.isspace() or character in "=\"'" for character in text) else text
