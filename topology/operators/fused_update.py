"""What aggregations write into a fused loop to update the row of a key, wherever it is: see fusion.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .counting import count_aggregator, count_initializer

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names


class FusedUpdate(ABC):
    """Writes how a record updates the row (value, timestamp) of one key; a subclass knows where the row is."""

    def __init__(self, code: LoopCode) -> None:
        self._code = code
        self._row, self._old = code.fresh("row"), code.fresh("old")
        self._new, self._newest = code.fresh("new"), code.fresh("newest")

    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        """Write new = aggregator(key, value, old), where old is initializer() for a new key."""
        code, old, new = self._code, self._old, self._new
        is_count = counts(initializer, aggregator)
        self._look_up(f"{old} = {'0' if is_count else code.bind(initializer, 'initializer') + '()'}")
        if is_count:
            code.emit(f"{new} = {old} + 1")
        else:
            code.emit(f"{new} = {code.bind(aggregator, 'aggregator')}({names.key}, {names.value}, {old})")
        self._put(is_count)

    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        """Write new = reducer(old, value), or the value itself for a new key."""
        new, value = self._new, names.value
        self._look_up(f"{new} = {value}", f"{new} = {self._code.bind(reducer, 'reducer')}({self._old}, {value})")
        self._put(is_count=False)

    @property
    def replaces(self) -> bool:
        """Whether replace can be written."""
        return True

    @abstractmethod
    def replace(self, names: Names) -> None:
        """Write how the value becomes the row's, None deletes it, whatever there was; only if replaces says so."""

    def _look_up(self, for_a_new_key: str, for_a_known_key: str | None = None) -> None:
        code = self._code
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(for_a_new_key)
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            self._unpack()
            if for_a_known_key is not None:
                code.emit(for_a_known_key)

    @abstractmethod
    def _find(self) -> None:
        """Write how the row gets into its variable, None if there is none."""

    @abstractmethod
    def _unpack(self) -> None:
        """Write how the row becomes the old value, and the later one of its and the record's timestamp."""

    def _keep_newest(self) -> None:
        """Write how the later timestamp is kept, where the variable has the row's."""
        with self._code.block(f"if timestamp > {self._newest}:"):
            self._code.emit(f"{self._newest} = timestamp")

    @abstractmethod
    def _put(self, is_count: bool) -> None:
        """Write what becomes of the new value and the newest timestamp. is_count: it is a count, never None."""


def counts(initializer: Callable[[], Any], aggregator: Callable[..., Any]) -> bool:
    """Return whether an aggregation is count()'s."""
    return aggregator is count_aggregator and initializer is count_initializer
