"""An operator whose function takes a batch of records: map_batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ..context.task_context import Process, TaskContext
from ..errors import StreamsError
from ..records import Headers
from .operator import NodeContext, Operator
from .stateless import describe
from .waiting import Held, WaitingRecords


@dataclass(eq=False)
class KStreamMapBatches(Operator):
    """Replaces the values of up to max_records records by function(values), which keeps their number and order.

    max_wait_ms: how long the first record of a batch waits for others. columns: converts the values to the function's
    argument, and its result to values (topology/context/arrow_batches.py); None for lists.
    """

    reads_record_metadata = True
    stateless = True

    function: Callable[[Any], Any]
    max_records: int
    max_wait_ms: int
    columns: tuple[Callable[[Sequence[Any]], Any], Callable[[Any], Sequence[Any]]] | None = None

    @override
    def compile(self, node: NodeContext) -> Process:
        batch = Batch(self, node)
        node.waits(batch)
        return batch.process


class Batch(WaitingRecords):
    """The records of one task that wait for a full batch."""

    def __init__(self, operator: KStreamMapBatches, node: NodeContext) -> None:
        super().__init__(node.name)
        self._operator = operator
        self._task: TaskContext = node.task
        self._held: list[Held] = []
        self._due_ms = 0
        self._results: list[Any] = []
        self._error: BaseException | None = None
        self._index = 0
        forward = node.forward

        def take(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if self._error is not None:
                raise self._error
            forward(key, self._results[self._index], timestamp, headers)

        node.owns(take)
        self._take = node.guarded(take)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Add a record, and process the batch if it is full."""
        if not self._held:
            self._due_ms = self._task.wall_clock_ms() + self._operator.max_wait_ms
        self._held.append(self.hold(self._task, key, value, timestamp, headers))
        if len(self._held) >= self._operator.max_records:
            self.drain()

    @override
    def held(self) -> Sequence[Held]:
        return self._held

    @override
    def room(self) -> int:
        """A full batch is processed at once, so there is always room."""
        return self._operator.max_records

    @override
    def due_ms(self) -> int | None:
        return self._due_ms if self._held else None

    @override
    def advance(self) -> int:
        return self.drain() if self._held and self._task.wall_clock_ms() >= self._due_ms else 0

    @override
    def drain(self) -> int:
        held, self._held = self._held, []
        if held:
            self._error = None
            try:
                self._results = self._call([each.value for each in held])
            except Exception as error:  # noqa: BLE001 - raised for each record of the batch: the handler decides
                self._error = error
            for index, each in enumerate(held):
                self._index = index
                each.pass_on(self._task, self._take)
        return len(held)

    def _call(self, values: list[Any]) -> list[Any]:
        to_argument, to_values = self._operator.columns or (_same, _same)
        results = to_values(self._timed(to_argument(values)))
        if isinstance(results, str | bytes) or not hasattr(results, "__len__"):
            raise StreamsError(f"The function of operator {self.name} must return a list, not {describe(results)}")
        if len(results) != len(values):
            raise StreamsError(
                f"The function of operator {self.name} must return one result for each of {len(values)} records, "
                f"not {len(results)}"
            )
        return list(results)

    def _timed(self, argument: Any) -> Any:
        self.times.calls += 1
        began = time.perf_counter()
        try:
            return self._operator.function(argument)
        finally:
            self.times.note(time.perf_counter() - began)

    @override
    def cancel(self) -> None:
        self._held.clear()


def _same(values: Any) -> Any:
    return values
