"""A conversation: what was said, and what is sent for the next answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specsplit.requests import ChatMessage, ChatPrompt


@dataclass(frozen=True)
class Turn:
    """A question and what was answered."""

    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """What was said so far. A value: every method returns another conversation.

    ```python
    conversation = Conversation("Answer in one sentence.")
    result = client.generate(conversation.asking("What is a tree?"))
    conversation = conversation.answered("What is a tree?", result.text)
    ```
    """

    system: str = ""
    """What the model is told before everything else; empty: nothing, and no message is sent for it."""
    turns: tuple[Turn, ...] = ()

    def asking(self, question: str) -> ChatPrompt:
        """The prompt for the answer to `question`, with everything that was said before it."""
        return ChatPrompt((*self._said(), ChatMessage("user", question)))

    def answered(self, question: str, answer: str) -> Conversation:
        """Add a turn."""
        return replace(self, turns=(*self.turns, Turn(question, answer)))

    def undone(self) -> Conversation:
        """Take the last turn back, if there is one."""
        return replace(self, turns=self.turns[:-1])

    def begun_anew(self) -> Conversation:
        """Forget every turn. What the model is told before them stays."""
        return replace(self, turns=())

    def _said(self) -> Iterator[ChatMessage]:
        if self.system:
            yield ChatMessage("system", self.system)
        for turn in self.turns:
            yield ChatMessage("user", turn.question)
            yield ChatMessage("assistant", turn.answer)
