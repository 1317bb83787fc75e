"""Two ranks that share a head with experts, started by torchrun as users do, draft for the pocket target."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig

from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.membership import Member
from specsplit.model.heads import MtpHead, TargetEnds, save_head
from specsplit.values import DrafterInfo, PlanChanges
from tests.support.ranks import free_port
from tests.system.conftest import eventually
from tests.system.test_ranks import ranks_of

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPT = tuple(range(40, 60))
SERIAL = PlanChanges(num_steps=2, topk=2, num_draft_tokens=4, draft_ahead=False, wait_budget_us=2_000_000)


def head_with_experts(folder: Path) -> Path:
    """Multi-token prediction layers with random weights: what they draft is hardly ever accepted."""
    torch.manual_seed(1)
    ends = TargetEnds.load(POCKET)
    config = Qwen3MoeConfig(
        vocab_size=ends.vocabulary.size, hidden_size=ends.hidden_size, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=ends.max_context, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        head_dim=32,
    )  # fmt: skip
    save_head(MtpHead(config, ends, num_steps=2), folder)
    return folder


def drafters(client: Client) -> list[Member]:
    return [member for member in client.cluster().members if isinstance(member.role, DrafterInfo)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_head_with_experts_drafts_on_two_ranks_and_text_goes_on_while_a_killed_one_is_started_again(
    tmp_path: Path,
) -> None:
    head, log = head_with_experts(tmp_path / "head"), tmp_path / "ranks.log"
    with LocalCluster(POCKET) as cluster, Client(cluster.address) as client, log.open("wb") as sink:
        alone = client.generate(PROMPT, max_tokens=24, ignore_eos=True).tokens
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"),
            *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            *("-m", "specsplit", "serve", "drafter", "--kind", "multi_layer_eagle", "--model", str(head)),
            *("--target", str(POCKET), "--dp-size", "2", "--rank-timeout-s", "10", "--coordinator", cluster.address),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        torchrun = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
        try:
            eventually(lambda: len(drafters(client)) == 2, within_s=120)
            (group,) = {member.group.group_id for member in drafters(client) if member.group is not None}
            drafted = client.generate(PROMPT, max_tokens=24, ignore_eos=True, plan=SERIAL)
            assert drafted.tokens == alone
            assert drafted.done.speculation.drafted > 0
            assert drafted.done.drafter in {member.member_id for member in drafters(client)}
            os.kill(ranks_of(torchrun)[1], signal.SIGKILL)
            assert client.generate(PROMPT, max_tokens=24, ignore_eos=True, plan=SERIAL).tokens == alone
            eventually(lambda: len(drafters(client)) == 2 and group not in str(drafters(client)), within_s=120)
            assert client.generate(PROMPT, max_tokens=24, ignore_eos=True, plan=SERIAL).tokens == alone
            assert b"rank 1 of 2 is lost" in log.read_bytes()
        finally:
            torchrun.terminate()
            torchrun.wait(60)
    assert b"Traceback" not in log.read_bytes().partition(b"rank 1 of 2 is lost")[0]
