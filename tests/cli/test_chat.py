"""`specsplit chat` over a coordinator that says what it is told to, through a pipe and at a terminal."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from specsplit.cli.chat_commands import COMMANDS
from specsplit.client import ChatPrompt, Delta
from specsplit.errors import ContextExceeded, Exhausted, InvalidRequest
from specsplit.requests import GenerateEvent, GenerateRequest
from specsplit.values import FinishReason, Usage
from tests.client.scripted import DONE, EVENTS, MODEL, Scripted, breaking, usual
from tests.support.command import run
from tests.support.terminal import CTRL_C, CTRL_D, UP, Terminal, at_terminal

CHAT = [sys.executable, "-m", "specsplit", "chat", "--address"]
ANSWER = "one two three"


@pytest.fixture
def piped(coordinator: Scripted, monkeypatch: pytest.MonkeyPatch) -> Piped:
    return Piped(coordinator, monkeypatch)


class Piped:
    """`specsplit chat` with lines on stdin."""

    def __init__(self, coordinator: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        self._coordinator = coordinator
        self._monkeypatch = monkeypatch

    def __call__(self, *lines: str, options: tuple[str, ...] = ()) -> int:
        """The exit status."""
        self._monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return run("chat", "--address", self._coordinator.address, *options)


def sent(request: GenerateRequest) -> list[tuple[str, str]]:
    """The messages of a request."""
    assert isinstance(request.prompt, ChatPrompt)
    return [(message.role, message.content) for message in request.prompt.messages]


def test_every_line_is_a_question_that_is_sent_with_what_was_said(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped("hi", "", "and?", options=("--system", "Be brief.")) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{ANSWER}\n{ANSWER}\n", "")
    first, second = map(sent, coordinator.asked)
    assert first == [("system", "Be brief."), ("user", "hi")]
    assert second == [*first, ("assistant", ANSWER), ("user", "and?")]


def test_answers_are_asked_for_as_generate_asks_for_them(coordinator: Scripted, piped: Piped) -> None:
    options = (
        "--max-tokens 9 --temperature 0.5 --top-k 3 --seed 4 --stop a --logit-bias 7=1.5 --drafter none --priority 2"
    )
    piped("hi", options=tuple(options.split()))
    (request,) = coordinator.asked
    assert (request.stopping.max_tokens, request.stop, request.drafter, request.priority) == (9, ("a",), "none", 2)
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.5, 3, 4)
    assert request.sampling.logit_bias == ((7, 1.5),)


def test_commands_change_what_the_next_question_is_sent_with(coordinator: Scripted, piped: Piped) -> None:
    lines = [
        *("one", "/drafter ngram", "two", "/undo", "/drafter auto", "three", "/system Be brief.", "/reset", "four"),
        *("/clear", "/system -", "//five", "/quit", "six"),
    ]
    assert piped(*lines) == 0
    assert [sent(request)[-1][1] for request in coordinator.asked] == ["one", "two", "three", "four", "/five"]
    assert [request.drafter for request in coordinator.asked] == [None, "ngram", None, None, None]
    _, _, three, four, five = map(sent, coordinator.asked)
    assert three == [("user", "one"), ("assistant", ANSWER), ("user", "three")]
    assert four == [("system", "Be brief."), ("user", "four")]
    assert five == [("user", "/five")]


def test_commands_say_what_is_in_force_and_what_happened(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["/drafter", "/drafter none", "/system", "/system Be brief.", "/drafts", "/drafts on", "/undo", "/stats"]
    assert piped(*told, "hi", "/stats", "/undo", "/reset") == 0
    out, err = capsys.readouterr()
    assert out == f"{ANSWER}\n"
    assert err.splitlines() == [
        "Drafter of the next answers: auto, the best there is.",
        "Drafter of the next answers: none.",
        "The model is told nothing before the questions.",
        "Before everything else the model is told: Be brief.",
        "Accepted drafts have no colour of their own.",
        "Accepted drafts have a colour of their own.",
        "There is nothing to take back.",
        "There is no finished answer yet. 0 turns of the conversation are kept.",
        "The last answer: 4 tokens in 2 steps, accept_length 2.00, 1 hits, 1 misses, drafter d1, finish_reason stop, seed 7, "
        "2 of 3 prompt tokens cached",
        "The conversation: 1 answer, 4 tokens in 2 steps, accept_length 2.00, 2 of 8 drafts accepted, 1 hits, 1 misses. "
        "1 turn of the conversation is kept.",
        "Taken back: 'hi' and its answer. 0 turns of the conversation are kept.",
        "The conversation begins anew.",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/nope", "'/nope': there is no such command; /help lists those that there are"),
        ("/", "'/': there is no such command"),
        ("/drafter eagle9", "/drafter: is 'eagle9', expected auto, eagle3, "),
        ("/drafts maybe", "/drafts: is 'maybe', expected on or off"),
        ("/undo 2", "/undo: is '2', but nothing may stand behind /undo"),
        ("a\udcff", "the question: is no text in UTF-8 (at 1); expected that; the question is not kept"),
    ],
)
def test_a_line_that_says_nothing_known_is_a_sentence_and_the_others_are_answered(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    assert piped(line, "hi") == 1
    out, err = capsys.readouterr()
    assert out == f"{ANSWER}\n"
    assert err.startswith(f"specsplit: {sentence}") and err.count("\n") == 1
    assert sent(coordinator.asked[0]) == [("user", "hi")]


def test_a_question_that_fails_is_not_kept_and_the_next_is_answered(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_once(request: GenerateRequest) -> Iterator[GenerateEvent]:
        coordinator.script = breaking_once
        raise Exhausted("full; try again in 1 s", 1.0)
        yield DONE

    def breaking_once(request: GenerateRequest) -> Iterator[GenerateEvent]:
        coordinator.script = usual
        yield from breaking(request)

    coordinator.script = full_once
    assert piped("one", "two", "three") == 1
    out, err = capsys.readouterr()
    assert out == f"one two\n{ANSWER}\n"
    first, second = err.splitlines()
    assert first == "specsplit: full; try again in 1 s; the question is not kept"
    had_come = "2 tokens of the answer had come"  # chat has no option with which to get the rest
    assert second == f"specsplit: the coordinator is leaving; {had_come}; the question is not kept"
    assert sent(coordinator.asked[-1]) == [("user", "three")]


def test_a_context_that_is_too_long_is_told_with_how_to_go_on(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_long(request: GenerateRequest) -> Iterator[GenerateEvent]:
        if sent(request)[-1][1] == "longer":
            raise ContextExceeded("chat.messages", "is 600 tokens long; the context holds 512")
        yield from EVENTS

    coordinator.script = too_long
    assert piped("longer", "hi", "longer", "and?") == 1
    first, second = capsys.readouterr().err.splitlines()
    said = "specsplit: chat.messages: is 600 tokens long; the context holds 512; the question is not kept"
    assert first == f"{said}: ask a shorter one, or for less"
    assert second == f"{said}: /undo takes the last turn back, /reset begins anew"
    assert [content for _, content in sent(coordinator.asked[-1])] == ["hi", ANSWER, "and?"]


def test_of_another_wrong_value_no_such_advice_is_given(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(request: GenerateRequest) -> Iterator[GenerateEvent]:
        raise InvalidRequest("max_tokens", "is 9, more than this coordinator allows")
        yield DONE

    coordinator.script = refuse
    assert piped("hi") == 1
    assert capsys.readouterr().err.endswith("more than this coordinator allows; the question is not kept\n")


@pytest.mark.parametrize(
    ("used", "sentence"),
    [
        (
            Usage(500, 12),
            ", since the context of 512 tokens is full: /undo takes the last turn back, /reset begins anew.",
        ),
        (Usage(3, 4), " after 4 tokens, as many as it may have."),
    ],
)
def test_of_an_answer_that_has_no_end_it_is_told_why(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str], used: Usage, sentence: str
) -> None:
    coordinator.script = lambda _: iter([EVENTS[0], replace(DONE, reason=FinishReason.LENGTH, usage=used)])
    assert piped("hi") == 0
    assert capsys.readouterr().err == f"The answer is cut off{sentence}\n"


def test_a_model_without_a_chat_template_is_told_of_before_anything_is_asked(
    coordinator: Scripted, piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.model = replace(MODEL, takes_chat=False)
    assert piped("hi") == 2
    assert capsys.readouterr().err == (
        "specsplit: chat: model toy has no chat template; continue texts with specsplit generate\n"
    )
    assert not coordinator.asked


def test_without_a_line_nothing_is_asked_and_nothing_has_failed(coordinator: Scripted, piped: Piped) -> None:
    assert piped() == 0
    assert not coordinator.asked


def test_the_list_of_commands_fits_on_80_columns(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    assert piped("/help") == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert max(map(len, lines)) < 80


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Set at the end, so that no answer waits for ever."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def terminal(coordinator: Scripted) -> Iterator[Terminal]:
    with at_terminal([*CHAT, coordinator.address]) as terminal:
        terminal.until("> ")
        yield terminal


def test_ctrl_c_ends_an_answer_and_keeps_what_has_come_and_at_the_prompt_it_ends_the_conversation(
    coordinator: Scripted, terminal: Terminal, held: threading.Event
) -> None:
    def unending(request: GenerateRequest) -> Iterator[GenerateEvent]:
        yield Delta("one", (11,), 1)
        held.wait()

    coordinator.script = unending
    terminal.press("hi\r")
    terminal.until("one")
    terminal.press(CTRL_C)
    terminal.until("Cancelled; what has come is kept.\n> ")
    assert coordinator.ended.wait(30), "the coordinator was told"
    coordinator.script = usual
    terminal.press("and?\r")
    terminal.until(f"{ANSWER}\n> ")
    assert sent(coordinator.asked[-1]) == [("user", "hi"), ("assistant", "one"), ("user", "and?")]
    terminal.press(CTRL_C)
    terminal.until("Goodbye.\n")
    assert terminal.wait() == 0


def test_an_answer_that_is_cancelled_before_anything_came_leaves_no_question_behind(
    coordinator: Scripted, terminal: Terminal, held: threading.Event
) -> None:
    asked = threading.Event()

    def silent(request: GenerateRequest) -> Iterator[GenerateEvent]:
        asked.set()
        held.wait()
        yield DONE

    coordinator.script = silent
    terminal.press("hi\r")
    assert asked.wait(60)
    terminal.press(CTRL_C)
    terminal.until("Cancelled; nothing had come, so the question is not kept.\n> ")
    coordinator.script = usual
    terminal.press("and?\r")
    terminal.until(f"{ANSWER}\n> ")
    assert sent(coordinator.asked[-1]) == [("user", "and?")]
    terminal.press(f"/bogus\r{UP}")
    terminal.until("there is no such command")
    terminal.until("> /bogus")
    terminal.press("\x15" + CTRL_D)
    terminal.until("Goodbye.\n")
    assert terminal.wait() == 0, "whatever has failed: the user has seen it"
    assert "\x1b[32mone two\x1b[0m\x1b[1;33m three\x1b[0m" in terminal.shown


def test_without_colours_everything_looks_alike(coordinator: Scripted, terminal: Terminal) -> None:
    terminal.press("/drafts off\r")
    terminal.until("no colour of their own.\n> ")
    terminal.press("hi\r")
    terminal.until(f"{ANSWER}\n> ")
    assert f"\r\n{ANSWER}\r\n" in terminal.shown
