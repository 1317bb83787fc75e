"""A target that is split over two cards, with NCCL's collectives in its captured forwards. Written on a machine without a GPU."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from specsplit.cli.local import LocalCluster
from tests.support.streamed import streamed
from tests.support.torchrun import torchrun
from tests.system.conftest import as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPT = list(range(40, 60))
DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() < 2, reason="a group needs a card for each rank, and there are no two"
    ),
    pytest.mark.timeout(600),
]


def test_it_writes_what_a_whole_one_does_and_a_stream_outlives_a_rank_that_dies_while_graphs_are_replayed(
    tmp_path: Path,
) -> None:
    """The follower dies where the leader waits for it in a collective of a replay; torchrun starts both again, and the stream goes on."""
    log = tmp_path / "processes.log"
    serve = ["verifier", "--model", POCKET, "--tp-size", 2, "--device", DEVICE, "--rank-timeout-s", 5]
    alone = {"device": DEVICE}
    with LocalCluster(POCKET, coordinator={"failover_s": 240}, verifier=alone) as cluster, cluster.client() as client:
        whole = client.generate(PROMPT, max_tokens=256, ignore_eos=True).tokens
        with torchrun(2, *serve, "--coordinator", cluster.address, log=log) as split:
            as_soon_as(lambda: len(client.cluster().members) == 2, within_s=240)
            cluster.verifiers[0].terminate()
            assert cluster.verifiers[0].wait(30) == 0
            assert client.generate(PROMPT, max_tokens=256, ignore_eos=True).tokens == whole
            tokens = streamed(client, PROMPT, 256, lambda: split.signal(1, signal.SIGKILL))
            assert tokens == whole
            assert "rank 1 of 2 is lost" in split.output
            assert split.output.count("joined the cluster") == 2
