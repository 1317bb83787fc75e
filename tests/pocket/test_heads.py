from __future__ import annotations

import json
from pathlib import Path

from scripts.pocket.corpus import split
from scripts.pocket.heads import order_of, write_corpus
from specsplit.training.examples import read_examples
from specsplit.training.order import KINDS

MODELS = Path(__file__).parents[2] / "models" / "pocket"


def test_every_kind_has_an_order_on_what_the_target_was_trained_on(tmp_path: Path) -> None:
    corpus = tmp_path / "pocket" / "corpus.jsonl"
    write_corpus(corpus)
    texts = [each.text for each in split()[0] if each.text.strip()]
    assert [json.loads(line)["text"] for line in corpus.read_text().splitlines()] == texts
    assert [example.text for example in read_examples([corpus])] == texts
    orders = [order_of(kind, MODELS, corpus, tmp_path / kind) for kind in KINDS]
    assert [order.kind for order in orders] == list(KINDS)
