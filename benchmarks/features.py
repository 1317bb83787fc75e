"""The `features` benchmark: what features cost on the wire in each format, and what the format costs in acceptance.

Two parts. *Wire*: rows are encoded as the verifier encodes them, sent over a real Draft stream on loopback to a process that decodes
them as a drafter does and says that it has read them; the time is from before encoding to that answer. *Acceptance*: eagle3 over the
pocket pair, the drafter set to each format.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import torch

from benchmarks.context import Context
from benchmarks.drafters import plan_of
from benchmarks.plots import panels
from benchmarks.processes import process, said
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.spread import Spread, spread
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.draft_events import FeaturesRead, Open
from specsplit.features import FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.model.tensors.feature_codec import decode, encode
from specsplit.rpc.options import channel_options, server_options
from specsplit.settings import TransportSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import DrafterKind, Plan, Sampling, Vocabulary
from specsplit.wire import drafter as wire

LAYERS = 3
WIDTHS = {"pocket": 256, "8B": 4096}
"""Name -> width of the target."""
FORMATS = (FeatureFormat.FLOAT32, FeatureFormat.BFLOAT16, FeatureFormat.FP8_E4M3)
TOKENS = {"a commit": 4, "a chunk": 256}
PROMPT, NEW, PROMPTS = 64, 96, 12
COLUMNS = {
    "what": "format", "pocket_bytes": "bytes per token, width 256", "8B_bytes": "width 4096",
    **{f"{name}_{part}": f"{name}, {part} of {count} tokens, ms" for name in WIDTHS for part, count in TOKENS.items()},
    "greedy": "accept_length, T=0", "sampled": "T=1",
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A format, and whether the verifier projects."""

    format: FeatureFormat
    projected: bool

    def __str__(self) -> str:
        return self.format.value + (", projected" if self.projected else "")

    def layout(self, hidden_size: int) -> FeatureLayout:
        """The layout of a row of three layers."""
        need = FeatureNeed(tuple(range(LAYERS)), hidden_size, self.format)
        if self.projected:
            need = replace(need, projection="fc", projected_size=hidden_size)
        return need.layout(hidden_size, self.format)


WAYS = [Way(each, projected) for projected in (False, True) for each in FORMATS]


class Reader(drafter_pb2_grpc.DrafterServiceServicer):
    """Decodes what comes and says so. The open event of a session tells its layout."""

    UpdateWeights = drafter_pb2_grpc.DrafterServiceServicer.UpdateWeights

    async def GetDrafterInfo(self, request: object, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802 (the name is the protocol's)
        """Refuse: nobody asks."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this reads features and nothing else")

    async def Draft(self, request_iterator: AsyncIterator[Any], context: object) -> AsyncIterator[Any]:  # noqa: N802 (the name is the protocol's)
        """Read one stream."""
        layouts: dict[int, FeatureLayout] = {}
        async for request in request_iterator:
            for session, event in wire.draft_request_events(request):
                if isinstance(event, Features):
                    rows = decode(event, layouts[session], dtype=torch.float32, device="cpu")
                    yield wire.draft_response([(session, FeaturesRead(len(rows)))])
                elif isinstance(event, Open):
                    layouts[session] = event.features


async def _serve() -> None:
    torch.set_num_threads(1)  # as the services do
    server = grpc.aio.server(options=server_options(TransportSettings()))
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(Reader(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def _times(address: str, repeats: int, advance: Any) -> dict[tuple[str, str, str], Spread]:
    """(way, width, part) -> milliseconds, all ways interleaved."""
    found: dict[tuple[str, str, str], list[float]] = {}
    async with grpc.aio.insecure_channel(address, options=channel_options(TransportSettings())) as channel:
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
        cases = [(way, name, part) for way in WAYS for name in WIDTHS for part in TOKENS]
        for session, (way, name, _) in enumerate(cases):
            opening = Open((0,), Sampling(), Plan(), Vocabulary(1), 1, features=way.layout(WIDTHS[name]))
            await call.write(wire.draft_request([(session, opening)]))
        for repeat in range(repeats + 1):
            for session, (way, name, part) in enumerate(cases):
                layout = way.layout(WIDTHS[name])
                rows = torch.randn(TOKENS[part], layout.width)
                began = time.perf_counter()
                await call.write(wire.draft_request([(session, Features(0, len(rows), *encode(rows, layout)))]))
                await call.read()
                if repeat:  # the first round warms up
                    found.setdefault((str(way), name, part), []).append((time.perf_counter() - began) * 1e3)
            advance("wire")
        call.cancel()
    return {case: spread(times) for case, times in found.items()}


def _acceptance(context: Context, way: Way, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """Mean accept_length at temperatures 0 and 1."""
    models = drafts_beside(context.target)
    head = models[DrafterKind.EAGLE3]
    drafter: dict[str, object] = {"feature_format": way.format.value, "feature_projection": way.projected}
    verifier = {"feature_projection": head} if way.projected else {}
    cluster = LocalCluster(context.target, models, drafters=[DrafterKind.EAGLE3], drafter=drafter, verifier=verifier)
    means: list[float] = []
    with cluster, cluster.client() as client:
        for temperature in (0.0, 1.0):
            lengths = [
                client.generate(
                    prompt, max_tokens=new, temperature=temperature, seed=seed, ignore_eos=True, drafter="eagle3", plan=plan_of("4x4")
                ).speculation.accept_length
                for seed, prompt in enumerate(prompts)
            ]  # fmt: skip
            means.append(sum(lengths) / len(lengths))
    return means[0], means[1]


def run(context: Context) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    repeats, new, count = (3, 32, 2) if context.quick else (40, NEW, PROMPTS)
    prompts = held_out(context.target, PROMPT, count).tolist()
    with context.progress("features", repeats + 1 + len(WAYS)) as advance:
        with process("benchmarks.features") as reader:
            times = asyncio.run(_times(said(reader), repeats, advance))
        rows: list[Row] = []
        for way in WAYS:
            greedy, sampled = _acceptance(context, way, prompts, new)
            row: Row = {"what": str(way), "greedy": greedy, "sampled": sampled}
            for name, width in WIDTHS.items():
                row[f"{name}_bytes"] = way.layout(width).bytes_per_token
                for part in TOKENS:
                    taken = times[str(way), name, part]
                    row |= {
                        f"{name}_{part}": taken.told(".2f"),
                        f"{name}_{part}_ms": taken,
                    }
            rows.append(row)
            advance(str(way))

    shown = {"8B_bytes": "bytes per token, target of width 4096", "greedy": "accept_length, 16 nodes, T=0"}
    context.finish(
        "features", "Features on the wire, by format", COLUMNS, rows,
        {"layers": LAYERS, "prompts": count, "new": new, "tree": "4x4", "repeats": repeats},
        ["Times are medians (quartiles in brackets) from before encoding to the reader's answer: encode, one gRPC message on loopback, "
         "decode, answer. The matrix product of a projection is not in them.",
         "Acceptance: eagle3 on the pocket pair, 16 nodes, the serial loop, held-out prompts."],
        partial(panels, rows=rows, name="what", keys=shown),
    )  # fmt: skip


if __name__ == "__main__":
    asyncio.run(_serve())
