"""KV of 8 bits changes what the target writes at most as rounding does, and never with who drafts, over real processes."""

from __future__ import annotations

from pathlib import Path

from specsplit.cli.local import LocalCluster

from .conftest import SERIAL

POCKET = Path("models/pocket")
PROMPT = "def read(path):\n    "


def test_text_from_kv_of_8_bits_is_the_same_with_any_drafter_and_none() -> None:
    settings = {"kv_cache_dtype": "fp8_e4m3"}
    drafts = {"standalone": POCKET / "draft", "eagle3": POCKET / "eagle3"}
    with (
        LocalCluster(
            POCKET / "target", drafts, drafters=["standalone", "eagle3"], verifier=settings, drafter=settings
        ) as cluster,
        cluster.client() as client,
    ):
        for temperature in (0.0, 1.0):
            texts, accepted = {}, 0
            for drafter in ("none", "standalone", "eagle3"):
                done = client.generate(
                    PROMPT,
                    max_tokens=24,
                    ignore_eos=True,
                    temperature=temperature,
                    seed=5,
                    drafter=drafter,
                    plan=SERIAL,
                )
                texts[drafter] = done.text
                accepted += done.speculation.accepted if drafter != "none" else 0
            assert len(set(texts.values())) == 1, texts
            assert accepted > 0
