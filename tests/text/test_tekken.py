"""A tekken.json in the place of tokenizer.json gives the tokens that transformers gives."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

from specsplit.errors import LoadError
from specsplit.text.byte_level import BYTE_OF
from specsplit.text.tokenizer import Tokenizer
from specsplit.text.vocabulary import vocabulary_of

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
FILLED = 8
"""Special tokens with those that have no name."""


def tekken(folder: Path, **changes: Any) -> Path:
    """Write a tekken.json of the pocket tokenizer's table, with a few entries behind it that pad the file."""
    table = json.loads((POCKET / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [
        bytes(BYTE_OF[c] for c in text)
        for text, _ in sorted(table.items(), key=lambda each: each[1])
        if text[:2] != "<|"
    ]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)]
    config = {"pattern": PATTERN, "default_vocab_size": len(vocab) + FILLED, "default_num_special_tokens": FILLED}
    content = {
        "config": config,
        "vocab": [*vocab, {"rank": len(vocab), "token_bytes": base64.b64encode(b"beyond it").decode()}],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(SPECIAL)],
    }
    (folder / "config.json").write_text(json.dumps({"vocab_size": 4000}))
    (folder / "tekken.json").write_text(json.dumps({**content, **changes}))
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    folder = tekken(tmp_path_factory.mktemp("tekken"))
    return Tokenizer.load(folder), convert_tekken_tokenizer(str(folder / "tekken.json"))


@given(text=st.text(max_size=60))
@example("def read(self):\n    return [INST] 12345 déjà 你好 👩‍👩‍👧</s>")
def test_text_is_tokens_and_text_again_as_in_transformers(
    both: tuple[Tokenizer, PreTrainedTokenizerBase], text: str
) -> None:
    ours, theirs = both
    tokens = ours.encode(text)
    assert list(tokens) == theirs.encode(text)
    assert ours.decode(tokens) == theirs.decode(list(tokens), skip_special_tokens=True)
    detokenizer = ours.detokenizer()
    assert "".join([*(detokenizer.feed((token,)) for token in tokens), detokenizer.flush()]) == ours.decode(tokens)


def test_the_vocabulary_is_that_of_the_tokenizer_that_transformers_would_save(
    both: tuple[Tokenizer, PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    ours, theirs = both
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 4000}))
    assert vocabulary_of(tmp_path) == ours.vocabulary


def test_a_tokenizer_json_comes_before_a_tekken_json(tmp_path: Path) -> None:
    folder = tekken(tmp_path)
    (folder / "tokenizer.json").write_text((POCKET / "tokenizer.json").read_text())
    assert Tokenizer.load(folder).encode("def") == Tokenizer.load(POCKET).encode("def")


def test_a_template_beside_it_sees_its_special_tokens(tmp_path: Path) -> None:
    folder = tekken(tmp_path)
    template = "{{ bos_token }}[INST]{{ messages[0].content }}[/INST]"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_chat([("user", "hi")]) == "<s>[INST]hi[/INST]"
    assert tokenizer.encode_chat([("user", "hi")])[:2] == (1, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"special_tokens": None}, "names no special tokens"),
        ({"vocab": [{"rank": 0}]}, "no tekken.json that can be read: KeyError"),
        ({"vocab": [{"token_bytes": "?"}]}, "no tekken.json that can be read"),
        ({"config": []}, "no tekken.json that can be read"),
    ],
)
def test_what_is_no_tekken_json_is_a_load_error(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(LoadError, match=rf"tekken\.json.*{why}"):
        Tokenizer.load(tekken(tmp_path, **changes))


@pytest.mark.parametrize("name", ["tokenizer.model", "tiktoken.model", "vocab.json"])
def test_a_tokenizer_of_another_kind_is_refused_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 4000}))
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(LoadError, match=rf'has {name}, and no tokenizer\.json.*: python -c "from transformers'):
        Tokenizer.load(tmp_path)
    assert vocabulary_of(tmp_path).digest == ""
