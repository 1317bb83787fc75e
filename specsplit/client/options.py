"""What a caller may say about one generation, as keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, SupportsFloat, SupportsIndex, TypeAlias, TypedDict, Unpack, cast

from specsplit.errors import InvalidRequest
from specsplit.requests import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from specsplit.values import Constraint, ConstraintKind, PlanChanges, Sampling, Stopping
from specsplit.values.bounds import MOST_SECONDS

Promptable: TypeAlias = str | Sequence[int] | TextPrompt | ChatPrompt | TokenPrompt
"""Text, token ids, or a prompt value (ChatPrompt for a conversation)."""


class Options(TypedDict, total=False):
    """The options of a request; each may be left out."""

    max_tokens: int | None
    """Generated tokens at most; None: as many as the context holds."""
    temperature: float
    """0 (the default) picks the likeliest token; at most 10,000."""
    top_k: int
    """0 (the default) keeps all."""
    top_p: float
    """1 (the default) keeps all."""
    min_p: float
    """0 (the default) keeps all."""
    seed: int | None
    """None: one is drawn, and comes back with the result."""
    logit_bias: Mapping[int, float]
    """Token id to what is added to its logit, from -100 (all but never) to 100."""
    repetition_penalty: float
    """1 (the default) is none; above 1 makes tokens unlikely that the prompt or the output has had."""
    frequency_penalty: float
    """0 (the default) is none; at most 2: taken off a token's logit for every time that it was generated."""
    presence_penalty: float
    """0 (the default) is none; at most 2: taken off a token's logit once if it was generated."""
    stop: Sequence[str]
    """Strings before which the output ends."""
    stop_token_ids: Sequence[int]
    """Tokens before which the output ends."""
    ignore_eos: bool
    """True goes on after the model's own end tokens."""
    min_tokens: int
    """0 (the default) to max_tokens: before so many no end token and no stop token is picked, and no stop string looked for."""
    include_stop_str_in_output: bool
    """True: a stop string that ends the output is part of its text."""
    json_schema: str | Mapping[str, object] | None
    """A JSON schema that the output is held to; of this and the next five one may be given."""
    json_object: bool
    """True: the output is a JSON object."""
    regex: str | None
    """A regular expression that the whole output matches."""
    grammar: str | None
    """A context-free grammar in Lark's notation."""
    choice: Sequence[str] | None
    """Texts of which the output is one."""
    structural_tag: str | Mapping[str, object] | None
    """Tags within free text, each with a schema inside."""
    drafter: str | None
    """A kind of drafter ("eagle3", "dflash", "dspark", "multi_layer_eagle", "eagle", "standalone", "ngram") or "none". None: the best
    available."""
    adapter: str
    """Name of a LoRA adapter of the target, of those that `model_info` tells; empty (the default): the target as it is."""
    plan: PlanChanges
    """How much to speculate, where it differs from the verifier's default."""
    n: int
    """Completions of the prompt, the choices, 1 (the default) to 16; each has a seed of its own, that of choice 0 is the request's."""
    logprobs: int | None
    """Likeliest tokens to tell beside each one, with their log-probabilities and its own, 0 to 20; None: no log-probabilities at all."""
    prompt_logprobs: int | None
    """Likeliest tokens to tell beside each token of the prompt but the first, with their log-probabilities and its own, 0 to 20; None: no
    log-probabilities of the prompt. They come once, before choice 0 begins, and not again with `resume_from`."""
    resume_from: Sequence[int]
    """Tokens of the answer that are here already, from the front, of the same request with the same seed: only the rest comes.

    Unavailable, with which a broken stream ends, has them in `received`.
    """
    priority: int
    """0 (the default) to 9: of those that wait the higher is served first, as far as the operator allows."""
    stream_interval: int
    """Tokens of a choice that are sent at once, at least, 1 to 1,024; the first are sent as they come. More is less work for all services,
    and a stream that breaks takes the rest with it. `stream` has 1 where it is left out, `generate` 32."""
    request_id: str
    """For logs and traces; drawn if left out."""


WHOLE: Final = 32
"""The stream interval of a caller who waits for the whole answer. What a verifier that is lost takes with it has to be decoded again."""


def make_whole_request(prompt: Promptable, **options: Unpack[Options]) -> GenerateRequest:
    """The request of a caller who waits for the whole answer; see `make_request`."""
    options.setdefault("stream_interval", WHOLE)
    return make_request(prompt, **options)


def make_request(prompt: Promptable, **options: Unpack[Options]) -> GenerateRequest:
    """The request. Raises InvalidRequest for an unknown option, a value of the wrong type or out of range."""
    _check_types(options)
    seed = options.get("seed")
    stop = options.get("stop", ())
    return GenerateRequest(
        prompt=_prompt(prompt),
        request_id=options.get("request_id", ""),
        sampling=Sampling(
            temperature=options.get("temperature", 0.0),
            top_k=options.get("top_k", 0),
            top_p=options.get("top_p", 1.0),
            min_p=options.get("min_p", 0.0),
            seed=seed or 0,
            logit_bias=tuple(
                sorted((int(token), float(bias)) for token, bias in options.get("logit_bias", {}).items())
            ),
            repetition_penalty=options.get("repetition_penalty", 1.0),
            frequency_penalty=options.get("frequency_penalty", 0.0),
            presence_penalty=options.get("presence_penalty", 0.0),
        ),
        seeded=seed is not None,
        stopping=Stopping(
            options.get("max_tokens"),
            tuple(options.get("stop_token_ids", ())),
            options.get("ignore_eos", False),
            options.get("min_tokens", 0),
        ),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        drafter=options.get("drafter"),
        plan=options.get("plan", PlanChanges()),
        logprobs=options.get("logprobs"),
        n=options.get("n", 1),
        resume_from=tuple(options.get("resume_from", ())),
        priority=options.get("priority", 0),
        stream_interval=options.get("stream_interval", 1),
        include_stop_str_in_output=options.get("include_stop_str_in_output", False),
        constraint=_constraint(options),
        prompt_logprobs=options.get("prompt_logprobs"),
        adapter=options.get("adapter", ""),
    )


