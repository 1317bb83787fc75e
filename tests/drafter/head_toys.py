"""Tiny heads with random weights, the features they read, and what they must propose, computed path by path without KV."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV3Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen3MoeConfig

from specsplit.features import LAST, FeatureFormat, FeatureLayout, Features
from specsplit.model.attention.interface import NAME
from specsplit.model.heads import BlockHead, Eagle3Head, Eagle3Variant, EagleHead, Head, MtpHead, TargetEmbeddings
from specsplit.model.tensors.feature_codec import encode
from specsplit.mtp.families import DEEPSEEK
from specsplit.tree import TokenTree
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit_drafter.drafts.proposer import SessionKey
from specsplit_drafter.engine.session_table import SessionTable
from tests.drafter.toys import Verifier, deliver, plain_model, run_until_all_rest, tiny_config
from tests.support.trees import Seen

VOCABULARY = Vocabulary(32)
_SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
LAYERS = (0, 1, LAST)


def ends() -> TargetEmbeddings:
    """Of the tiny target."""
    model = plain_model(tiny_config())
    return TargetEmbeddings(
        model.model.embed_tokens.weight.data,
        model.lm_head.weight.data,
        vocabulary=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        max_context=128,
    )


def _layer() -> LlamaConfig:
    return tiny_config()


def _eagle(attention: str) -> Head:
    return EagleHead(_layer(), ends(), model="tiny-head", attn_implementation=attention)


def _eagle3(attention: str) -> Head:
    head = Eagle3Head(
        _layer(), ends(), layers=LAYERS, draft_vocab_size=24, model="tiny-head", attn_implementation=attention
    )
    head.set_draft_tokens(torch.arange(4, 28))
    return head


def _normed(attention: str, num_blocks: int = 1) -> Head:
    """With norms of what goes in and of what is handed on."""
    variant = Eagle3Variant(norm_before_residual=True, fc_norm=True, norm_output=True, logit_scale=0.5)
    return Eagle3Head(
        _layer(),
        ends(),
        layers=(0, 1),
        num_blocks=num_blocks,
        variant=variant,
        model="tiny-head",
        attn_implementation=attention,
    )


def _stacked(attention: str) -> Head:
    return _normed(attention, num_blocks=2)


def _p_eagle(attention: str) -> Head:
    variant = Eagle3Variant(norm_before_fc=True, mask_token=31)
    return Eagle3Head(
        _layer(), ends(), layers=LAYERS, variant=variant, model="tiny-head", attn_implementation=attention
    )


def _mimo(attention: str) -> Head:
    return MtpHead([_layer()] * 3, ends(), model="tiny-head", attn_implementation=attention)


def _deepseek(attention: str) -> Head:
    return MtpHead(
        [_layer()] * 2,
        ends(),
        formula=DEEPSEEK.formula,
        model="tiny-head",
        attn_implementation=attention,
    )


def _nextn(attention: str) -> Head:
    return MtpHead([_layer()], ends(), recurrent=True, model="tiny-head", attn_implementation=attention)


def _qwen3_moe(attention: str) -> Head:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    layer = Qwen3MoeConfig(**{**_shape(), **experts, "head_dim": 8})
    return MtpHead([layer] * 3, ends(), model="tiny-head", attn_implementation=attention)


def _mixtral(attention: str) -> Head:
    layer = MixtralConfig(**_shape(), num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    return MtpHead([layer] * 2, ends(), model="tiny-head", attn_implementation=attention)


def _shape() -> dict[str, Any]:
    known = tiny_config().to_dict()
    return {name: known[name] for name in _SHAPE}


def _windowed(attention: str) -> Head:
    layer = MistralConfig(**_shape(), sliding_window=5)
    return MtpHead([layer], ends(), recurrent=True, model="tiny-head", attn_implementation=attention)


def _latent(attention: str) -> Head:
    ranks = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    layer = DeepseekV3Config(**{**_shape(), **ranks, "num_key_value_heads": 4}, first_k_dense_replace=1)
    return MtpHead(
        [layer],
        ends(),
        recurrent=True,
        formula=DEEPSEEK.formula,
        model="tiny-head",
        attn_implementation=attention,
    )


HEADS: Mapping[str, Callable[[str], Head]] = {
    "eagle": _eagle,
    "eagle3": _eagle3,
    "normed": _normed,
    "p-eagle": _p_eagle,
    "nextn": _nextn,
    "mimo": _mimo,
    "deepseek": _deepseek,
}


EXPERTS: Mapping[str, Callable[[str], Head]] = {"qwen3_moe": _qwen3_moe, "mixtral": _mixtral}
"""Multi-token prediction layers with experts."""
STACKED: Mapping[str, Callable[[str], Head]] = {"stacked": _stacked}
"""EAGLE-3 with two decoder layers."""
OTHERS: Mapping[str, Callable[[str], Head]] = {"windowed": _windowed, "latent": _latent}
"""Whose layer sees a window, and whose keys are wider than its values and made of latents."""


def saveable(name: str) -> Head:
    """One that a folder can describe: EAGLE-3 checkpoints do not name the embeddings as a layer."""
    return Eagle3Head(_layer(), ends(), layers=(1, 2)) if name == "eagle3" else head_of(name)


def head_of(name: str, attention: str = NAME) -> Head:
    """With random weights, always the same; large enough that every token of the context matters."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        head = {**HEADS, **EXPERTS, **STACKED, **OTHERS}[name](attention)
        for parameter in head.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    return head.eval()


