"""Eight messages to a chat model, short ones and long ones: half of them say much of their answer themselves."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.chat import CODE, MESSAGES, TEXT
from specsplit.text.tokenizer import Tokenizer

_MORE = """\
In winter no bee flies. The colony sits on its stores as one ball, with the queen in the middle, and keeps warm by trembling. Those on the
outside of the ball are cold after a while, and others take their place. A colony eats some fifteen kilograms of honey until spring, most
of it when the brood has begun again and the middle of the ball has to be as warm as in summer. Many colonies die in March, when the stores
are empty and nothing is in flower yet.
"""
WITHIN = (
    *MESSAGES,
    f"Write a test with pytest for each function of this code:\n\n```python\n{CODE}```",
    f"Copy this text and write 'insects' in the place of 'bees' wherever it stands:\n\n{TEXT}",
    f"What is a good title for this text? Say why, in two sentences:\n\n{TEXT}\n{_MORE}",
    f"A text about bees:\n\n{TEXT}\n{_MORE}\nA piece of code:\n\n```python\n{CODE}```\n\nSay in one sentence each what the text and the "
    "code are about, then repeat the code with a docstring in every function.",
)


def prompts_of(model: Path, count: int) -> list[list[int]]:
    """The first messages in the tokens of the model in a folder, in its template if it has one."""
    tokenizer = Tokenizer.load(model)
    return [
        list(tokenizer.encode_chat([("user", text)]) if tokenizer.takes_chat else tokenizer.encode(text))
        for text in WITHIN[:count]
    ]
