"""`specsplit generate`: one prompt in, live text out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from specsplit.cli.drafters import CHOICES
from specsplit.cli.logprobs import as_objects, show
from specsplit.cli.options import ADDRESS, AddressOption, TlsCaOption, transport
from specsplit.cli.paint import ChoicesPainter, Painter, summary
from specsplit.client import ChatMessage, ChatPrompt, Client, Promptable, Result, make_request
from specsplit.client.result import Gatherer
from specsplit.errors import InvalidRequest, quoted
from specsplit.requests import GenerateRequest


def generate(
    *,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What to continue; from stdin if left out.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a user's chat message.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Generated tokens at most; left out: as the coordinator has it.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 picks the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep this many of the likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the likeliest.")] = 0.0,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same text.")] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias",
            metavar="TOKEN=BIAS",
            help="Add this to the logit of a token id, from -100 (all but never) to 100; may be given repeatedly.",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1: fewer tokens that the text has had; 1 is none.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="Taken off a logit for every time its token was generated.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="Taken off a logit once if its token was generated.")
    ] = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; may be given repeatedly.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's own end token.")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", min=0, help="Give up after this many seconds; never if left out.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", metavar="KIND", help=f"{CHOICES}; the best there is if left out.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Write so many continuations, at most 16.")] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", help="Print the log-probability of every token, and of so many likeliest ones, at most 20."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
    address: AddressOption = ADDRESS,
    tls_ca: TlsCaOption = None,
) -> None:
    """Continue a text. Accepted drafts and the target's own tokens are coloured apart."""
    request = make_request(
        _prompt(prompt, chat),
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        logit_bias=_biases(logit_bias or ()),
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        stop=stop or (),
        drafter=drafter,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        n=n,
    )
    with Client(address, transport(tls_ca)) as client:
        result = run(client, request, None if as_json else Painter(), timeout_s)
    if as_json:
        typer.echo(json.dumps(as_object(result)))
        return
    for choice in result.choices:
        if logprobs is not None:
            show(choice.logprobs)
        typer.echo(summary(choice), err=True)


def run(client: Client, request: GenerateRequest, painter: Painter | None, timeout_s: float | None = None) -> Result:
    """Generate, painting what comes, and return the whole."""
    gatherer, choices = Gatherer(request.n), None if painter is None else ChoicesPainter(painter, request.n)
    for event in client.send(request, timeout_s):
        gatherer.add(event)
        if choices is not None:
            choices.add(event)
    return gatherer.result()


def as_object(result: Result) -> dict[str, object]:
    """What --json prints."""
    made = _choice_object(result)
    return made | {"choices": [_choice_object(choice) for choice in result.choices]} if result.others else made


def _choice_object(result: Result) -> dict[str, object]:
    speculation = {**asdict(result.speculation), "accept_length": result.speculation.accept_length}
    made: dict[str, object] = {
        "text": result.text,
        "token_ids": list(result.tokens),
        "finish_reason": result.reason.value,
        "matched_stop": result.done.matched_stop,
        "usage": asdict(result.usage),
        "speculation": speculation,
        "seed": result.seed,
        "request_id": result.done.request_id,
        "verifier": result.done.verifier,
        "drafter": result.done.drafter,
    }
    return made | {"logprobs": as_objects(result.logprobs)} if result.logprobs else made


def _biases(given: Iterable[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for each in given:
        token, _, bias = each.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError as error:
            raise InvalidRequest("--logit-bias", f"is {quoted(each)}, expected TOKEN=BIAS, as 13=-100") from error
    return biases


def _prompt(given: str | None, chat: bool) -> Promptable:
    text = _piped() if given is None else given
    return ChatPrompt((ChatMessage("user", text),)) if chat else text


def _piped() -> str:
    if sys.stdin.isatty():
        raise InvalidRequest("--prompt", "is missing; give it, or pipe the text into stdin")
    return sys.stdin.read()
