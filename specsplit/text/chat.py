"""Conversations, rendered with the model's own chat template.

The environment is the one Hugging Face documents for templates: sandboxed, trimmed blocks, loop controls, `raise_exception`,
`strftime_now` and a `tojson` that escapes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specsplit.errors import InvalidRequest, LoadError, Unsupported, shortened
from specsplit.text.json_file import read_json
from specsplit.text.tekken import SPECIAL_TOKENS
from specsplit.text.tokenizer_file import TEKKEN, file_of

_SAID = 300
"""Bytes of what a template says of messages, which it may repeat."""
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """The template of one model folder."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Raises LoadError if the template is not valid Jinja."""
        self._special_tokens = dict(special_tokens)
        self._template = _compile(source, now)

    @classmethod
    def load(cls, folder: Path, now: Callable[[], datetime] = datetime.now) -> ChatTemplate | None:
        """The folder's chat_template.jinja, or the one in tokenizer_config.json or in chat_template.json, or None.

        Raises LoadError if it cannot be read.
        """
        config = _object_in(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else _template_in(config)
        if source is None:  # where processors of multimodal models kept it
            source = _template_in(_object_in(folder / "chat_template.json"))
        return None if source is None else cls(source, _special_tokens_of(folder, config), now)

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt for (role, content) messages, up to where the assistant's answer begins.

        Raises InvalidRequest if the template refuses them or fails on them.
        """
        if not messages:
            raise InvalidRequest("chat.messages", "is empty, expected at least one message")
        entries = [{"role": role, "content": content} for role, content in messages]
        try:
            return self._template.render(
                messages=entries, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except TemplateError as error:
            raise InvalidRequest(
                "chat.messages", f"the model's chat template refuses them: {shortened(str(error), _SAID)}"
            ) from error
        except Exception as error:  # a template is a program of somebody else's, and may fail in any way
            problem = (
                f"the model's chat template fails on them with {type(error).__name__}: {shortened(str(error), _SAID)}"
            )
            raise InvalidRequest("chat.messages", problem) from error


def require_template(template: ChatTemplate | None, model: str) -> ChatTemplate:
    """The template. Raises Unsupported, naming the model, if there is none."""
    if template is None:
        raise Unsupported("chat", f"model {model} has no chat template; send text or token ids")
    return template


def _compile(source: str, now: Callable[[], datetime]) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json  # pyright: ignore[reportUnknownMemberType] (jinja2 leaves its type open)
    helpers = {"raise_exception": _refuse, "strftime_now": partial(_strftime, now)}
    try:
        return environment.from_string(source, globals=helpers)
    except TemplateError as error:
        raise LoadError(f"the chat template is not valid: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime(now: Callable[[], datetime], form: str) -> str:
    return now().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _template_in(config: Mapping[str, Any]) -> str | None:
    found: object = config.get("chat_template")
    if isinstance(found, list):  # named templates; "default" is the plain conversation
        named = {str(entry["name"]): str(entry["template"]) for entry in cast("list[dict[str, Any]]", found)}
        return named.get("default")
    return found if isinstance(found, str) else None


def _object_in(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one, if there is no such file."""
    return read_json(path) if path.exists() else {}


def _special_tokens_of(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by their names: those of tokenizer_config.json, then those of a file of their own, then those of a tekken.json."""
    tekken = SPECIAL_TOKENS if file_of(folder).name == TEKKEN else {}
    return (
        dict(tekken) | _special_tokens_in(_object_in(folder / "special_tokens_map.json")) | _special_tokens_in(config)
    )


def _special_tokens_in(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        entry: object = config.get(name)
        if isinstance(entry, dict):
            entry = cast("dict[str, object]", entry).get("content")
        if isinstance(entry, str):
            tokens[name] = entry
    return tokens