def _constraint(options: Options) -> Constraint | None:
    """What the output is held to. Raises InvalidRequest for more than one constraint."""
    asked = {kind: value for kind in ConstraintKind if (value := options.get(kind)) not in (None, False)}
    if not asked:
        return None
    (kind, value), *others = asked.items()
    if others:
        raise InvalidRequest(kind, f"goes not with {others[0][0]}: an output is held to one of them", others[0][0])
    match kind:
        case ConstraintKind.JSON_OBJECT:
            return Constraint(kind)
        case ConstraintKind.CHOICE:
            return Constraint(kind, choices=tuple(cast("Sequence[str]", value)))
        case _:
            return Constraint(kind, value if isinstance(value, str) else json.dumps(value))


def _prompt(prompt: Promptable) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if isinstance(prompt, TextPrompt | ChatPrompt | TokenPrompt):
        return prompt
    if isinstance(prompt, bytes | bytearray) or not _is_collection(prompt):
        raise InvalidRequest("prompt", f"is {_described(prompt)}, expected text, token ids or a prompt value")
    return TokenPrompt(tuple(prompt))


def check_timeout(timeout_s: float | None) -> float | None:
    """The timeout. Raises InvalidRequest unless it is None or a number of seconds from 0 to MOST_SECONDS."""
    if timeout_s is not None and not (_is_number(timeout_s) and 0 <= timeout_s <= MOST_SECONDS):
        raise InvalidRequest(
            "timeout_s", f"is {_described(timeout_s)}, expected seconds, 0 to {MOST_SECONDS:,}, or None for no limit"
        )
    return timeout_s


def _check_types(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if name not in _EXPECTED:
            raise InvalidRequest(name, f"there is no such option; there are {', '.join(_EXPECTED)}")
        fits, expected = _EXPECTED[name]
        if not fits(value):
            raise InvalidRequest(name, f"is {_described(value)}, expected {expected}")


def _described(value: object) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def _is_integer(value: object) -> bool:
    """True for what can stand for an int, numpy's included; a bool was meant for something else."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, SupportsFloat | SupportsIndex) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_collection(value: object) -> bool:
    return isinstance(value, Collection)


def _is_texts(value: object) -> bool:
    return isinstance(value, str) or (_is_collection(value) and all(map(_is_text, cast("Collection[object]", value))))


def _is_listed_texts(value: object) -> bool:
    return not isinstance(value, str) and _is_texts(value)


def _is_text_or_object(value: object) -> bool:
    return isinstance(value, str | Mapping)


def _is_integers(value: object) -> bool:
    return _is_collection(value) and all(map(_is_integer, cast("Collection[object]", value)))


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_integer(token) and _is_number(bias) for token, bias in cast("Mapping[object, object]", value).items()
    )


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


_EXPECTED: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        "max_tokens": (_or_none(_is_integer), "an integer or None"),
        "temperature": (_is_number, "a number"),
        "top_k": (_is_integer, "an integer"),
        "top_p": (_is_number, "a number"),
        "min_p": (_is_number, "a number"),
        "seed": (_or_none(_is_integer), "an integer or None"),
        "logit_bias": (_is_bias, "token ids to numbers"),
        "repetition_penalty": (_is_number, "a number"),
        "frequency_penalty": (_is_number, "a number"),
        "presence_penalty": (_is_number, "a number"),
        "stop": (_is_texts, "a text or several"),
        "stop_token_ids": (_is_integers, "integers"),
        "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
        "min_tokens": (_is_integer, "an integer"),
        "include_stop_str_in_output": (lambda value: isinstance(value, bool), "True or False"),
        "json_schema": (_or_none(_is_text_or_object), "a text, an object or None"),
        "json_object": (lambda value: isinstance(value, bool), "True or False"),
        "regex": (_or_none(_is_text), "a text or None"),
        "grammar": (_or_none(_is_text), "a text or None"),
        "choice": (_or_none(_is_listed_texts), "texts or None"),
        "structural_tag": (_or_none(_is_text_or_object), "a text, an object or None"),
        "drafter": (_or_none(_is_text), "a text or None"),
        "adapter": (_is_text, "a text"),
        "plan": (lambda value: isinstance(value, PlanChanges), "PlanChanges"),
        "n": (_is_integer, "an integer"),
        "priority": (_is_integer, "an integer"),
        "stream_interval": (_is_integer, "an integer"),
        "logprobs": (_or_none(_is_integer), "an integer or None"),
        "prompt_logprobs": (_or_none(_is_integer), "an integer or None"),
        "resume_from": (_is_integers, "integers"),
        "request_id": (_is_text, "a text"),
    }
)
"""Option to what it may be: callers without a type checker get a sentence, not a TypeError from deep inside."""
