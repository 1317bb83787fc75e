"""`python -m scripts.chat_head`: an EAGLE-3 head for the chat model of scripts.chat_model, in build/chat/eagle3.

The chat model writes what it is asked as well: messages of a user, a third of them to be about pieces of Python's standard library.
Then `specsplit train-head` does the rest. It needs the trainer of speculators (docs/train.md), takes about two hours of one core,
and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from scripts.chat_model import FOLDER
from specsplit.cli.progress import metering
from specsplit.text.tokenizer import Tokenizer
from specsplit.training.order import HeadOrder
from specsplit.training.run import train_head
from specsplit.training.teacher import Task, Teacher
from specsplit.values import DrafterKind

MESSAGES, LONGEST = 3700, 60
"""Messages that are written, and the tokens of one; those that have not ended by then are left out, some 15 in 100."""
BEGINNINGS = (
    "", "", "", "How ", "What ", "Why ", "Can you ", "Write ", "Explain ", "I ", "Give me ", "Tell me ", "Is ", "List ", "Describe ",
)  # fmt: skip
ABOUT_CODE = (
    "Explain what this code does:", "Rewrite this function with type annotations:", "Find a bug in this code:",
    "Add a docstring to this function:",
)  # fmt: skip
ABOUT_TEXT = ("Summarise this text in two sentences:", "What is this text about?", "Rewrite this for a beginner:")
_FUNCTION = re.compile(r"^def \w+\(.*?(?=^\S)", re.MULTILINE | re.DOTALL)
_DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)


def messages(target: Path, count: int) -> Iterator[str]:
    """What the model says in the place of a user, as far as it comes to an end."""
    tokenizer = Tokenizer.load(target)
    head = tokenizer.render_chat([("user", "X")]).split("X")[0]
    begun = [BEGINNINGS[number % len(BEGINNINGS)] for number in range(count)]
    prompts = [tokenizer.encode_rendered(head + text.strip()) for text in begun]
    teacher = Teacher.load(target, longest=100 + LONGEST, dtype="float32", device="cpu")
    tasks = [Task(number, prompt, LONGEST, 1.0 if number % 3 else 0.8, number) for number, prompt in enumerate(prompts)]
    with metering("messages") as meter:
        for done, (task, written) in enumerate(teacher.write(tasks), 1):
            meter(done, count, "")
            text = (begun[task.index].strip() + tokenizer.decode(written)).strip()
            if len(written) < LONGEST and 12 < len(text) < 400 and text.isprintable():
                yield text


def pieces() -> Iterator[str]:
    """Messages about pieces of Python's standard library, its functions and its docstrings."""
    number = 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = file.read_text(encoding="utf-8", errors="ignore")
        functions = [each.strip() for each in _FUNCTION.findall(source)[:3] if 120 < len(each) < 700]
        texts = [" ".join(each.split()) for each in _DOCSTRING.findall(source)[:2] if 200 < len(each) < 700]
        for forms, found in ((ABOUT_CODE, functions), (ABOUT_TEXT, texts)):
            for each in found:
                yield f"{forms[number % len(forms)]}\n\n{each}"
                number += 1


def write_messages(file: Path, target: Path, count: int) -> None:
    """Write messages as lines of JSON, unless that is done."""
    if file.is_file():
        return
    asked = [*messages(target, count)]
    asked += random.Random(0).sample(about := [*pieces()], min(len(about), len(asked) // 3))
    random.Random(1).shuffle(asked)
    lines = (json.dumps({"messages": [{"role": "user", "content": each}]}) + "\n" for each in asked)
    unfinished = file.with_suffix(".new")
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.rename(file)


def main() -> None:
    """Write the messages, and train."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chat_head", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    data, target = FOLDER / "messages.jsonl", FOLDER / "target"
    write_messages(data, target, options.messages)
    order = HeadOrder(
        target, (data,), DrafterKind.EAGLE3, FOLDER / "eagle3", temperature=0.5, max_new_tokens=128, max_length=448, samples=2600,
        held_out=60, epochs=options.epochs, batch_tokens=512, depth=4, layers=(9, 20, 30), draft_vocab=6144,
    )  # fmt: skip
    figures = train_head(order, print, metering)
    print(f"{order.out}: {figures.accept_length:.2f} tokens a step with a chain of 4 on held-out texts")


if __name__ == "__main__":
    main()
