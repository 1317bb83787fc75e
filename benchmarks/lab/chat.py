"""Prompts of the kinds that people send to a chat model, three of which say much of their answer themselves."""

from __future__ import annotations

from pathlib import Path

from specsplit.text.tokenizer import Tokenizer

CODE = """\
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    middle = mean(values)
    total = 0
    for value in values:
        total += (value - middle) ** 2
    return total / len(values)
"""
TEXT = """\
Bees live in colonies. A colony has one queen, who lays the eggs, a few hundred drones, and tens of thousands of workers, who do everything
else. Young workers clean cells and feed the larvae; older ones build the comb, guard the entrance and, in the last weeks of their lives,
fly out for nectar, pollen and water. A worker that has found a good field of flowers dances on the comb when she comes back: the angle
of her dance tells the direction, its length the distance. So a colony finds, within an hour, the best of what is in flower around it.
"""
MESSAGES = (
    f"Rename the variable `total` to `result` in this code, and change nothing else:\n\n```python\n{CODE}```",
    f"Summarise this text in three sentences:\n\n{TEXT}",
    f"Which bees leave the hive, and what for? Answer with sentences of this text:\n\n{TEXT}",
    "What should I pack for a weekend in the mountains in autumn?",
)
"""Edit this code, summarise this text, answer from it, talk to me."""


def chats(model: Path, count: int) -> list[tuple[int, ...]]:
    """The messages in the tokens and the template of the model in folder `model`, again and again. Raises Unsupported if it has none."""
    tokenizer = Tokenizer.load(model)
    return [tokenizer.encode_chat([("user", MESSAGES[number % len(MESSAGES)])]) for number in range(count)]
