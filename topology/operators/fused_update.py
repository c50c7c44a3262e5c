"""Generates code that updates the row of a key in a fused loop, wherever the row is: see fusion.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .counting import count_aggregator, count_initializer

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names


class FusedUpdate(ABC):
    """Generates the update of the row (value, timestamp) of one key. Subclasses know where the row is."""

    def __init__(self, code: LoopCode) -> None:
        self._code = code
        self._row, self._old = code.fresh("row"), code.fresh("old")
        self._new, self._newest = code.fresh("new"), code.fresh("newest")

    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        """Generate new = aggregator(key, value, old), where old is initializer() for a new key."""
        code, old, new = self._code, self._old, self._new
        is_count = counts(initializer, aggregator)
        self._look_up(f"{old} = {'0' if is_count else code.bind(initializer, 'initializer') + '()'}")
        if is_count:
            code.emit(f"{new} = {old} + 1")
        else:
            code.emit(f"{new} = {code.bind(aggregator, 'aggregator')}({names.key}, {names.value}, {old})")
        self._put(is_count)

    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        """Generate new = reducer(old, value), or new = value for a new key."""
        new, value = self._new, names.value
        self._look_up(f"{new} = {value}", f"{new} = {self._code.bind(reducer, 'reducer')}({self._old}, {value})")
        self._put(is_count=False)

    @property
    def replaces(self) -> bool:
        """Whether replace is supported."""
        return True

    @abstractmethod
    def replace(self, names: Names) -> None:
        """Generate the replacement of the row's value, where None deletes the row; only if replaces is true."""

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
        """Generate the lookup of the row into its variable, None if there is none."""

    @abstractmethod
    def _unpack(self) -> None:
        """Generate the assignment of the row's value to old, and of the later timestamp to newest."""

    def _keep_newest(self) -> None:
        """Generate code that keeps the later timestamp, where newest holds that of the row."""
        with self._code.block(f"if timestamp > {self._newest}:"):
            self._code.emit(f"{self._newest} = timestamp")

    @abstractmethod
    def _put(self, is_count: bool) -> None:
        """Generate the put of the new value and the newest timestamp. is_count: the value is a count, never None."""


def counts(initializer: Callable[[], Any], aggregator: Callable[..., Any]) -> bool:
    """Return whether these are the functions of count()."""
    return aggregator is count_aggregator and initializer is count_initializer
