"""A tokenizer.model of the Llama family in the place of tokenizer.json gives the tokens that transformers gives."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specsplit.errors import LoadError
from specsplit.text.tokenizer import Tokenizer
from specsplit.text.vocabulary import vocabulary_of

ROOT = Path(__file__).parents[2]
INST = {
    "content": "[INST]",
    "special": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "both ends": {"add_bos_token": True, "add_eos_token": True},
    "legacy": {"legacy": True, "add_bos_token": True},
    "no prefix": {"add_prefix_space": False, "pad_token": "<pad>"},
    "a list": {"added_tokens_decoder": {"1": {**INST, "content": "<s>", "special": True}, "600": INST}},
    "further ones": {"additional_special_tokens": ["[INST]", "[/INST]"]},
}


def trained(kind: str = "bpe") -> bytes:
    """A small tokenizer.model with the options of Llama's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SWIG's own
        sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((ROOT / "README.md").read_text().splitlines()),
        model_writer=model,
        model_type=kind,
        vocab_size=600,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        control_symbols=["<control>"],
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model() -> bytes:
    return trained()


def write(folder: Path, model: bytes, **config: Any) -> Path:
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 700}))
    usual = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**usual, **config}))
    return folder


Both = dict[str, tuple[Tokenizer, PreTrainedTokenizerBase]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, model: bytes) -> Both:
    folders = {name: write(tmp_path_factory.mktemp("llama"), model, **config) for name, config in CONFIGS.items()}
    return {name: (Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)) for name, folder in folders.items()}


@given(text=st.text(max_size=60))
@example("  def read(self):\n    return [INST] 12345<tool> déjà<control> 你好 👩‍👩‍👧</s>x ")
@example("<s>[INST] a [/INST]<s> b")
def test_text_is_tokens_and_text_again_as_in_transformers(both: Both, text: str) -> None:
    for ours, theirs in both.values():
        tokens = ours.encode(text)
        assert list(tokens) == theirs.encode(text)
        assert ours.decode(tokens) == theirs.decode(list(tokens), skip_special_tokens=True)


def test_the_vocabulary_is_that_of_the_tokenizer_that_transformers_would_save(both: Both, tmp_path: Path) -> None:
    for ours, theirs in both.values():
        theirs.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 700}))
        assert vocabulary_of(tmp_path) == ours.vocabulary


def test_a_model_that_is_broken_or_of_another_kind_is_a_load_error(tmp_path: Path, model: bytes) -> None:
    for broken, why in (
        (model[:-3], "is no SentencePiece model: it is cut short"),
        (b"IQ== 0\nIg== 1\n", "is no SentencePiece model"),
        (trained("unigram"), "is no SentencePiece model of merged pairs"),
        (b"", "is no SentencePiece model of merged pairs"),
    ):
        with pytest.raises(LoadError, match=rf"tokenizer\.model {why}"):
            Tokenizer.load(write(tmp_path, broken))


def test_another_class_with_such_a_file_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has tokenizer\.model, and no tokenizer\.json.*AutoTokenizer"):
        Tokenizer.load(write(tmp_path, b"", tokenizer_class="InternLM2Tokenizer"))


@pytest.mark.parametrize(
    "config",
    [{"added_tokens_decoder": {"1": {}}}, {"added_tokens_decoder": [1]}, {"bos_token": None, "add_bos_token": True}],
)
def test_tokens_that_are_named_in_no_known_way_are_a_load_error(
    tmp_path: Path, model: bytes, config: dict[str, Any]
) -> None:
    with pytest.raises(LoadError, match=r"tokenizer_config\.json names tokens in no way that can be read"):
        Tokenizer.load(write(tmp_path, model, **config))
