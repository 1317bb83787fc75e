"""`specsplit chat`: questions and answers, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module

import typer
from rich.console import Console

from specsplit.cli import request_options as options
from specsplit.cli.chat_commands import is_command, obey, question_of
from specsplit.cli.failures import complain, sentence
from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.paint import legend
from specsplit.cli.say import say
from specsplit.cli.screen import Screen, text
from specsplit.cli.signals import ctrl_c_heard
from specsplit.cli.streams import checked, let_bytes_pass, piped_lines
from specsplit.cli.talk import Talk
from specsplit.client import Client, Conversation, Result
from specsplit.errors import ContextExceeded, SpecsplitError, Unsupported
from specsplit.requests import GenerateRequest
from specsplit.settings import TransportSettings
from specsplit.values import FinishReason, ModelInfo

_PROMPT = "> "
_ROOM = "/undo takes the last turn back, /reset begins anew"
_LINE = "the question"
"""What a line is called that is no text, or cannot be read."""

Tell = Callable[[str], None]
"""Says something that is not part of an answer."""


@with_transport
@options.with_request
def chat(
    *,
    system: options.SystemOption = "",
    request: GenerateRequest,
    timeout_s: options.TimeoutOption = None,
    address: AddressOption = ADDRESS,
    transport: TransportSettings,
) -> None:
    """Talk with the model of a running cluster: what was said is sent with every question.

    At a terminal /help lists what else can be said. Through a pipe every line is a question, and the exit status is 1 if one failed.
    """
    conversation, screen = Conversation(checked("--system", system)), Screen()
    at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    with Client(address, transport) as client:
        model = _talkative(client.model_info(timeout_s))
        talk = Talk(client, request, conversation, screen, coloured=at_terminal, timeout_s=timeout_s)
        if at_terminal:
            _at_terminal(talk, model, screen)
        else:
            _through_pipe(talk, model)


def _talkative(model: ModelInfo) -> ModelInfo:
    """The model. Raises Unsupported if it is known to take no conversations."""
    if model.takes_chat is False:
        raise Unsupported("chat", f"model {model.model} has no chat template; continue texts with specsplit generate")
    return model


def _at_terminal(talk: Talk, model: ModelInfo, screen: Console) -> None:
    def tell(line: str) -> None:
        screen.print(text(line, "dim"))

    tell(f"{model.model}, with a context of {model.max_context:,} tokens. /help lists the commands, Ctrl-D ends.")
    screen.print(legend())
    with suppress(EOFError, KeyboardInterrupt):
        for line in _typed(screen):
            before = talk.conversation
            try:
                _take(talk, model, line, tell)
            except KeyboardInterrupt:
                screen.file.write("\r")  # over the ^C that the terminal shows
                kept = "nothing had come, so the question is not kept"
                tell(f"Cancelled; {kept if talk.conversation is before else 'what has come is kept'}.")
    screen.print("Goodbye.")


def _typed(screen: Console) -> Iterator[str]:
    """Every line that is typed, with what readline offers. Raises EOFError for Ctrl-D and Ctrl-C."""
    with suppress(ImportError):
        import_module("readline")  # input() has it from then on
    let_bytes_pass()
    while True:
        try:
            with ctrl_c_heard():
                line = input(_PROMPT)
        except (EOFError, KeyboardInterrupt):
            screen.print()
            raise EOFError from None
        yield line


def _through_pipe(talk: Talk, model: ModelInfo) -> None:
    def tell(lines: str) -> None:
        for line in lines.split("\n"):
            say(line, err=True)

    failed = 0
    with suppress(EOFError):
        for line in piped_lines(_LINE):
            failed += not _take(talk, model, line, tell)
    if failed:
        raise typer.Exit(1)


def _take(talk: Talk, model: ModelInfo, line: str, tell: Tell) -> bool:
    """Do what a line says, or answer it; an empty one is nothing. False if that failed, which is reported."""
    try:
        checked(_LINE, line)
        if is_command(line):
            tell(obey(talk, line))
        elif line.strip():
            result = talk.ask(question_of(line))
            if result.reason is FinishReason.LENGTH:
                tell(_cut_off(result, model))
    except SpecsplitError as error:
        complain(sentence(error) if is_command(line) else f"{sentence(error)}; {_not_kept(talk, error)}")
        return False
    return True


def _not_kept(talk: Talk, error: SpecsplitError) -> str:
    """What has become of the question, and how to go on where that is for the user to say."""
    if not isinstance(error, ContextExceeded):
        return "the question is not kept"
    return f"the question is not kept: {_ROOM if talk.conversation.exchanges else 'ask a shorter one, or for less'}"


def _cut_off(result: Result, model: ModelInfo) -> str:
    """Say why an answer has no end."""
    usage = result.usage
    if usage.prompt_tokens + usage.completion_tokens >= model.max_context:
        return f"The answer is cut off, since the context of {model.max_context:,} tokens is full: {_ROOM}."
    return f"The answer is cut off after {usage.completion_tokens:,} tokens, as many as it may have."
