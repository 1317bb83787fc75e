"""Two ranks that share a head with experts, started by torchrun, draft for the pocket target."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig

from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.membership import Member
from specsplit.model.heads import MtpHead, TargetEmbeddings, save_head
from specsplit.requests import Delta
from specsplit.values import DrafterInfo, PlanChanges
from tests.support.grammars import SCHEMA
from tests.support.torchrun import forked_torchrun
from tests.system.conftest import as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPT = tuple(range(40, 60))
TOKENS = 40
SERIAL = PlanChanges(num_steps=2, topk=2, num_draft_tokens=4, draft_ahead=False, wait_budget_us=2_000_000)


def head_with_experts(folder: Path) -> Path:
    """Multi-token prediction layers with random weights: what they draft is hardly ever accepted."""
    torch.manual_seed(1)
    ends = TargetEmbeddings.load(POCKET)
    config = Qwen3MoeConfig(
        vocab_size=ends.vocabulary.size, hidden_size=ends.hidden_size, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=ends.max_context, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    )  # fmt: skip
    save_head(MtpHead([config] * 2, ends), folder)
    return folder


def drafters(client: Client) -> list[Member]:
    return [member for member in client.cluster().members if isinstance(member.role, DrafterInfo)]


def group_of(client: Client, other_than: str = "") -> str:
    """The group of the two drafters that are there, once they are, and no other is."""
    found: list[str] = []

    def there() -> bool:
        found[:] = [member.group.group_id for member in drafters(client) if member.group is not None]
        return len(found) == 2 and len(set(found)) == 1 and other_than not in found

    as_soon_as(there, within_s=150)
    return found[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_head_with_experts_drafts_on_two_ranks_and_text_goes_on_while_a_killed_one_is_started_again(
    tmp_path: Path,
) -> None:
    head = head_with_experts(tmp_path / "head")
    serve = ["drafter", "--kind", "multi_layer_eagle", "--model", head, "--target", POCKET, "--dp-size", 2]
    with LocalCluster(POCKET) as cluster, Client(cluster.address) as client:
        alone = client.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).tokens
        held = client.generate(PROMPT, max_tokens=TOKENS, json_schema=SCHEMA).tokens
        here = ["--rank-timeout-s", 10, "--coordinator", cluster.address]
        with forked_torchrun(2, *serve, *here, log=tmp_path / "ranks.log") as group:
            first = group_of(client)
            drafted = client.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, plan=SERIAL)
            assert drafted.tokens == alone
            assert drafted.done.speculation.drafted > 0
            assert drafted.done.drafter in {member.member_id for member in drafters(client)}
            masked = client.generate(PROMPT, max_tokens=TOKENS, plan=SERIAL, json_schema=SCHEMA)
            assert masked.tokens == held and masked.done.drafter and masked.done.speculation.accepted > 0
            tokens: list[int] = []
            for event in client.stream(PROMPT, max_tokens=TOKENS, ignore_eos=True, plan=SERIAL):
                if isinstance(event, Delta):
                    if not tokens:
                        group.signal(1, signal.SIGKILL)
                    tokens += event.tokens
            assert tuple(tokens) == tuple(alone)
            group_of(client, other_than=first)
            assert client.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, plan=SERIAL).tokens == alone
