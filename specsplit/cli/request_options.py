"""The options that say what is asked for; the names are those of `make_request`. `with_request` gives a command those that several have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import typer

from specsplit.cli.drafters import CHOICES
from specsplit.cli.options import with_options
from specsplit.client import make_request
from specsplit.errors import InvalidRequest, quoted
from specsplit.requests import GenerateRequest
from specsplit.values.bounds import MOST_SECONDS, UINT32_MAX


def _option(flag: str, text: str, metavar: str | None = None, most: int | None = None) -> object:
    return typer.Option(flag, help=text, metavar=metavar, max=most)


PromptOption: TypeAlias = Annotated[
    str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What to continue; from stdin if left out.")
]
ChatOption: TypeAlias = Annotated[bool, _option("--chat", "Send the prompt as a user's chat message.")]
SystemOption: TypeAlias = Annotated[str, _option("--system", "What the model is told before everything else.", "TEXT")]
MaxTokensOption: TypeAlias = Annotated[
    int | None,
    _option("--max-tokens", "Generated tokens at most; left out: as the coordinator has it.", most=UINT32_MAX),
]
TemperatureOption: TypeAlias = Annotated[float, _option("--temperature", "0 picks the likeliest token.")]
TopKOption: TypeAlias = Annotated[
    int, _option("--top-k", "Keep this many of the likeliest tokens; 0 keeps all.", most=UINT32_MAX)
]
TopPOption: TypeAlias = Annotated[float, _option("--top-p", "Keep the likeliest tokens up to this probability.")]
MinPOption: TypeAlias = Annotated[float, _option("--min-p", "Drop tokens below this share of the likeliest.")]
SeedOption: TypeAlias = Annotated[int | None, _option("--seed", "The same seed gives the same text.")]
LogitBiasOption: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--logit-bias",
        "Add this to the logit of a token id, from -100 (all but never) to 100; may be given repeatedly.",
        "TOKEN=BIAS",
    ),
]
RepetitionPenaltyOption: TypeAlias = Annotated[
    float, _option("--repetition-penalty", "Above 1: fewer tokens that the text has had; 1 is none.")
]
FrequencyPenaltyOption: TypeAlias = Annotated[
    float, _option("--frequency-penalty", "Taken off a logit for every time its token was generated.")
]
PresencePenaltyOption: TypeAlias = Annotated[
    float, _option("--presence-penalty", "Taken off a logit once if its token was generated.")
]
StopOption: TypeAlias = Annotated[
    list[str] | None, _option("--stop", "End before this text; may be given repeatedly.", "TEXT")
]
IgnoreEosOption: TypeAlias = Annotated[bool, _option("--ignore-eos", "Go on after the model's own end token.")]
MinTokensOption: TypeAlias = Annotated[
    int, _option("--min-tokens", "Generate so many tokens before anything may end the text.", most=UINT32_MAX)
]
JsonSchemaOption: TypeAlias = Annotated[
    Path | None, _option("--json-schema", "The text follows the JSON schema in this file.", "FILE")
]
JsonObjectOption: TypeAlias = Annotated[bool, _option("--json-object", "The text is a JSON object.")]
RegexOption: TypeAlias = Annotated[str | None, _option("--regex", "The whole text matches this.", "REGEX")]
GrammarOption: TypeAlias = Annotated[
    Path | None, _option("--grammar", "The text follows the grammar in this file, in Lark's notation.", "FILE")
]
ChoiceOption: TypeAlias = Annotated[
    list[str] | None, _option("--choice", "The text is this, or another one that is given so.", "TEXT")
]
ResumeOption: TypeAlias = Annotated[
    str | None,
    _option(
        "--resume-from",
        "Token ids of the answer that came before its stream broke, or a file with them: only the rest is written. Needs the same --seed.",
        "IDS|FILE",
    ),
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--timeout-s", min=0, max=MOST_SECONDS, help="Give up after this many seconds; never if left out."),
]
DrafterOption: TypeAlias = Annotated[
    str | None, _option("--drafter", f"{CHOICES}; the best there is if left out.", "KIND")
]
AdapterOption: TypeAlias = Annotated[
    str, _option("--adapter", "A LoRA adapter of the target, by name; none if left out.", "NAME")
]
ChoicesOption: TypeAlias = Annotated[int, _option("--n", "Write so many continuations, at most 16.")]
PriorityOption: TypeAlias = Annotated[
    int, _option("--priority", "0 to 9: of those that wait the higher is served first, as far as the operator allows.")
]
LogprobsOption: TypeAlias = Annotated[
    int | None,
    _option("--logprobs", "Print the log-probability of every token, and of so many likeliest ones, at most 20."),
]
PromptLogprobsOption: TypeAlias = Annotated[
    int | None,
    _option("--prompt-logprobs", "The same for every token of the prompt but the first, given those before it."),
]
JsonOption: TypeAlias = Annotated[bool, _option("--json", "Print one JSON object at the end, and nothing else.")]

_REQUEST: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "max_tokens": (MaxTokensOption, None),
        "temperature": (TemperatureOption, 0.0),
        "top_k": (TopKOption, 0),
        "top_p": (TopPOption, 1.0),
        "min_p": (MinPOption, 0.0),
        "seed": (SeedOption, None),
        "logit_bias": (LogitBiasOption, None),
        "repetition_penalty": (RepetitionPenaltyOption, 1.0),
        "frequency_penalty": (FrequencyPenaltyOption, 0.0),
        "presence_penalty": (PresencePenaltyOption, 0.0),
        "stop": (StopOption, None),
        "ignore_eos": (IgnoreEosOption, False),
        "min_tokens": (MinTokensOption, 0),
        "json_schema": (JsonSchemaOption, None),
        "json_object": (JsonObjectOption, False),
        "regex": (RegexOption, None),
        "grammar": (GrammarOption, None),
        "choice": (ChoiceOption, None),
        "drafter": (DrafterOption, None),
        "adapter": (AdapterOption, ""),
        "priority": (PriorityOption, 0),
    }
)
"""The annotation and the default of each."""


def with_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, in the place of its parameter `request`, the options of a request but for its prompt, which is empty in it."""
    return with_options(command, "request", _REQUEST, _request)


def _request(
    *,
    logit_bias: list[str] | None,
    stop: list[str] | None,
    json_schema: Path | None,
    grammar: Path | None,
    choice: list[str] | None,
    **others: Any,
) -> GenerateRequest:
    return make_request(
        "",
        logit_bias=_biases(logit_bias or ()),
        stop=stop or (),
        json_schema=_read("--json-schema", json_schema),
        grammar=_read("--grammar", grammar),
        choice=choice or None,
        **others,
    )


def _read(option: str, file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest(option, f"cannot read {quoted(str(file))} ({why})") from error


def _biases(given: Iterable[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for each in given:
        token, _, bias = each.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError as error:
            raise InvalidRequest("--logit-bias", f"is {quoted(each)}, expected TOKEN=BIAS, as 13=-100") from error
    return biases