@cache
def _hidden_states(tokens: tuple[int, ...]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        output = plain_target()(torch.tensor([tokens]), output_hidden_states=True)
    return tuple(states[0] for states in output.hidden_states)


plain_target = cache(lambda: plain_model(tiny_config()))


def features_of(tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
    """[len(tokens), one width per layer]: what the tiny target makes of the tokens."""
    states = _hidden_states(tuple(tokens))
    return torch.cat([states[layer] for layer in layers], dim=-1)


def layout_of(head: Head | BlockHead, form: FeatureFormat = FeatureFormat.FLOAT32) -> FeatureLayout:
    """How its features travel."""
    return head.shape.need.layout(32, form)


def event_of(head: Head | BlockHead, tokens: Sequence[int], first: int, count: int) -> Features:
    """Features of a stretch of committed tokens."""
    rows = features_of(tokens, head.shape.need.layers)[first : first + count]
    return Features(first, count, *encode(rows, layout_of(head)))


class HeadVerifier(Verifier):
    """One session with features. Its target picks what is proposed most of the time, so that there are hits and misses."""

    def __init__(
        self,
        table: SessionTable,
        session: SessionKey,
        prompt: Sequence[int],
        head: Head | BlockHead,
        *,
        plan: Plan | None = None,
        sampling: Sampling | None = None,
        max_nodes: int = 64,
    ) -> None:
        layout = layout_of(head)
        super().__init__(
            table, session, prompt, self._pick, plan=plan, sampling=sampling, max_nodes=max_nodes, vocabulary=VOCABULARY,
            features=layout,
        )  # fmt: skip
        self.sent = 0
        self._head = head
        self._luck = random.Random(repr(prompt))

    @property
    def left(self) -> int:
        """Features that could be sent now: of all committed tokens but the root."""
        return len(self.committed) - 1 - self.sent

    def feed(self, count: int | None = None) -> None:
        """Send the next `count` features, all that there are by default."""
        count = self.left if count is None else min(self.left, count)
        if count:
            event = event_of(self._head, self.committed, self.sent, count)
            self.sent += count
            self._table.handle(self._session, event)

    def _pick(self, sequence: Sequence[int]) -> int:
        node = Seen(self.mirror.tree).root
        for token in sequence[len(self.committed) :]:
            node = node.children[token]
        likeliest = sorted(node.children.values(), key=lambda child: -child.score)[:3]
        return (
            self._luck.choice(likeliest).token if likeliest and self._luck.random() < 0.85 else self._luck.randrange(32)
        )


def run_four(
    table: SessionTable,
    head: Head | BlockHead,
    *,
    plan: Plan,
    sampling: Sampling | None,
    steps: int,
    most_expansions: int,
    seed: int = 1,
    between: Callable[[int], None] = lambda _: None,
) -> list[HeadVerifier]:
    """Four sessions, of which one ends early, in a run of expansions, commits and features that come when they like."""
    verifiers = [
        HeadVerifier(table, (1, number), list(range(1, length)), head, plan=plan, sampling=sampling)
        for number, length in ((1, 14), (2, 5), (3, 3), (4, 2))
    ]
    timing = random.Random(seed)
    for number in range(steps):
        for _ in range(timing.randrange(most_expansions + 1)):
            table.expand()
        deliver(table, *verifiers)
        for verifier in verifiers:
            if timing.random() < 0.7:
                verifier.step()
            if timing.random() < 0.8:
                verifier.feed(None if timing.random() < 0.6 else timing.randrange(1, 6))
        if number == steps // 2:
            verifiers.pop(1).close()
        between(number)
    for verifier in verifiers:
        verifier.feed()
    run_until_all_rest(table, *verifiers)
    for verifier in verifiers:
        assert verifier.read == sorted(set(verifier.read))
        assert verifier.read[-1] == len(verifier.committed) - 1
        verifier.close()
    return verifiers


@dataclass
class Known:
    """One session as a reference knows it."""

    tree: TokenTree
    tokens: list[int]
    inputs: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """By node: the state [1, S] that its row was computed from."""
    outputs: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """By node, the root's under 0: the state [1, S] that its row left."""

    def path(self, slot: int) -> tuple[list[int], list[int]]:
        """Ids and tokens from below the root down to the node; empty for the root itself."""
        slots = self.tree.path(slot)
        return [self.tree.id_of(above) for above in slots], [self.tree.token_of(above) for above in slots]


class Reference(ABC):
    """Logits behind a node. `head` was built for transformers' own attention."""

    def __init__(self, head: Head) -> None:
        self.head = head

    def states(self, known: Known) -> Tensor:
        """Fused features [r, S] of the committed tokens before the root."""
        return self.head.fuse(features_of(known.tokens[:-1], self.head.shape.need.layers))

    @abstractmethod
    def logits(self, known: Known, slot: int) -> Tensor:
        """[1, V], for a node whose parent was asked for before."""


class MultiLayer(Reference):
    """Step after step over the whole path: every step shifts the tokens by one, and reads the states that the step before left."""

    def logits(self, known: Known, slot: int) -> Tensor:
        _, path = known.path(slot)
        text = torch.tensor([*known.tokens, *path])
        states, rope = self.states(known), torch.arange(len(known.tokens) - 1)
        hidden = states
        for step in range(len(path) + 1):
            hidden, states = self.head(step, text[step + 1 : step + 1 + len(rope)], states, rope)
        return self.head.logits(len(path), hidden[-1:])


class Recurrent(Reference):
    """One step over the committed tokens with their features, and over the path with what its nodes were computed from."""

    def logits(self, known: Known, slot: int) -> Tensor:
        path, tokens = known.path(slot)
        if path:
            known.inputs[path[-1]] = known.outputs[path[-2] if len(path) > 1 else 0]
        text = torch.tensor([*known.tokens[1:], *tokens])
        states = torch.cat([self.states(known), *(known.inputs[below] for below in path)])
        hidden, after = self.head(0, text, states, torch.arange(len(text)))
        known.outputs[path[-1] if path else 0] = after[-1:]
        return self.head.logits(0, hidden[-1:])


def reference_of(name: str) -> Reference:
    """The reference for a head of HEADS."""
    head = head_of(name, "sdpa")
    return Recurrent(head) if head.shape.recurrent else MultiLayer(head)
