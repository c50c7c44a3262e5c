"""An operator whose function takes a batch of records: map_batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ..common.kept_error import KeptError
from ..context.arrow_batches import arrow_columns
from ..context.batch_results import result_values
from ..context.error_handling import UNHANDLED
from ..context.task_context import Process, TaskContext
from ..errors import StreamsError
from ..records import Headers
from .operator import NodeContext, Operator
from .stateless import describe
from .waiting import Held, WaitingRecords


@dataclass(eq=False)
class KStreamMapBatches(Operator):
    """Replaces the values of up to max_records records by function(values), which keeps their number and order.

    max_wait_ms: how long the first record of a batch waits for others. as_arrow: whether the function takes a
    pyarrow.RecordBatch instead of a list. schema: its pyarrow.Schema, None for the fields of the values. splits:
    whether halves of a failed batch are tried, down to the records that fail alone.
    """

    reads_record_metadata = True
    stateless = True

    function: Callable[[Any], object]
    max_records: int
    max_wait_ms: int
    as_arrow: bool = False
    schema: Any = None
    splits: bool = False

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
        self._to_batch = arrow_columns(operator.schema)[0] if operator.as_arrow else None
        self._held: list[Held] = []
        self._due_ms = 0
        self._result: object = None
        forward = node.forward

        def take(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if type(self._result) is KeptError:
                self._result.raise_again()
            forward(key, self._result, timestamp, headers)

        self._take = node.guarded(node.own(take))

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
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
        results = self._outcomes([each.value for each in held]) if held else []
        for each, self._result in zip(held, results, strict=True):
            each.pass_on(self._task, self._take)
        self._result = None
        return len(held)

    def _outcomes(self, values: list[object]) -> list[object]:
        """Return the result for each value, or a KeptError, which is raised as the failure of its record."""
        try:
            return self._call(values)
        except Exception as error:  # noqa: BLE001 - the handler decides about each record
            kept = KeptError(error)
        if not self._operator.splits or len(values) == 1 or isinstance(kept.error, UNHANDLED):
            return [kept] * len(values)
        half = len(values) // 2
        return self._outcomes(values[:half]) + self._outcomes(values[half:])

    def _call(self, values: list[object]) -> list[object]:
        """Return the function's result for each value. None has no Arrow columns, and stays None."""
        if self._to_batch is None:
            return self._ask(values, len(values))
        rows = sum(value is not None for value in values)
        results = iter(self._ask(self._to_batch(values), rows) if rows else ())
        return [None if value is None else next(results) for value in values]

    def _ask(self, argument: object, count: int) -> list[object]:
        returned = self._timed(argument)
        results = result_values(returned)
        if results is None:
            raise StreamsError(
                f"The function of operator {self.name} must return a list, an array or a RecordBatch, "
                f"not {describe(returned)}"
            )
        if len(results) != count:
            raise StreamsError(
                f"The function of operator {self.name} must return one result for each of {count} records, "
                f"not {len(results)}"
            )
        return results

    def _timed(self, argument: object) -> object:
        self.times.calls += 1
        began = time.perf_counter()
        try:
            return self._operator.function(argument)
        finally:
            self.times.note(time.perf_counter() - began)

    @override
    def cancel(self) -> None:
        self._held.clear()
