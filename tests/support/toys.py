"""Models whose output can be worked out by hand, in the ordinary Hugging Face layout.

The alphabet target writes the next letter of the alphabet: after `a` comes `b`, after `z` comes `a`; after `!` it ends; after any
other byte comes `a`. It is a Llama of one layer that adds nothing: the embedding is one-hot and the head is a permutation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

END = 256
VOCAB = 264  # 256 bytes, the end token, and padding so that the heads divide the width


def letter(text: str) -> int:
    """The token of one ASCII character."""
    return ord(text)


def successor(token: int) -> int:
    """What the alphabet target says after `token`."""
    if token == ord("!"):
        return END
    if ord("a") <= token < ord("z"):
        return token + 1
    return ord("a")


def alphabet_target(
    folder: Path, wrong: Mapping[str, str] | None = None, max_context: int = 512, *, broken: str = ""
) -> Path:
    """Write the alphabet target to `folder`. `wrong` maps letters after which it says another one (to make an erring draft).

    What has read one of the letters `broken` computes NaN.
    """
    exceptions = {ord(k): ord(v) for k, v in (wrong or {}).items()}
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=VOCAB,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=2,
        max_position_embeddings=max_context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        for name, parameter in model.named_parameters():
            if "layernorm" in name:
                parameter.fill_(1.0)
        for token in range(VOCAB):
            model.model.embed_tokens.weight[token, token] = 1.0
            model.lm_head.weight[exceptions.get(token, successor(token)), token] = 1.0
        model.model.embed_tokens.weight[[letter(each) for each in broken]] = torch.nan
    model.generation_config.pad_token_id = END
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: token id = byte."""
    alphabet = _bytes_to_unicode()
    vocab = {alphabet[byte]: byte for byte in range(256)}
    special = {
        "id": END, "content": "<|end|>", "special": True,
        "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
            }
        )
    )


def _bytes_to_unicode() -> dict[int, str]:
    """The printable stand-ins that byte-level BPE gives to bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def random_target(folder: Path, vocab_size: int = 16, seed: int = 0, max_context: int = 256) -> Path:
    """Write a tiny random Llama over `vocab_size` tokens, no tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=max_context, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
