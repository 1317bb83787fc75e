"""How many files and connections a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> None:
    """Let this process open as many files and connections as its hard limit allows.

    The soft one is 1,024 as a rule, for programs that use select(2), and a server that has as many connections takes no new one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system whose hard limit is more than it grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
