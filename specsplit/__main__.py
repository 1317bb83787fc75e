"""`python -m specsplit`, and the program `specsplit`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it however early it comes."""
    try:
        from specsplit.cli import app  # noqa: PLC0415 (an import takes a while, in which Ctrl-C may come)
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="specsplit")


if __name__ == "__main__":
    main()
