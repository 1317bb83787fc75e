"""Packages whose names are imported when the first of them is asked for, so that one light module of a package can be used alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def offering(package: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package that offers the names of its module `public`."""

    def offered(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if (
            find_spec(f"{package}.{name}") is not None
        ):  # `from package import module`, of a module that `public` needs itself
            raise AttributeError(f"module {name!r} of {package!r} is not imported yet")
        return getattr(import_module(f"{package}.public"), name)

    return offered
