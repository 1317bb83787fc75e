"""Log-probabilities in vllm_engine.proto of the package smg-grpc-proto.

Those of a prompt are one message there, and not pieces as in ours: what would be larger than a message may be is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from smg_grpc_proto.generated import vllm_engine_pb2 as pb  # pyright: ignore[reportMissingTypeStubs]

from specsplit.errors import InvalidRequest
from specsplit.requests import Delta
from specsplit.settings.dialling import Dialling
from specsplit.values import PromptLogprobs, TokenLogprob

_TOKEN_BYTES: Final = 12
"""Of a token with its log-probability, at most."""
_TOPS_BYTES: Final = 10
"""Of its likeliest tokens, without these themselves."""
_TOP_BYTES: Final = 9
"""Of one of those with its log-probability, at most."""
MESSAGE_BYTES: Final = Dialling.max_message_bytes


def output_logprobs(deltas: Iterable[Delta]) -> pb.OutputLogProbs | None:
    """None: there are none."""
    logprobs = [each for delta in deltas for each in delta.logprobs]
    if not logprobs:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[each.logprob for each in logprobs],
        token_ids=[each.token for each in logprobs],
        top_logprobs=[_top(each.top) for each in logprobs if each.top],
    )


def check_prompt_fits(tokens: int, wanted: int | None, max_bytes: int) -> None:
    """Raise InvalidRequest if the log-probabilities of so many tokens of a prompt, with `wanted` likeliest each, are no one message."""
    if wanted is None:
        return
    size = tokens * (_TOKEN_BYTES + (_TOPS_BYTES + _TOP_BYTES * wanted if wanted else 0))
    if size > max_bytes:
        raise InvalidRequest(
            "sampling_params.prompt_logprobs",
            f"is {wanted}, which for {tokens:,} tokens of the prompt takes {size:,} bytes of one message, and max_message_bytes is "
            f"{max_bytes:,}; ask for fewer, or call Generate of specsplit.v1.CoordinatorService, which tells them in pieces",
        )


class InputLogprobs:
    """Log-probabilities of the prompt of one request, as they come."""

    def __init__(self, wanted: int | None, max_bytes: int) -> None:
        """`wanted`: likeliest tokens beside each; None: nothing is told of the prompt."""
        self._wanted = wanted
        self._max_bytes = max_bytes
        self._pieces: list[PromptLogprobs] = []

    def add(self, piece: PromptLogprobs) -> None:
        """Take the next piece. Raises InvalidRequest if all that has come is no one message."""
        check_prompt_fits(piece.end, self._wanted, self._max_bytes)
        self._pieces.append(piece)

    def message(self) -> pb.InputLogProbs | None:
        """All that has come; None: nothing has. The first token of a prompt has no log-probability."""
        if not self._pieces:
            return None
        logprobs = [each for piece in self._pieces for each in piece.logprobs]
        tops = [pb.TopLogProbs(), *(_top(each.top) for each in logprobs)] if self._wanted else []
        return pb.InputLogProbs(
            token_logprobs=[pb.InputTokenLogProb(), *(pb.InputTokenLogProb(value=each.logprob) for each in logprobs)],
            token_ids=[token for piece in self._pieces for token in piece.tokens],
            top_logprobs=tops,
        )


def _top(tokens: Sequence[TokenLogprob]) -> pb.TopLogProbs:
    return pb.TopLogProbs(values=[each.logprob for each in tokens], token_ids=[each.token for each in tokens])
