"""Has a verifier decode many sessions at once, on one DecodeSessions stream as a coordinator's, and reads them to their ends.

`python -m benchmarks.streamed.caller ADDRESS SESSIONS PROMPT NEW TEMPERATURE [DRAFTER]` writes how many tokens came. DRAFTER is the address
of an n-gram drafter.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator

import grpc

from benchmarks.streamed.tiny import VOCABULARY
from specsplit.rpc.options import channel_options
from specsplit.sessions import Begin, DecodeRequest, Finished, Tokens
from specsplit.settings import TransportSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import Endpoint, Sampling, Stopping
from specsplit.wire.sessions import FULL_BYTES, begin_event, sessions_requests, sessions_response_events


def _begins(sessions: int, prompt: int, new: int, temperature: float, drafter: str) -> Iterator[Begin]:
    chosen, drawn = Endpoint("ngram", drafter) if drafter else None, random.Random(0)
    for seed in range(sessions):
        tokens = drawn.choices(range(1, VOCABULARY), k=prompt)
        sampling, stopping = Sampling(temperature=temperature, seed=seed), Stopping(new, ignore_eos=True)
        yield Begin(DecodeRequest("streamed", tokens, sampling, stopping, drafter=chosen))


async def _main(address: str, begins: list[Begin]) -> int:
    """Tokens of all sessions."""
    tokens, left = 0, len(begins)
    async with grpc.aio.insecure_channel(address, options=channel_options(TransportSettings())) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).DecodeSessions()
        for message in sessions_requests((begin_event(*each) for each in enumerate(begins, 1)), FULL_BYTES):
            await call.write(message)
        async for message in call:
            for _, said in sessions_response_events(message):
                if not isinstance(said, list):
                    sys.exit(f"a session failed: {said}")
                tokens += sum(len(event.tokens) for event in said if isinstance(event, Tokens))
                left -= isinstance(said[-1], Finished)
            if not left:
                return tokens
    sys.exit(f"the stream ended before {left} of its sessions")


if __name__ == "__main__":
    where, sessions, prompt, new, temperature, *drafter = sys.argv[1:]
    asked = _begins(int(sessions), int(prompt), int(new), float(temperature), *drafter or [""])
    print(asyncio.run(_main(where, list(asked))), flush=True)
