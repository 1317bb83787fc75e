"""The trainer of `speculators`, as a process in the environment that has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from specsplit.errors import Incompatible, InvalidRequest, Unavailable, quoted
from specsplit.model.heads.config import architecture
from specsplit.text.json_file import read_json
from specsplit.training.lessons import Lessons
from specsplit.training.meter import Meter
from specsplit.training.order import HeadOrder
from specsplit.values import DrafterKind

VERSION: Final = "0.9"
"""The versions of speculators that are known."""
CHECKPOINTS: Final = "checkpoints"
LOG: Final = "trainer.log"
_MOST_TOKENS: Final = 32_000
"""Tokens that a head proposes, where nobody says how many: as many as published heads have."""
_TYPES: Final = {DrafterKind.DFLASH: "dflash2"}
"""The trainer's names of kinds that are other than this project's."""
_SELECTOR_RANK: Final = 256
"""The rank that published drafters have; a quarter of the target's width where that is less."""
CAUSAL: Final = "causal"
"""An option of speculators_trainer.py and not of `speculators train`."""
_PROGRAM: Final = Path(__file__).with_name("speculators_trainer.py")
_USUAL: Final = Path("build/speculators/bin/python")
_HOW: Final = (
    "make an environment for it: python3 -m venv build/speculators && build/speculators/bin/pip install 'speculators==0.9.*'; "
    "it is found there, or wherever --trainer says"
)


@dataclass(frozen=True)
class Trainer:
    """A Python that has the trainer."""

    python: Path
    versions: dict[str, str]
    """Of speculators, transformers and torch."""

    @classmethod
    def find(cls, named: Path | None, target: Path) -> Trainer:
        """Find the trainer, and see that it can read the target's config.

        named: its Python; None: this one or the usual one. Raises InvalidRequest, Unavailable or Incompatible, saying what to do.
        """
        if named is not None and not named.is_file():
            raise InvalidRequest(
                "--trainer",
                f"there is no program {named}; name the Python of an environment that has speculators; {_HOW}",
            )
        python = named or (Path(sys.executable) if find_spec("speculators") else _USUAL)
        if not python.is_file():
            raise Unavailable(f"the trainer of speculators is neither installed here nor at {_USUAL}: {_HOW}")
        done = subprocess.run([python, _PROGRAM, "check", target], capture_output=True, text=True, check=False)
        if done.returncode:
            said = _last_line(done.stderr)
            if "No module named" in said or "No package metadata" in said:
                raise Unavailable(f"{python} lacks what the trainer needs: {said}; {_HOW}")
            raise Incompatible(f"the transformers that {python} has cannot read the config of {target}: {said}")
        versions: dict[str, str] = json.loads(done.stdout)["versions"]
        if not versions["speculators"].startswith(f"{VERSION}."):
            raise Incompatible(f"{python} has speculators {versions['speculators']}, expected {VERSION}: {_HOW}")
        return cls(python.absolute(), versions)

    def train(self, lessons: Lessons, options: dict[str, Any], meter: Meter) -> tuple[Path, int]:
        """Train on lessons with options of `speculators train`, going on from the latest checkpoint if there is one.

        Returns the checkpoint that guesses the held-out texts best, and the steps of the whole training.
        Raises Unavailable, with the end of the log, if it fails.
        """
        words = [
            word
            for name, value in options.items()
            for word in (f"--{name}", *map(str, value if isinstance(value, tuple) else (value,)))
        ]
        total = 0
        with self._running(lessons, words) as events:
            for line in events:
                event = json.loads(line)
                total = event.get("steps", total)
                if "step" in event:
                    meter(event["step"], max(total, event["step"]), f"loss {event['loss']:.3f}")
        checkpoints = lessons.folder / CHECKPOINTS
        return best_checkpoint(checkpoints), steps_done(checkpoints)

    @contextmanager
    def _running(self, lessons: Lessons, words: list[str]) -> Iterator[IO[str]]:
        log = lessons.folder / LOG
        command = [self.python, _PROGRAM, "train", lessons.folder.resolve(), str(len(lessons.learnt)), *words]
        with log.open("w", encoding="utf-8") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, cwd=lessons.folder
            )
            try:
                assert process.stdout is not None
                yield process.stdout
            except BaseException:
                process.kill()
                raise
            finally:
                process.communicate()
        if process.returncode:
            raise Unavailable(
                f"the trainer failed: {_last_line(log.read_text(encoding='utf-8'))}; all that it said is in {log}"
            )


