"""The pocket tokenizer: byte-level BPE of 2,048 tokens, so any text at all can be encoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from scripts.pocket.corpus import Document, split

VOCAB_SIZE = 2048
END = "<|endoftext|>"
# A model of source code has never seen a conversation: a message becomes a comment, which is what people write above code.
CHAT_TEMPLATE = (
    """{% for message in messages %}{{ '# ' + message['content'].replace('\\n', '\\n# ') + '\\n' }}{% endfor %}"""
)


def train(folder: Path) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the training split and save it to `folder` in the Hugging Face layout."""
    training, _ = split()
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator((d.text for d in training), vocab_size=VOCAB_SIZE, special_tokens=[END])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=END, chat_template=CHAT_TEMPLATE)
    tokenizer.save_pretrained(folder)
    return tokenizer


def load(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in `folder`."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def end_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id of the end token."""
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    return end


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[Document]) -> np.ndarray:
    """All documents as one uint16 array [tokens], an end token behind each."""
    end = end_of(tokenizer)
    return np.concatenate([np.array([*tokenizer.encode(d.text), end], dtype=np.uint16) for d in texts])
