"""`python -m benchmarks.lookup.recording`: write the recorded turns anew, with the chat model that `python -m scripts.chat_model` fetches.

Three traces. `chat`: the eight messages of `benchmarks peers`, and what the model writes to them, greedy. `edits`: a file of this project
is edited six times, one request each, whose answer is the whole file. `tools`: an assistant calls tools and reads their results. The last
two are written by this script: a model of this size does neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.lookup.turn import TRACES, Turn, write
from benchmarks.peers.prompts import WITHIN, prompts_of
from scripts.chat_model import FOLDER
from specsplit.text.tokenizer import Tokenizer

NEW = 96
"""Tokens of an answer of the model, at most."""
EDITED = Path("benchmarks/lab/arrivals.py")
EDITS = (
    ("Rename the class `Closed` to `Callers`.", "Closed", "Callers"),
    ("Rename the field `per_s` to `rate_per_s`.", "per_s", "rate_per_s"),
    (
        "Insert a check into `Burst` that `size` is at least 1.",
        "    every_s: float\n    at_once = None\n",
        "    every_s: float\n    at_once = None\n\n    def __post_init__(self) -> None:\n        if self.size < 1:\n"
        '            raise ValueError(f"size is {self.size}, expected at least 1")\n',
    ),
    ("Rename the method `moments` to `seconds_of_arrival`.", "def moments(", "def seconds_of_arrival("),
    (
        "Insert a docstring into the method of `Trace` that has none.",
        "        return iter(sorted(self.seconds))",
        '        """They come in order, whatever the order in which they were recorded."""\n        return iter(sorted(self.seconds))',
    ),
    ("Have the first request of `Steady` come after one gap.", "rate_per_s for number in count())", "rate_per_s for number in count(1))"),
)  # fmt: skip
"""What is asked for, what is replaced, by what."""
ORDERS = (
    ("A-1041", "C-207", "Miriam Okafor", "miriam.okafor@example.com", "paid", ("desk lamp", 2), ("bulb E27 warm", 6)),
    ("A-1042", "C-311", "Jonas Weidner", "jonas.weidner@example.com", "shipped", ("office chair", 1), ("arm rest", 2)),
    ("A-1043", "C-207", "Miriam Okafor", "miriam.okafor@example.com", "paid", ("standing desk", 1), ("cable tray", 1)),
    ("A-1047", "C-118", "Adaeze Lindqvist", "adaeze@example.org", "returned", ("desk lamp", 1), ("monitor arm", 2)),
)
TOOLS = """\
Answer with one call of a tool, as JSON. The tools are:
{"name": "get_order", "arguments": {"order_id": "string"}}
{"name": "get_customer", "arguments": {"customer_id": "string"}}
{"name": "send_message", "arguments": {"to": "string", "subject": "string", \
"order": {"order_id": "string", "status": "string", "items": []}}}
{"name": "done", "arguments": {}}"""

Messages = list[tuple[str, str]]


def chat(folder: Path) -> Iterator[list[Turn]]:
    """Have the model answer each message, until it ends its answer or has written `NEW` tokens."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt in prompts_of(folder, len(WITHIN)):
        tokens = torch.tensor([prompt])
        written = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False)
        yield [Turn(tuple(prompt), tuple(written[0, len(prompt) :].tolist()))]


def edits(tokenizer: Tokenizer) -> Iterator[list[Turn]]:
    """Ask for each edit of the file as the one before has left it."""
    code = EDITED.read_text(encoding="utf-8")
    for wish, old, new in EDITS:
        if old not in code:
            raise ValueError(f"{EDITED} holds no {old!r} that could be edited")
        asked = f"{wish} Answer with the whole file and nothing else.\n\n```python\n{code}```"
        code = code.replace(old, new)
        yield _turns(tokenizer, [("user", asked), ("assistant", f"```python\n{code}```")])


def tools(tokenizer: Tokenizer) -> Iterator[list[Turn]]:
    """Look at the orders two by two, each pair in a conversation, and write to their customers."""
    for first in range(0, len(ORDERS), 2):
        orders = ORDERS[first : first + 2]
        wish = f"Tell the customers of the orders {orders[0][0]} and {orders[1][0]} how they stand."
        messages = [("system", TOOLS), ("user", wish)]
        for order_id, customer_id, name, mail, status, *items in orders:
            listed = [{"product": product, "quantity": quantity} for product, quantity in items]
            order = {"order_id": order_id, "customer_id": customer_id, "status": status, "items": listed}
            customer = {"customer_id": customer_id, "name": name, "email": mail}
            message = {"to": mail, "subject": f"Your order {order_id}, {name}",
                       "order": {"order_id": order_id, "status": status, "items": listed}}  # fmt: skip
            messages += _called("get_order", {"order_id": order_id}, order)
            messages += _called("get_customer", {"customer_id": customer_id}, customer)
            messages += _called("send_message", message, {"sent": True})
        yield _turns(tokenizer, [*messages, ("assistant", json.dumps({"name": "done", "arguments": {}}))])


def _called(tool: str, arguments: object, result: object) -> Messages:
    """A call of a tool, and its result."""
    return [("assistant", json.dumps({"name": tool, "arguments": arguments})), ("tool", json.dumps(result))]


def _turns(tokenizer: Tokenizer, messages: Sequence[tuple[str, str]]) -> list[Turn]:
    """The turns of a conversation, one for each message of the assistant; an answer ends with the token that ends a message."""
    (end,) = tokenizer.encode_rendered("<|im_end|>")
    return [
        Turn(tokenizer.encode_chat(messages[:number]), (*tokenizer.encode_rendered(text), end))
        for number, (role, text) in enumerate(messages)
        if role == "assistant"
    ]


def main() -> None:
    """Write the three files."""
    folder = FOLDER / "target"
    tokenizer = Tokenizer.load(folder)
    TRACES.mkdir(exist_ok=True)
    for name, found in (("edits", edits(tokenizer)), ("tools", tools(tokenizer)), ("chat", chat(folder))):
        write(TRACES / f"{name}.jsonl", found)
        print(f"wrote {TRACES / name}.jsonl")


if __name__ == "__main__":
    main()
