"""Run a command as on a host without IPv6: `python -m tests.support.without_ipv6 COMMAND...`. No socket of IPv6 can be made by it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Mapping

_SOCKET: Mapping[str, int] = {"x86_64": 41, "aarch64": 198}
"""The number of the system call, by processor."""
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16


def forbid() -> None:
    """Have socket(AF_INET6) fail in this process, and in what it becomes, as it does where the kernel has no IPv6. Raises OSError."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _NUMBER_AT),
            (_JUMP_IF_EQUAL, 0, 3, _SOCKET.get(platform.machine(), 0xFFFF)),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
            (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program)
    told = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(instructions)))
    kernel = ctypes.CDLL(None, use_errno=True)
    for order in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.c_void_p(ctypes.addressof(told)), 0, 0)):
        if kernel.prctl(*order):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
