"""Writes docs/settings.md from the settings classes, or with --check says whether it is what they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic.fields import FieldInfo

from scripts.printed import ROOT, finish
from specsplit.settings import CoordinatorSettings, DrafterSettings, ServiceSettings, VerifierSettings

PAGE = ROOT / "docs" / "settings.md"
SERVICES: Mapping[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
}
NOUNS = {"string": "text", "boolean": "flag", "integer": "integer", "number": "number"}
"""What a type of JSON schema is called here."""

INTRODUCTION = """\
# Settings

<!-- Printed by `python -m scripts.print_settings`; edit the docstrings in specsplit/settings, not this page. -->

A setting comes from, weakest first: its default, a TOML file (`specsplit serve SERVICE --config FILE`), the environment, an option of
`specsplit serve SERVICE`. Take `max_sessions` of a verifier: its line in the file is `max_sessions = 16`, its variable
`SPECSPLIT_VERIFIER_MAX_SESSIONS`, its option `--max-sessions`. `--no-` before the name of a flag switches it off. A name that no
setting has is an error in all three places. The settings that result are logged once at start.

`specsplit up` hands settings to the services that it starts: `--set verifier.max_sessions=16`, or `--config FILE` with a table for each
service ([operations.md](operations.md#up-with-settings-of-your-own)).

`num_steps`, `topk`, `num_draft_tokens` and `wait_budget_us` have the bounds of `Plan` in `specsplit/values/plan.py`.
Every number is finite and has the bound of what carries it, so that a service which starts can also work: for a time without end give a
long one, such as `1e6` seconds.

One example file per service, with every setting in it: [`coordinator/coordinator.toml`](../coordinator/coordinator.toml),
[`verifier/verifier.toml`](../verifier/verifier.toml), [`drafter/drafter.toml`](../drafter/drafter.toml).
"""


def default_of(field: FieldInfo) -> str:
    """The default as a reader of the table sees it."""
    if field.is_required():
        return "required"
    if field.default is None or field.default == "":
        return "unset"
    value = field.default.value if isinstance(field.default, Enum) else field.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def bounds_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What may be given, in words: "integer, at least 1". A kind that is described elsewhere is looked up there."""
    (kind,) = (kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null")
    if "$ref" in kind:
        kind = definitions[str(kind["$ref"]).rpartition("/")[2]]
    if "enum" in kind:
        return " or ".join(f"`{each}`" for each in kind["enum"])
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [f"{word} {kind[name]:,}" for name, word in words.items() if name in kind]
    return ", ".join([NOUNS[kind["type"]], *limits])


def rows_of(settings: type[ServiceSettings]) -> Iterator[str]:
    """One line per setting, the service's own first."""
    schema = settings.model_json_schema()
    definitions = schema.get("$defs", {})
    own = [name for name in settings.model_fields if name in settings.__annotations__]
    for name in [*own, *(name for name in settings.model_fields if name not in own)]:
        field = settings.model_fields[name]
        described: Mapping[str, Any] = schema["properties"][name]
        meaning = " ".join((field.description or "").split())
        yield f"| `{name}` | {default_of(field)} | {bounds_of(described, definitions)} | {meaning} |"


def page() -> str:
    """docs/settings.md as the code has it."""
    lines = [INTRODUCTION]
    for service, settings in SERVICES.items():
        prefix = settings.model_config.get("env_prefix", "")
        lines += [f"## {service}", "", f"Environment: `{prefix}` and the name, for instance `{prefix}LISTEN`.", ""]
        lines += ["| setting | default | value | meaning |", "|---|---|---|---|", *rows_of(settings), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    raise SystemExit(finish(PAGE, page(), "print_settings", __doc__))
