"""Clients that open and never send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import grpc

from benchmarks.fire.fuzz.calls import METHODS, Manner, call
from benchmarks.fire.mix import Mute, Silence
from specsplit.cli.local import LocalCluster


class Mutes:
    """Opens what is drawn, to processes of a cluster, until cancelled."""

    def __init__(self, cluster: LocalCluster, draws: Iterator[Mute]) -> None:
        self.opened = 0
        self._cluster = cluster
        self._draws = draws

    async def run(self) -> None:
        """Open mute clients, each beside the others."""
        async with asyncio.TaskGroup() as all_of_them:
            for mute in self._draws:
                await asyncio.sleep(mute.after_s)
                all_of_them.create_task(self._open(mute))

    async def _open(self, mute: Mute) -> None:
        """Open one mute client. That the server is gone, or hangs up first, is as good."""
        address = self._address(mute)
        if not address:  # it is being started
            return
        self.opened += 1
        with suppress(OSError):
            if mute.kind is Silence.TCP:
                await _connected(address, mute.holds_s)
            else:
                await _called(address, mute.kind, mute.holds_s)

    def _address(self, mute: Mute) -> str:
        cluster = self._cluster
        servers = {
            Silence.TCP: cluster.children, Silence.GENERATE: [cluster.coordinator], Silence.JOIN: [cluster.coordinator],
            Silence.DECODE: cluster.verifiers, Silence.DRAFT: cluster.drafters,
        }[mute.kind]  # fmt: skip
        return servers[int(mute.server * len(servers))].address


async def _connected(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        await asyncio.sleep(seconds)
    finally:
        writer.close()
        await writer.wait_closed()


async def _called(address: str, path: str, seconds: float) -> None:
    manner = Manner(timeout_s=seconds, hangs_up=False, listens_s=seconds)
    async with grpc.aio.insecure_channel(address) as channel:
        await call(channel, replace(METHODS[path], streams_in=True), [], manner)