def options_of(order: HeadOrder, lessons: Lessons, layers: tuple[int, ...]) -> dict[str, Any]:
    """Return what `speculators train` is given for an order. `layers`: the hidden states that the head reads."""
    vocabulary = architecture(read_json(order.target / "config.json")).vocab_size
    drafted = min(order.draft_vocab or _MOST_TOKENS, vocabulary)
    longest = max(len(lessons.text(index).tokens) for index in range(lessons.held_out.stop))
    batch, windows = max(order.batch_tokens, longest), order.windows or (0,) * order.decoder_layers
    return {
        "verifier-name-or-path": order.target.resolve(),
        "speculator-type": _TYPES.get(order.kind, order.kind.value),
        "target-layer-ids": layers,
        "epochs": order.epochs,
        "lr": order.learning_rate,
        "total-seq-len": batch,
        "train-data-ratio": (len(lessons.learnt) + 0.5) / lessons.held_out.stop,
        "checkpoint-freq": 0.25,
        "num-workers": 0,
        "seed": order.seed,
        "num-layers": len(windows),
        **_of_windows(windows),
        **({"draft-vocab-size": drafted} if drafted < vocabulary and order.kind is not DrafterKind.DFLASH else {}),
        **(_of_blocks(order, batch) if order.kind.drafts_blocks else {"ttt-steps": order.ahead, "mask-token-id": 0}),
    }


def _of_windows(windows: tuple[int, ...]) -> dict[str, Any]:
    """Return what the layers see, by their windows: 0 means all."""
    full = tuple(layer for layer, window in enumerate(windows) if not window)
    return {
        **({"full-attention-indices": full} if full else {}),
        **({"sliding-window": max(windows)} if any(windows) else {}),
    }


def _of_blocks(order: HeadOrder, batch: int) -> dict[str, Any]:
    """Return the size of a block, how many a step has, together `batch` tokens, and what its tokens see. An empty value: a flag."""
    first_predicts = order.causal or order.kind is DrafterKind.DSPARK
    size = order.ahead + (not first_predicts)
    sight = {"no-sliding-window-non-causal": (), CAUSAL: ()} if order.causal else {"sliding-window-non-causal": ()}
    width = architecture(read_json(order.target / "config.json")).hidden_size
    return {
        "block-size": size,
        "max-anchors": max(1, batch // size),
        "sample-from-anchor" if first_predicts else "no-sample-from-anchor": (),
        **({"selector-rank": min(_SELECTOR_RANK, width // 4)} if order.kind is DrafterKind.DFLASH else {}),
        **sight,
    }


def best_checkpoint(folder: Path) -> Path:
    """Return the checkpoint that the trainer calls the best, or else the latest. Raises Unavailable if there is none."""
    best = folder / "checkpoint_best"
    return best.resolve() if (best / "model.safetensors").is_file() else _latest(folder)


def steps_done(folder: Path) -> int:
    """Return the steps that had been done at the latest checkpoint. Raises Unavailable if there is none."""
    return read_json(_latest(folder) / "training_state.json")["global_step"]


def _latest(folder: Path) -> Path:
    numbered = [(int(each.name), each) for each in folder.glob("*") if each.name.isdigit() and not each.is_symlink()]
    if not numbered:
        raise Unavailable(f"the trainer left no checkpoint in {folder}; see {LOG} beside it")
    return max(numbered)[1]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return quoted(lines[-1]) if lines else "it said nothing"
