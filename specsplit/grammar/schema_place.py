"""Where in a JSON schema the part stands that cannot be compiled: llguidance does not say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]

_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties")
_LISTED: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_MOST: Final = 2**18
"""Characters of parts that are compiled to find the place; it is the innermost that was found with these."""


def place_of(schema: Schema, compiles: Callable[[str], bool]) -> str:
    """JSON pointer of the innermost part that does not compile by itself, "#" for the whole."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    place, left = "#", _MOST
    while True:
        for name, part in _parts(schema):
            text = json.dumps(definitions | part)
            left -= len(text)
            if left < 0:
                return place
            if not compiles(text):
                place, schema = f"{place}/{name}", part
                break
        else:
            return place


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas within a schema, each with its pointer."""
    for key in _NAMED:
        yield from _schemas(key, cast("Schema", schema[key]).items() if isinstance(schema.get(key), dict) else ())
    for key in _LISTED:
        yield from _schemas(key, enumerate(schema[key]) if isinstance(schema.get(key), list) else ())
    yield from ((key, cast("Schema", schema[key])) for key in _SINGLE if isinstance(schema.get(key), dict))


def _schemas(key: str, parts: Any) -> Iterator[tuple[str, Schema]]:
    return ((f"{key}/{name}", cast("Schema", part)) for name, part in parts if isinstance(part, dict))
