from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speedup import chat
from specsplit.errors import InvalidRequest


def test_without_the_chat_model_the_benchmark_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=r"build/chat/target; fetch it with: python -m scripts\.chat_model"):
        chat()
