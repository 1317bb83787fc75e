"""Runs the trainer of `speculators` 0.9 in the environment that has it, where nothing of specsplit is: this file is run by its path.

    python speculators_trainer.py check TARGET              can this environment train a head for the target?
    python speculators_trainer.py train FOLDER LEARNT [--causal] [OPTION ...]
                                                            train on the lessons in FOLDER, whose first LEARNT texts are not held out,
                                                            with options of `speculators train`; --causal: a token of a block sees those
                                                            before it alone

Events go to stdout, one JSON object a line: {"versions": {...}}, {"steps": n}, {"step": n, "loss": x}. All that the trainer says goes to
stderr. It ends when its stdin does, so that it does not outlive who started it.

What is other than in `speculators train`: it also runs without an accelerator, whose absence the trainer does not expect; checkpoints
have float32 in the place of bfloat16, and are put in their place whole, so that a run that is killed goes on as if it had not been;
half of the blocks that block drafters learn from begin with tokens that are known (`speculators_blocks`).
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TextIO

NEW: Final = "new"
OLD: Final = "old"
CAUSAL: Final = "--causal"
"""An option that is not of `speculators train`."""
_ON_CPU: Final = {"draft-attn-impl": "sdpa", "loss-implementation": "eager", "hidden-states-dtype": "float32"}


def main() -> None:
    """Do what the arguments say."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    command, place, *options = sys.argv[1:]
    if command == "check":
        _check(Path(place), events)
    else:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        _train(Path(place), int(options[0]), options[1:], events)


def publish(checkpoints: Path, epoch: int, keep: set[str]) -> None:
    """Put the checkpoint new/EPOCH in its place, whole, and remove those of other epochs, but for the names to `keep`."""
    place, old = checkpoints / str(epoch), checkpoints / OLD
    if place.exists():
        place.rename(old)
    (checkpoints / NEW / str(epoch)).rename(place)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(checkpoints / NEW)
    for each in _numbered(checkpoints):
        if each != place and each.name not in keep:
            shutil.rmtree(each)


def recover(checkpoints: Path) -> None:
    """Put things right behind a run that was killed while it published, and remove what it had not finished writing."""
    old = checkpoints / OLD
    whole = _numbered(checkpoints / NEW)
    if old.exists() and whole and not (checkpoints / whole[0].name).exists():
        whole[0].rename(checkpoints / whole[0].name)
    for each in (OLD, NEW):
        shutil.rmtree(checkpoints / each, ignore_errors=True)


def _numbered(folder: Path) -> list[Path]:
    return [
        each for each in sorted(folder.glob("*")) if each.name.isdigit() and each.is_dir() and not each.is_symlink()
    ]


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


def _tell(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


def _check(target: Path, events: TextIO) -> None:
    versions = {name: version(name) for name in ("speculators", "transformers", "torch")}
    from transformers import AutoConfig  # noqa: PLC0415

    AutoConfig.from_pretrained(target)
    _tell(events, versions=versions)


def _train(folder: Path, learnt: int, options: list[str], events: TextIO) -> None:
    import torch  # noqa: PLC0415
    from speculators.models.dflash.core import DFlashDraftModel  # noqa: PLC0415
    from speculators.train import checkpointer, cli, trainer  # noqa: PLC0415
    from speculators.train.config import TrainConfig  # noqa: PLC0415
    from speculators_blocks import teach_shown_tokens  # noqa: PLC0415

    teach_shown_tokens(DFlashDraftModel, causal=CAUSAL in options)
    on_cpu = torch.accelerator.current_accelerator(check_available=True) is None
    if on_cpu:
        checkpointer.get_current_device = lambda: "cpu"
        torch.accelerator.synchronize = lambda *_, **__: None  # pyright: ignore[reportAttributeAccessIssue]
    cli.Trainer = _telling(trainer.Trainer, events, on_cpu=on_cpu)
    trainer.SingleGPUCheckpointer = _whole(trainer.SingleGPUCheckpointer)
    recover(folder / "checkpoints")
    cli.main(TrainConfig.resolve(_words(folder, learnt, options, on_cpu=on_cpu)))


def _words(folder: Path, learnt: int, options: list[str], *, on_cpu: bool) -> list[str]:
    """The command line of `speculators train`."""
    given = {
        "data-path": _lay_out(folder, learnt),
        "hidden-states-path": folder / "hidden_states",
        "save-path": folder / "checkpoints",
        "on-missing": "raise",
        **(_ON_CPU if on_cpu else {}),
    }
    named = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return [*named, *(option for option in options if option != CAUSAL)]


def _whole(base: Any) -> type[Any]:
    """A checkpointer that writes weights and the optimizer's state as they are, so that nothing is lost between two runs."""
    import torch  # noqa: PLC0415

    class Checkpointer(base):
        def save_checkpoint(self, model: Any, optimizer: Any, epoch: int | str, *_: Any, **__: Any) -> None:
            super().save_checkpoint(model, optimizer, epoch, float_dtype=torch.float32)

    return Checkpointer


def _telling(base: Any, events: TextIO, *, on_cpu: bool) -> type[Any]:
    """A trainer that tells of its steps, and publishes its checkpoints whole."""

    class Trainer(base):
        def setup_trainer(self) -> None:
            super().setup_trainer()
            if on_cpu:
                self.local_rank = self.device_type = "cpu"

        def run_training(self) -> None:
            # Here, behind the trainer's own set-up of logging, which removes the handlers that it finds.
            logging.getLogger("speculators.metrics").addHandler(_Listener(events))
            _tell(events, steps=self.config.num_epochs * len(self.train_loader))
            super().run_training()

        def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
            if not isinstance(epoch, int):
                return  # interrupted, maybe between two halves of a step: the latest checkpoint stands
            place = self.checkpointer.path
            self.checkpointer.path = place / NEW
            try:
                super().maybe_save_checkpoint(epoch, local_step)
            finally:
                self.checkpointer.path = place
            best = self.checkpointer.read_best_epoch()
            publish(place, epoch, set() if best is None else {str(best)})

    return Trainer


class _Listener(logging.Handler):
    """Tells of every step that the trainer logs."""

    def __init__(self, events: TextIO) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        said: Any = record.msg
        if isinstance(said, dict) and "train" in said:
            _tell(self._events, step=said["global_step"] + 1, loss=said["train"]["loss"])


def _lay_out(folder: Path, learnt: int) -> Path:
    """Write the texts as the trainer reads them, unless that is done."""
    data = folder / "arrow"
    if data.exists():
        return data
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415

    texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    # A row reads a token and is asked for the one behind it, so the token in front of the answer counts too.
    masks = [[int(at >= text["answer"] - 1) for at in range(len(text["tokens"]))] for text in texts]
    lengths = [len(text["tokens"]) for text in texts]
    made = Dataset.from_dict({"input_ids": [text["tokens"] for text in texts], "loss_mask": masks, "seq_len": lengths})
    made.set_format("torch")
    unfinished = folder / "arrow.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    made.save_to_disk(str(unfinished))
    counts = Counter(token for text in texts[:learnt] for token in text["tokens"][text["answer"] :])
    torch.save(dict(counts), unfinished / "token_freq.pt")
    unfinished.rename(data)
    return data


if __name__ == "__main__":
    main()
