"""What a process says of where it computes: its machine, its cores and its threads."""

from __future__ import annotations

import os
import uuid
from hashlib import sha256
from pathlib import Path
from typing import Final

from specsplit.settings import EngineSettings
from specsplit.values import Host
from specsplit.values.host import MAX_CORE_RANGES, MAX_CORES

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Where Linux has a number that it draws at every start: all containers of a machine see the same one."""
_MULTICAST: Final = 1 << 40
"""Bit of a network address that Python drew since it found none."""


def host_of(settings: EngineSettings) -> Host:
    """Make out where a member with these settings computes."""
    cores = os.sched_getaffinity(os.getpid()) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    ranges, threads = Host.ranges(cores)[:MAX_CORE_RANGES], min(settings.threads, MAX_CORES)
    return Host(settings.machine or machine(), ranges, threads, settings.device)


def machine() -> str:
    """Make a name of the machine: a digest of the boot id of Linux, else of its network address; empty if it has neither."""
    try:
        found = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        node = uuid.getnode()
        found = "" if node & _MULTICAST else f"{node:x}"
    return sha256(f"specsplit {found}".encode()).hexdigest()[:12] if found else ""
