"""A conversation: what was said, and what is sent for the next answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specsplit.requests import ChatMessage, ChatPrompt


@dataclass(frozen=True)
class Exchange:
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
    exchanges: tuple[Exchange, ...] = ()

    def asking(self, question: str) -> ChatPrompt:
        """The prompt for the answer to `question`, with everything that was said before it."""
        return ChatPrompt((*self._said(), ChatMessage("user", question)))

    def answered(self, question: str, answer: str) -> Conversation:
        """Add an exchange."""
        return replace(self, exchanges=(*self.exchanges, Exchange(question, answer)))

    def undone(self) -> Conversation:
        """Take the last exchange back, if there is one."""
        return replace(self, exchanges=self.exchanges[:-1])

    def begun_anew(self) -> Conversation:
        """Forget every exchange. The system message stays."""
        return replace(self, exchanges=())

    def _said(self) -> Iterator[ChatMessage]:
        if self.system:
            yield ChatMessage("system", self.system)
        for each in self.exchanges:
            yield ChatMessage("user", each.question)
            yield ChatMessage("assistant", each.answer)
