"""What all heads have in common: the part of the target that they share, and a vocabulary that may be smaller than the target's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specsplit.model.heads.target import TargetEmbeddings
from specsplit.model.layers.cpu import CPU
from specsplit.model.layers.gpu import gpu_kit
from specsplit.model.layers.replacing import replace_layers
from specsplit.model.layers.weights import Held, held_tensors


class HeadModule(nn.Module):
    """Parameters outside `target` are the head's own; `layouts` knows what they are called in a checkpoint."""

    target_ids: Tensor | None
    """The target's id of each of the head's tokens [draft V]; None if the head has the target's vocabulary."""
    d2t: Tensor | None
    """[draft V] int64: target id less draft id."""
    t2d: Tensor | None
    """[V] bool: the tokens that it proposes."""

    def __init__(self, target: TargetEmbeddings) -> None:
        super().__init__()
        self.target = target
        self.register_buffer("target_ids", None, persistent=False)
        self.register_buffer("d2t", None)
        self.register_buffer("t2d", None)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        return self.target.dtype

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return self.target.embeddings.device

    def use_cpu_layers(self) -> None:
        """Replace modules by faster ones for a CPU, of the same numbers (`specsplit.model.layers.cpu`). It cannot be saved then.

        Raises LoadError if it does not run any more.
        """
        replace_layers(self, CPU, linear=True)
        self._try()

    def use_gpu_layers(self) -> None:
        """Replace modules by fused ones for a GPU, where there are kernels for it. It cannot be saved then. Raises LoadError too."""
        kit = gpu_kit(self.device)
        if kit is not None and replace_layers(self, kit):
            self._try()

    def _try(self) -> None:
        """Run what can be run without a target. Raises LoadError if it does not run."""

    def set_draft_tokens(self, target_ids: Tensor) -> None:
        """Set the target's ids [draft V] of the head's tokens, each once."""
        drafted = torch.arange(len(target_ids), device=target_ids.device)
        chosen = torch.zeros(self.target.vocabulary.size, dtype=torch.bool, device=target_ids.device)
        self.d2t = target_ids - drafted
        self.t2d = chosen.index_fill(0, target_ids, True)
        self.target_ids = target_ids

    def in_target(self, drafted: Tensor) -> Tensor:
        """Logits [..., draft V] -> float32 [..., V] over the target's vocabulary; -inf where the head has no token."""
        drafted = drafted.float()
        if self.target_ids is None:
            return drafted
        full = drafted.new_full((*drafted.shape[:-1], self.target.vocabulary.size), -torch.inf)
        full[..., self.target_ids] = drafted
        return full

    def held_tensors(self) -> Held:
        """All tensors of its weights, those that it shares with its target and the ids of its tokens among them."""
        ids = {} if self.target_ids is None else {"target_ids": self.target_ids}
        return {**held_tensors(self), **ids}

    def own_tensors(self) -> dict[str, Tensor]:
        """List parameters and buffers by their names in this module, but those of the target."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("target.")}
