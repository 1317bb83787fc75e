"""What the verifiers of a cluster serve together: models, and adapters by name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from specsplit.errors import Unavailable
from specsplit.values import Adapter, ModelInfo
from specsplit_coordinator.members.adapter_names import AdapterNames


class Served:
    """The models of the verifiers that are there, or were a moment ago.

    What requests ask for is found by name, whatever the number of verifiers and adapters; it is put together anew by the first that asks
    after a verifier has come, gone or been updated with what no other serves.
    """

    def __init__(self) -> None:
        self._models: Counter[ModelInfo] = Counter()
        self._names = AdapterNames()
        self._by_adapter: Mapping[str, ModelInfo] = {}
        """The model of those that have the adapter of that name, and of all under the empty name; empty: it is not put together yet."""

    def __contains__(self, model: ModelInfo) -> bool:
        return model in self._models

    def __iter__(self) -> Iterator[ModelInfo]:
        """Iterate over the models, each once, in the order in which the first verifier has come with it."""
        return iter(self._models)

    def joined(self, model: ModelInfo) -> None:
        """A verifier has come with this model."""
        if model not in self:
            self._names.joined(model.adapters, self._adapters)
        self._count(model, 1)

    def left(self, model: ModelInfo) -> None:
        """A verifier with this model is gone for good."""
        self._count(model, -1)

    def updated(self, before: ModelInfo, model: ModelInfo) -> None:
        """A verifier has the adapters of `model` now."""
        self._count(before, -1)
        self._count(model, 1)
        self._names.updated(before.adapters, model.adapters, self._adapters)
        self._by_adapter = {}

    def model(self, adapter: str = "") -> ModelInfo:
        """The model of the verifiers that have this adapter; of several, that with the shortest context. It tells the adapters of all,
        and of each name that for which it stands (`AdapterNames`).

        Raises Unavailable if there is no verifier, InvalidRequest, naming those that there are, for an adapter that none has.
        """
        if not self._models:
            raise Unavailable(
                "no verifier has joined the cluster; start one, or try again when it has loaded its model"
            )
        if not self._by_adapter:
            self._by_adapter = self._put_together()
        if adapter not in self._by_adapter:
            self._by_adapter[""].adapter(adapter)  # raises: it has none of that name
        return self._by_adapter[adapter]

    def _count(self, model: ModelInfo, more: int) -> None:
        known = model in self
        self._models[model] += more
        if not self._models[model]:
            del self._models[model]
        if known is not (model in self):
            self._by_adapter = {}

    def _put_together(self) -> dict[str, ModelInfo]:
        whole = replace(min(self._models, key=_context), adapters=self._names.among(self._adapters))
        contexts = _shortest_contexts(self._models)
        return {"": whole} | {each.name: replace(whole, max_context=contexts[each]) for each in whole.adapters}

    @property
    def _adapters(self) -> Collection[Adapter]:
        """All that they have, each once."""
        return dict.fromkeys(each for model in self._models for each in model.adapters)


def _shortest_contexts(models: Iterable[ModelInfo]) -> dict[Adapter, int]:
    """Of each adapter the shortest context of the models that have it."""
    shortest: dict[Adapter, int] = {}
    for model in models:
        for adapter in model.adapters:
            shortest[adapter] = min(shortest.get(adapter, model.max_context), model.max_context)
    return shortest


def _context(model: ModelInfo) -> int:
    return model.max_context
