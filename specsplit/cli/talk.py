"""What `specsplit chat` holds: a conversation, how its next answer is asked for, and what its answers came to."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from rich.console import Console

from specsplit.cli.paint import Painter
from specsplit.client import Client, Conversation, Delta, Result
from specsplit.client.result import Gatherer
from specsplit.requests import GenerateRequest


class Talk:
    """Asks, shows what comes, and keeps what was said."""

    def __init__(
        self,
        client: Client,
        request: GenerateRequest,
        conversation: Conversation,
        screen: Console,
        *,
        coloured: bool,
        timeout_s: float | None = None,
    ) -> None:
        """`request` says how answers are asked for; its prompt does not count. `timeout_s` is that of one answer."""
        self._client = client
        self._screen = screen
        self._timeout_s = timeout_s
        self.request = request
        self.conversation = conversation
        self.coloured = coloured
        """Whether accepted drafts and the target's own tokens have colours of their own."""
        self.answers: list[Result] = []
        """Finished answers since the conversation began, also if they were taken back."""

    def ask(self, question: str) -> Result:
        """Show an answer as it comes, and keep the exchange.

        Ctrl-C cancels the answer and is raised on: what has come is kept, if anything has. Raises SpecsplitError, and keeps nothing then.
        """
        gatherer, painter = Gatherer(), Painter(self._screen, coloured=self.coloured)
        request = replace(self.request, prompt=self.conversation.asking(question))
        try:
            with closing(self._client.send(request, self._timeout_s)) as events:
                for event in events:
                    gatherer.add(event)
                    if isinstance(event, Delta):
                        painter.paint(event)
        except KeyboardInterrupt:
            if gatherer.text:
                self._keep(question, gatherer.text)
            raise
        finally:
            painter.end_line()
        result = gatherer.result()
        self.answers.append(result)
        self._keep(question, result.text)
        return result

    def begin_anew(self) -> None:
        """Forget what was said and what it came to."""
        self.conversation = self.conversation.begun_anew()
        self.answers.clear()

    def _keep(self, question: str, answer: str) -> None:
        self.conversation = self.conversation.answered(question, answer)
