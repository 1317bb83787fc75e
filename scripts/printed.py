"""A page of docs that a script prints from the code: written, or compared with what the code gives."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def finish(page: Path, text: str, script: str, description: str | None) -> int:
    """End a script that prints `text` to `page`: write it, or with --check compare. The exit status: 1 if the page is stale."""
    command = f"python -m scripts.{script}"
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    where = page.relative_to(ROOT)
    if not parser.parse_args().check:
        page.write_text(text)
        print(f"{script}: wrote {where}")
        return 0
    fresh = page.is_file() and page.read_text() == text
    if not fresh:
        print(f"{script}: {where} is not what the code gives; run {command}")
    return 0 if fresh else 1
