"""The commands inside of `specsplit chat`: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from specsplit.cli.drafters import CHOICES, KINDS, NONE
from specsplit.cli.paint import summary
from specsplit.cli.talk import Talk
from specsplit.errors import InvalidRequest, quoted
from specsplit.values import SpeculationStatistics

_AUTO = "auto"
"""The wish for the best drafter that there is."""
_NO_SYSTEM = "-"
_SWITCH = {"on": True, "off": False}
_SHOWN = 60
"""Characters of a question that is taken back."""


@dataclass(frozen=True)
class Command:
    """One of them."""

    argument: str
    """What may stand behind its name, in words; empty: nothing."""
    line: str
    """What it does."""
    obey: Callable[[Talk, str], str]
    """Does it with what stands behind the name -> what to say. Raises InvalidRequest."""


def is_command(line: str) -> bool:
    """True if a line is for the chat itself; a question that begins with a slash is written with two."""
    return line.startswith("/") and not line.startswith("//")


def question_of(line: str) -> str:
    """The question that a line asks."""
    return line[1:] if line.startswith("//") else line


def obey(talk: Talk, line: str) -> str:
    """Do what a line says -> what to tell of it. Raises InvalidRequest for a line that says nothing known, EOFError for /quit."""
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        raise InvalidRequest(
            quoted(name), "there is no such command; /help lists those that there are, and // begins a question with /"
        )
    argument = argument.strip()
    if argument and not command.argument:
        raise InvalidRequest(name, f"is {quoted(argument)}, but nothing may stand behind {name}")
    return command.obey(talk, argument)


def _drafter(talk: Talk, kind: str) -> str:
    if kind:
        if kind not in (*KINDS, NONE, _AUTO):
            raise InvalidRequest("/drafter", f"is {quoted(kind)}, expected {_AUTO}, {CHOICES}")
        talk.request = replace(talk.request, drafter=None if kind == _AUTO else kind)
    chosen = talk.request.drafter or f"{_AUTO}, the best there is"
    return f"Drafter of the next answers: {chosen}."


def _drafts(talk: Talk, switch: str) -> str:
    if switch:
        if switch not in _SWITCH:
            raise InvalidRequest("/drafts", f"is {quoted(switch)}, expected on or off")
        talk.coloured = _SWITCH[switch]
    return f"Accepted drafts have {'a' if talk.coloured else 'no'} colour of their own."


def _system(talk: Talk, given: str) -> str:
    if given:
        talk.conversation = replace(talk.conversation, system="" if given == _NO_SYSTEM else given)
    system = talk.conversation.system
    return (
        f"Before everything else the model is told: {system}"
        if system
        else "The model is told nothing before the questions."
    )


def _undo(talk: Talk, _: str) -> str:
    if not talk.conversation.exchanges:
        return "There is nothing to take back."
    question = talk.conversation.exchanges[-1].question
    talk.conversation = talk.conversation.undone()
    shown = question if len(question) <= _SHOWN else f"{question[:_SHOWN]}…"
    return f"Taken back: {shown!r} and its answer. {_kept(talk)}"


def _reset(talk: Talk, _: str) -> str:
    talk.begin_anew()
    return "The conversation begins anew."


def _stats(talk: Talk, _: str) -> str:
    if not talk.answers:
        return f"There is no finished answer yet. {_kept(talk)}"
    did = SpeculationStatistics.sum([answer.speculation for answer in talk.answers])
    tokens = sum(answer.usage.completion_tokens for answer in talk.answers)
    return (
        f"The last answer: {summary(talk.answers[-1])}\n"
        f"The conversation: {_counted(len(talk.answers), 'answer')}, {tokens} tokens in {did.steps} steps, "
        f"accept_length {did.accept_length:.2f}, {did.accepted} of {did.drafted} drafts accepted, "
        f"{did.hits} hits, {did.misses} misses. {_kept(talk)}"
    )


def _help(talk: Talk, _: str) -> str:
    calls = {f"{name} {command.argument}".strip(): command.line for name, command in COMMANDS.items()}
    wide = max(map(len, calls))
    return "\n".join(f"{call:{wide}}  {line}" for call, line in calls.items())


def _quit(talk: Talk, _: str) -> str:
    raise EOFError


def _kept(talk: Talk) -> str:
    exchanges = len(talk.conversation.exchanges)
    return f"{_counted(exchanges, 'turn')} of the conversation {'is' if exchanges == 1 else 'are'} kept."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "/drafter": Command("KIND", f"Draft with this kind, {NONE} or {_AUTO}; alone: say which.", _drafter),
        "/drafts": Command("on|off", "Show accepted drafts in a colour of their own, or not.", _drafts),
        "/system": Command("TEXT", f"Tell the model this first, {_NO_SYSTEM} for nothing; alone: say what.", _system),
        "/undo": Command("", "Take the last question and its answer back.", _undo),
        "/reset": Command("", "Forget every question and answer. The same is /clear.", _reset),
        "/stats": Command("", "Say what speculation did for the last answer, and for all.", _stats),
        "/help": Command("", "List these. A question that begins with / is written with //.", _help),
        "/quit": Command("", "End, as Ctrl-D does. Ctrl-C ends an answer alone.", _quit),
    }
)
"""Every command by name, in the order of /help."""
_ALIASES: Mapping[str, str] = MappingProxyType({"/clear": "/reset"})
