"""`specsplit generate`: one prompt in, live text out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from specsplit.cli import request_options as options
from specsplit.cli.logprobs import as_objects, show
from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.paint import ChoicesPainter, Painter, summary
from specsplit.cli.resuming import advise_resuming, tokens_of
from specsplit.cli.say import say
from specsplit.cli.streams import checked, read_input
from specsplit.client import Client, Conversation, Result, TextPrompt
from specsplit.client.result import Gatherer
from specsplit.errors import Unavailable
from specsplit.requests import GenerateRequest, Prompt
from specsplit.settings import TransportSettings


@with_transport
@options.with_request
def generate(
    *,
    prompt: options.PromptOption = None,
    chat: options.ChatOption = False,
    request: GenerateRequest,
    resume_from: options.ResumeOption = None,
    timeout_s: options.TimeoutOption = None,
    n: options.ChoicesOption = 1,
    logprobs: options.LogprobsOption = None,
    prompt_logprobs: options.PromptLogprobsOption = None,
    as_json: options.JsonOption = False,
    address: AddressOption = ADDRESS,
    transport: TransportSettings,
) -> None:
    """Continue a text. Accepted drafts and the target's own tokens are coloured apart."""
    request = replace(
        request,
        prompt=_prompt(prompt, chat),
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        resume_from=tokens_of(resume_from),
    )
    gatherer = Gatherer(n)
    try:
        with Client(address, transport) as client:
            result = run(client, request, gatherer, None if as_json else Painter(), timeout_s)
    except Unavailable as error:
        if not error.received:
            raise
        raise advise_resuming(error, gatherer.text if as_json else None) from error
    if as_json:
        say(json.dumps(as_object(result, request.resume_from)))
    else:
        _sum_up(result, logprobs=logprobs is not None)


def run(
    client: Client,
    request: GenerateRequest,
    gatherer: Gatherer,
    painter: Painter | None,
    timeout_s: float | None = None,
) -> Result:
    """Generate, painting and gathering what comes, and return the whole."""
    choices = None if painter is None else ChoicesPainter(painter, request.n)
    for event in client.send(request, timeout_s):
        gatherer.add(event)
        if choices is not None:
            choices.add(event)
    return gatherer.result()


def _sum_up(result: Result, *, logprobs: bool) -> None:
    """Print what is to be said of the prompt, and below the text of each choice."""
    if result.prompt_logprobs:
        show(result.prompt_logprobs, "prompt")
    for choice in result.choices:
        if logprobs:
            show(choice.logprobs)
        say(summary(choice), err=True)


def as_object(result: Result, earlier: Sequence[int] = ()) -> dict[str, object]:
    """Make the object that --json prints; of an answer that goes on behind `earlier` tokens, all of them are its resume_from."""
    made = _choice_object(result)
    if result.prompt_logprobs:
        made["prompt_logprobs"] = as_objects(result.prompt_logprobs)
    if earlier:
        made["resume_from"] = [*earlier, *result.tokens]
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
        "no_drafts": None if result.no_drafts is None else result.no_drafts.sentence,
        "seed": result.seed,
        "request_id": result.done.request_id,
        "verifier": result.done.verifier,
        "drafter": result.done.drafter,
    }
    return made | {"logprobs": as_objects(result.logprobs)} if result.logprobs else made


def _prompt(given: str | None, chat: bool) -> Prompt:
    text = read_input("--prompt") if given is None else checked("--prompt", given)
    return Conversation().asking(text) if chat else TextPrompt(text)
