"""Which kernels are launched, and what each of them would be compiled for on a GPU, as triton's interpreter sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

Kernel = tuple[Any, ...]
"""Its name, and of every argument what it is specialised on."""


@contextmanager
def recorded_kernels() -> Iterator[set[Kernel]]:
    """Record the kernels that are launched while inside."""
    found: set[Kernel] = set()
    launch = InterpretedFunction.run

    def run(self: Any, *args: Any, **options: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False))
        constants = {name: options[name] for name in self.arg_names if name in options}
        special = [_specialised(name, value, self.kwargs) for name, value in named.items()]
        found.add((self.fn.__name__, *special, *sorted(constants.items())))
        return launch(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", run)
        yield found


def _specialised(name: str, value: Any, options: Mapping[str, Any]) -> Any:
    """See `JITFunction` in triton/runtime/jit.py, and its Specialization."""
    general = name in (options.get("do_not_specialize") or ())
    anywhere = name in (options.get("do_not_specialize_on_alignment") or ())
    if isinstance(value, Tensor):
        return value.dtype, general or anywhere or value.data_ptr() % 16 == 0
    return type(value), -(2**31) <= value < 2**31, general or (value == 1, value % 16 == 0)
