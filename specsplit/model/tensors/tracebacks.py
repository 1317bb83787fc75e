"""What errors keep alive: every frame of a traceback holds its variables, captured graphs and process groups among them."""

from __future__ import annotations

from traceback import clear_frames


def forget_variables(error: BaseException) -> None:
    """Have an error, and those that led to it, hold no variables any more but of what is still running.

    NCCL keeps a connection open for as long as there is a graph that uses it, and torch for as long as somebody holds the group.
    """
    met: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in met:
        clear_frames(at.__traceback__)
        met.append(at)
        at = at.__cause__ or at.__context__
