"""What `specsplit train-head` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specsplit.errors import InvalidRequest, Unsupported
from specsplit.values import DrafterKind
from specsplit.values.bounds import INT32_MAX
from specsplit.values.sampling import MAX_TEMPERATURE

WITH_TRAINER: Final = (DrafterKind.EAGLE3, DrafterKind.DFLASH, DrafterKind.DSPARK)
"""The kinds that the trainer of `speculators` trains."""
KINDS: Final = (*WITH_TRAINER, DrafterKind.EAGLE, DrafterKind.MULTI_LAYER_EAGLE)
"""The kinds that can be trained."""
_AHEAD: Final = 4
_AHEAD_IN_BLOCK: Final = 7
_LAYERS_OF_BLOCKS: Final = 5
_OF_BLOCKS: Final = tuple(kind for kind in KINDS if kind.drafts_blocks)
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, MAX_TEMPERATURE),
    "max_new_tokens": (1, INT32_MAX),
    "max_length": (32, INT32_MAX),
    "samples": (2, INT32_MAX),
    "held_out": (1, INT32_MAX),
    "epochs": (1, INT32_MAX),
    "batch_tokens": (32, INT32_MAX),
    "learning_rate": (0, 1),
    "depth": (1, 64),
    "num_layers": (1, 64),
    "draft_vocab": (1, INT32_MAX),
    "intermediate_size": (1, INT32_MAX),
    "seed": (0, INT32_MAX),
}
"""The least and the most of every number."""


@dataclass(frozen=True)
class HeadOrder:
    """One head to be trained. Raises InvalidRequest or Unsupported, naming the option, for what cannot be."""

    target: Path
    data: tuple[Path, ...]
    """Files of conversations, prompts or texts."""
    kind: DrafterKind
    out: Path
    """The head's folder; until it is done its subfolder `training` holds what a later run goes on from."""
    trainer: Path | None = None
    """The Python that has `speculators`; None: this one, or that in build/speculators."""
    as_written: bool = False
    """Learn from answers and texts as they stand in the files, in the place of those that the target writes."""
    temperature: float = 0.7
    """Of what the target writes. Held-out texts are always written greedily."""
    max_new_tokens: int = 256
    """Of what the target writes to one prompt."""
    max_length: int = 1024
    """Tokens of one text, prompt included; no more than the target's context."""
    samples: int | None = None
    """Texts at most, held-out ones included; None: all."""
    held_out: int | None = None
    """Texts that are not learnt from; None: one in twenty."""
    epochs: int = 5
    batch_tokens: int = 2048
    """Tokens of one step of training, at least those of one text."""
    learning_rate: float = 1e-3
    depth: int | None = None
    """Tokens ahead that the head learns, and that its figures are measured at; the layers of a multi_layer_eagle head. None: 4, and 7 of a
    block drafter."""
    layers: tuple[int, ...] = ()
    """Hidden states that an eagle3 head or a block drafter reads, k behind k decoder layers; empty: 2, L // 2 and L - 3 of L layers."""
    num_layers: int | None = None
    """Decoder layers of an eagle3 head or a block drafter; None: 1 and 5."""
    windows: tuple[int, ...] = ()
    """By decoder layer of a block drafter: how many committed tokens, the last of them, it sees, 0 for all; none but 0 and one other
    number. Empty: all layers see all."""
    causal: bool = False
    """In the blocks of a block drafter a token sees those before it alone, and the first predicts the next, as in a language model; else
    they see one another, and predictions are as usual for the kind."""
    draft_vocab: int | None = None
    """Tokens that an eagle3 or dspark head proposes, those that are most frequent; None: all, 32,000 at most."""
    intermediate_size: int | None = None
    """Width of the MLPs of the layers of a multi_layer_eagle head; None: the target's."""
    seed: int = 0
    dtype: str = "float32"
    """That the target computes in."""
    device: str = "cpu"
    """The target's; the trainer takes an accelerator where it finds one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise Unsupported("--kind", f"{self.kind} is not trained here; expected {' or '.join(KINDS)}")
        if not self.target.is_dir():
            raise InvalidRequest("--target", f"there is no folder {self.target}; name the folder of the target model")
        if not (self.target / "config.json").is_file():
            raise InvalidRequest(
                "--target", f"{self.target} has no config.json; name a folder in the Hugging Face layout"
            )
        if not self.data:
            raise InvalidRequest("--data", "names no file; expected .jsonl or plain text")
        for file in self.data:
            if not file.is_file():
                raise InvalidRequest("--data", f"there is no file {file}; expected .jsonl or plain text")
        self._check_numbers()
        self._check_fit()

    @property
    def ahead(self) -> int:
        """Tokens ahead that the head learns."""
        return self.depth or (_AHEAD_IN_BLOCK if self.kind.drafts_blocks else _AHEAD)

    @property
    def decoder_layers(self) -> int:
        """Decoder layers of an eagle3 head or a block drafter."""
        return self.num_layers or (_LAYERS_OF_BLOCKS if self.kind.drafts_blocks else 1)

    def _check_numbers(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidRequest(option(name), f"is {value}, expected {least:,} to {most:,}")
        if not self.learning_rate:
            raise InvalidRequest("--learning-rate", "is 0, with which nothing is learnt")

    def _check_fit(self) -> None:
        for name in ("layers", "num_layers", "draft_vocab", "trainer"):
            value = getattr(self, name)
            if value and self.kind not in WITH_TRAINER:
                raise InvalidRequest(
                    option(name), f"is for {' or '.join(WITH_TRAINER)} alone, and --kind is {self.kind}"
                )
        if self.draft_vocab and self.kind is DrafterKind.DFLASH:
            raise InvalidRequest("--draft-vocab", "is not for dflash, whose drafters (DFlash 2) propose all tokens")
        for name in ("windows", "causal"):
            if getattr(self, name) and not self.kind.drafts_blocks:
                raise InvalidRequest(option(name), f"is for {' or '.join(_OF_BLOCKS)} alone, and --kind is {self.kind}")
        self._check_windows()
        if self.intermediate_size is not None and self.kind is not DrafterKind.MULTI_LAYER_EAGLE:
            raise InvalidRequest(
                "--intermediate-size", f"is for layers of multi_layer_eagle alone, and --kind is {self.kind}"
            )
        if len(set(self.layers)) < len(self.layers):
            raise InvalidRequest("--layers", f"names a layer twice: {', '.join(map(str, self.layers))}")

    def _check_windows(self) -> None:
        said = ", ".join(map(str, self.windows))
        if self.windows and (min(self.windows) < 0 or len({*self.windows} - {0}) > 1):
            raise InvalidRequest("--windows", f"is {said}, expected 0 and one other number at most, 1 or more")
        if self.windows and len(self.windows) != self.decoder_layers:
            raise InvalidRequest(
                "--windows",
                f"is {said}, of {len(self.windows)} layers; the drafter has {self.decoder_layers} (--num-layers)",
            )


def option(field: str) -> str:
    """Return the name of a field on the command line."""
    return "--" + field.replace("_", "-")
