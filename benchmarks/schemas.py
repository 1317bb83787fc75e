"""Twenty JSON schemas, from one field to nested lists of objects, as programs ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 24}
NAME: Schema = {"type": "string", "pattern": "^[a-z_]{1,12}$"}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 999}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
FLAG: Schema = {"type": "boolean"}


def objects(**properties: Schema) -> Schema:
    return {
        "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False,
    }  # fmt: skip


def lists(items: Schema, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def one_of(*texts: str) -> Schema:
    return {"enum": [*texts]}


ADDRESS = objects(street=TEXT, number=NUMBER, city=TEXT, country=one_of("Denmark", "Germany", "Norway", "Sweden"))
PARAMETER = objects(name=NAME, type=one_of("int", "str", "float", "bool"), required=FLAG, description=TEXT)

SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        "a flag": objects(answer=FLAG),
        "a label": objects(sentiment=one_of("positive", "negative", "neutral")),
        "a label and why": objects(label=one_of("spam", "ham"), reason=TEXT),
        "a number": objects(number_of_people=NUMBER),
        "a point": objects(latitude=SHARE, longitude=SHARE),
        "a person": objects(first_name=TEXT, last_name=TEXT, age=NUMBER),
        "an address": ADDRESS,
        "a customer": objects(customer_id=NUMBER, name=TEXT, billing_address=ADDRESS, is_active=FLAG),
        "a function": objects(name=NAME, returns=NAME, parameters=lists(PARAMETER, 2)),
        "a tool call": objects(
            name=one_of("get_weather", "get_time", "search"),
            arguments=objects(location=TEXT, unit=one_of("celsius", "fahrenheit")),
        ),
        "steps": objects(steps=lists(objects(explanation=TEXT, output=TEXT)), final_answer=TEXT),
        "tags": objects(title=TEXT, tags=lists(NAME, 4)),
        "a review": objects(rating=NUMBER, title=TEXT, pros=lists(TEXT, 2), cons=lists(TEXT, 2), would_recommend=FLAG),
        "an order": objects(
            order_id=NUMBER,
            items=lists(objects(product_name=TEXT, quantity=NUMBER, unit_price=NUMBER)),
            currency=one_of("EUR", "USD"),
        ),
        "an event": objects(
            event_name=TEXT, date={"type": "string", "format": "date"}, participants=lists(TEXT), is_online=FLAG
        ),
        "a date": objects(
            start_date={"type": "string", "format": "date"}, end_date={"type": "string", "format": "date"}
        ),
        "settings": objects(
            enable_logging=FLAG,
            enable_metrics=FLAG,
            enable_tracing=FLAG,
            log_level=one_of("debug", "info", "warning", "error"),
            number_of_workers=NUMBER,
        ),
        "a tree": {
            **objects(root={"$ref": "#/$defs/node"}),
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"value": NUMBER, "left": FLAG, "right": FLAG},
                    "required": ["value", "left", "right"],
                    "additionalProperties": False,
                }
            },
        },
        "entities": objects(
            entities=lists(
                objects(text=TEXT, entity_type=one_of("person", "organisation", "location"), confidence=SHARE)
            )
        ),
        "a report": objects(
            report_title=TEXT,
            author=objects(first_name=TEXT, last_name=TEXT),
            number_of_pages=NUMBER,
            sections=lists(objects(section_title=TEXT, summary=TEXT, number_of_words=NUMBER), 2),
            approved=FLAG,
        ),
    }
)
"""By what is asked for."""
