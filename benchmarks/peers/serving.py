"""The side of a peer: a process that writes texts for whoever started it. Standard library alone, since it runs in foreign environments.

A line of JSON on standard input asks: {"prompts": [[token, ...], ...], "new": n, "at_once": k}. One on standard output answers:
{"seconds": from the first request to the last token, "texts": [[token, ...], ...]} or {"cannot": why}. {"ready": facts} comes first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Prompts = Sequence[Sequence[int]]
Write = Callable[[Prompts, int], list[list[int]]]
"""All texts of so many tokens, greedy, from prompts that are asked for at once."""


class Cannot(Exception):
    """What is asked for is not offered; the words say why."""


def options() -> dict[str, Any]:
    """What the process was started with: model, threads, whether to draft, and how it keeps weights."""
    return json.loads(sys.argv[1])


@contextmanager
def quiet() -> Iterator[Callable[[Mapping[str, object]], None]]:
    """A way to say something; whatever libraries print meanwhile goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def say(facts: Mapping[str, object]) -> None:
            out.write(json.dumps(facts) + "\n")
            out.flush()

        yield say


def serve(load: Callable[[], Write]) -> None:
    """Load, then answer until nobody asks any more."""
    with quiet() as say:
        began = time.perf_counter()
        write = load()
        say({"ready": {"load_s": time.perf_counter() - began}})
        for line in sys.stdin:
            say(answer(write, **json.loads(line)))


def answer(write: Write, prompts: Prompts, new: int, at_once: int) -> dict[str, object]:
    """Have the texts written, so many at once, and time it."""
    texts: list[list[int]] = []
    began = time.perf_counter()
    try:
        for first in range(0, len(prompts), at_once):
            texts += write(prompts[first : first + at_once], new)
    except Cannot as error:
        return {"cannot": str(error)}
    return {"seconds": time.perf_counter() - began, "texts": texts}
