"""Structural tags as a grammar in Lark's notation: within free text a trigger begins a tag, and what stands in the tag has a schema.

Two ways to write them are read, as gateways and engines send them: `structures` and `triggers`, and the `format` of xgrammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from specsplit.errors import InvalidRequest, quoted

_FIELD: Final = "structural_tag"
_TEXT: Final = r"/(.|\n)*/"
Tag = Mapping[str, Any]


def lark_of(text: str) -> str:
    """Write the grammar. Raises InvalidRequest, with the place, for what is no JSON or has a part that is not known."""
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(_FIELD, f"is no JSON: {error}") from error
    rules = _Rules()
    try:
        start = rules.legacy(asked) if "structures" in asked else rules.of(asked["format"], "format")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(_FIELD, f"lacks a part, or has one of a wrong type: {error!r}") from error
    return rules.written(start)


def literal(text: str) -> str:
    """A text as a terminal of a grammar."""
    return json.dumps(text, ensure_ascii=False)


class _Rules:
    """The rules of one grammar, by number."""

    def __init__(self) -> None:
        self._rules: list[str] = []

    def written(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", f"TEXT: {_TEXT}", *self._rules])

    def legacy(self, asked: Mapping[str, Any]) -> str:
        tags = [
            {
                "begin": each["begin"],
                "content": {"type": "json_schema", "json_schema": each["schema"]},
                "end": each["end"],
            }
            for each in asked["structures"]
        ]
        return self._triggered({"triggers": asked["triggers"], "tags": tags}, "structures")

    def of(self, part: Tag, place: str) -> str:
        """The expression of a part. Raises InvalidRequest for one of a type that is not known."""
        kinds: dict[str, Callable[[Tag, str], str]] = {
            "json_schema": self._json_schema,
            "const_string": lambda part, _: literal(part["value"]),
            "any_text": lambda _part, _place: "TEXT",
            "sequence": self._sequence,
            "or": lambda part, place: self._rule(" | ".join(self._each(part["elements"], f"{place}.elements"))),
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }
        kind = str(part["type"])
        if kind not in kinds:
            raise InvalidRequest(_FIELD, f"has at {place} the type {quoted(kind)}, which is not supported")
        return kinds[kind](part, place)

    def _json_schema(self, part: Tag, place: str) -> str:
        schema: Any = part["json_schema"]
        if isinstance(schema, dict):
            schema = {"x-guidance": {"whitespace_flexible": False}} | cast("dict[str, Any]", schema)
        return self._rule(f"%json {json.dumps(schema)}")

    def _sequence(self, part: Tag, place: str) -> str:
        elements: Sequence[Tag] = part["elements"]
        if any(each["type"] == "any_text" for each in elements[:-1]):
            raise InvalidRequest(
                _FIELD, f"has at {place} a sequence that goes on behind any text, whose end nothing tells"
            )
        return self._rule(" ".join(self._each(elements, f"{place}.elements")))

    def _each(self, parts: Sequence[Tag], place: str) -> list[str]:
        return [self.of(each, f"{place}[{i}]") for i, each in enumerate(parts)]

    def _tag(self, tag: Tag, place: str, begun: str = "") -> str:
        """A tag of which the text `begun` is there already."""
        begin = tag["begin"][len(begun) :]
        content, end = tag["content"], tag["end"]
        if content["type"] == "any_text":  # up to the first time that the end comes
            inside = self._rule(f"TEXT {literal(end)}", "[lazy]") if end else "TEXT"
            return self._rule(" ".join([*([literal(begin)] if begin else []), inside]))
        texts = (literal(begin) if begin else "", self.of(content, f"{place}.content"), literal(end) if end else "")
        return self._rule(" ".join(filter(None, texts)))

    def _triggered(self, part: Tag, place: str) -> str:
        """Free text with any number of tags in it, each begun by one of the triggers."""
        triggers: Sequence[str] = part["triggers"]
        options: list[str] = []
        for trigger in triggers:
            own = [(i, tag) for i, tag in enumerate(part["tags"]) if tag["begin"].startswith(trigger)]
            if not trigger or not own:
                raise InvalidRequest(_FIELD, f"has at {place} the trigger {quoted(trigger)}, with which no tag begins")
            tags = " | ".join(self._tag(tag, f"{place}.tags[{i}]", trigger) for i, tag in own)
            options.append(f"{self._rule(f'TEXT {literal(trigger)}', '[lazy]')} ({tags})")
        for i, tag in enumerate(part["tags"]):
            if not tag["begin"].startswith(tuple(triggers)):
                raise InvalidRequest(_FIELD, f"has at {place}.tags[{i}] a tag that begins with none of the triggers")
        least = "+" if part.get("at_least_one") else "*"
        more = f"({' | '.join(options)})"
        return more if part.get("stop_after_first") else f"{more}{least} TEXT"

    def _separated(self, part: Tag, place: str) -> str:
        """Tags with a text between them."""
        tags = self._rule(" | ".join(self._tag(tag, f"{place}.tags[{i}]") for i, tag in enumerate(part["tags"])))
        rest = "" if part.get("stop_after_first") else f" ({literal(part['separator'])} {tags})*"
        return f"({tags}{rest})" if part.get("at_least_one") else f"({tags}{rest})?"

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name
