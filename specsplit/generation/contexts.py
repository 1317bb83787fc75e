"""The context that a servicer's method gets beside its request."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.rpc import Context


def at_end(context: Context, callback: Callable[[], None]) -> None:
    """Have `callback` called when the call is over, however it ends, even if its generator is left hanging."""

    def ended(_: Context) -> None:
        callback()

    context.add_done_callback(ended)  # pyright: ignore[reportArgumentType] (the stub's callback type is a bare class)
