"""Writes tests/data/gateway/metrics.txt: what the gateway smg exposes once it has answered and refused requests before a real cluster.

Run by hand, with the environment of programs of others that `.ci/clients` makes:

    build/clients/bin/python -m scripts.recorded_gateway
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from itertools import groupby
from typing import Any, Final
from urllib.error import HTTPError

from scripts.printed import ROOT
from specsplit.cli.gateway import Gateway
from specsplit.cli.local import LocalCluster
from specsplit.errors import DeadlineExceeded

OUT: Final = ROOT / "tests" / "data" / "gateway" / "metrics.txt"
TARGET: Final = ROOT / "models" / "pocket" / "target"
WORKER: Final = "coordinator:50050"
"""What the recording calls the coordinator, whose port was drawn."""
ASKED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("completions", {"prompt": "def f"}),
    ("completions", {"prompt": "def f", "stream": True}),
    ("chat/completions", {"messages": [{"role": "user", "content": "add"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "add"}], "stream": True}),
    ("completions", {"prompt": "def f", "max_tokens": -1}),
    ("completions", {"prompt": "def f", "model": "another"}),
)
_ANSWERS: Final = re.compile(r'smg_http_responses_total\{path="/v1/(chat/)?completions"')
"""Not those to what a gateway is asked until it is ready."""
_PATIENCE_S: Final = 30.0


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    text = recorded()
    OUT.write_text(f"# smg {version('smg')}, recorded by scripts/recorded_gateway.py\n{text}")
    print(f"recorded_gateway: wrote {OUT.relative_to(ROOT)}, {OUT.stat().st_size:,} bytes")


def recorded() -> str:
    """The exposition of a gateway that has been asked everything in ASKED once, in an order that every run has."""
    with LocalCluster(TARGET, {}, drafters=[]) as cluster, Gateway(cluster.address, "127.0.0.1:0") as gateway:
        for path, body in ASKED:
            ask(gateway.url, path, body)
        return in_order(_settled(gateway.metrics_url)).replace(cluster.address, WORKER)


def ask(url: str, path: str, body: dict[str, Any]) -> int:
    """The status of the answer, once it has come in full."""
    asked = json.dumps({"model": "target", "max_tokens": 16, **body}).encode()
    request = urllib.request.Request(f"{url}/{path}", asked, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return answer.status
    except HTTPError as error:
        return error.code


def _settled(url: str) -> str:
    """The exposition as soon as every request is counted: one counts shortly after its last byte."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
        answers = [line for line in text.splitlines() if _ANSWERS.match(line)]
        if sum(int(line.rpartition(" ")[2]) for line in answers) == len(ASKED):
            return text
        time.sleep(0.1)
    raise DeadlineExceeded(f"{url} has not counted {len(ASKED)} answers after {_PATIENCE_S:g} s")


def in_order(text: str) -> str:
    """Families by name, and the series of each by their labels; smg has them in another order each time."""
    families = sorted(family.splitlines() for family in text.strip().split("\n\n"))
    return "\n".join("\n".join([*lines[:2], *_series(lines[2:])]) for lines in families) + "\n"


def _series(lines: list[str]) -> Iterator[str]:
    """Buckets of one series stay as they are, by their bounds."""
    together = [list(group) for _, group in groupby(lines, lambda line: line.partition("le=")[0])]
    for group in sorted(together, key=lambda group: group[0]):
        yield from group


if __name__ == "__main__":
    main()
