"""User-written processors (KIP-478, KIP-820)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.kernel.nodes import Node, RecordForward, UserProcessor

from ..common.arguments import check_type
from ..common.durations import Duration, Moment, epoch_millis, to_millis
from ..context.store_facades import for_readers
from ..context.store_interfaces import StoreBuilder
from ..context.task_context import Cancellable, Process
from ..context.timers import OnDue, TimerRows
from ..context.timestamp_extractors import TIMESTAMP_MAX, as_timestamp
from ..errors import StreamsError
from ..processor_api import Punctuation
from ..records import Headers, Record, make_record
from .operator import NodeContext, Operator
from .user_context import UserContext


class ProcessorOperator(Operator):
    """Runs one processor per task, which supplier() creates: a Processor, or with fixed_key a FixedKeyProcessor."""

    reads_record_metadata = True

    def __init__(self, supplier: Callable[[], Any], fixed_key: bool = False) -> None:
        self.supplier = supplier
        self.fixed_key = fixed_key

    @override
    def compile(self, node: NodeContext) -> Process | Node:
        task, processor = node.task, self.supplier()
        if processor is None or isinstance(processor, type):
            raise StreamsError(
                f"The supplier of {node.name} must return a new processor on each call, not {processor!r}"
            )
        context = _FixedKeyContext(node) if self.fixed_key else _ProcessorContext(node)
        context.fires_to(getattr(processor, "on_timer", None))
        node.on_init(lambda: processor.init(context))
        close = getattr(processor, "close", None)
        if close is not None:
            node.on_close(close)
        process_record = processor.process
        if not self.fixed_key:
            return UserProcessor(task, node.name, process_record, Record)

        def process_fixed_key(key: object, value: object, timestamp: int, headers: Headers) -> None:
            task.timestamp = timestamp
            task.headers = headers
            previous, context.key = context.key, key
            process_record(make_record(key, value, timestamp, headers))
            context.key = previous

        return process_fixed_key


#: There is no current record whose key forward() could check.
_NO_KEY = object()


class _Context(UserContext):
    """The contexts of processors and transformers in one task, without forward."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node.task, node.name)
        self._node = node
        self._forward = node.forward
        self._timers: TimerRows | None = None
        self.key: Any = _NO_KEY

    @property
    def state_dir(self) -> Path:
        return self._task.state_dir

    def get_state_store(self, name: str | StoreBuilder) -> Any:
        if isinstance(name, StoreBuilder):
            name = name.name
        if name not in self._node.store_names:
            raise StreamsError(
                f"Processor {self._node.name} has no access to state store {name}, because it is not connected to it. "
                "Name the store in process() or process_values(), in add_state_store() or in "
                "connect_processor_and_state_stores(), or return its builder from the supplier's stores."
            )
        return for_readers(self._node.store(name))

    def schedule(
        self,
        interval: Duration,
        punctuation: Punctuation,
        callback: Callable[[int], None],
        start_time: Moment | None = None,
    ) -> Cancellable:
        start_ms = None if start_time is None else epoch_millis(start_time, "The start time of a punctuation")
        interval_ms = to_millis(interval, "The interval of a punctuation")
        if interval_ms < 1:
            raise StreamsError(f"{self._node.name}: the minimum supported scheduling interval is 1 millisecond")
        punctuated, context = self._node.punctuated, self

        def punctuate(timestamp: int) -> None:
            previous, context.key = context.key, _NO_KEY
            try:
                punctuated(callback, timestamp)
            finally:
                context.key = previous

        return self._task.schedule(interval_ms, punctuation, punctuate, start_ms)

    def fires_to(self, on_timer: OnDue | None) -> None:
        """Let the processor's timers fire."""
        found = [store for name in self._node.store_names if isinstance(store := self._node.store(name), TimerRows)]
        if len(found) > 1:
            raise StreamsError(f"{self._node.name} is connected to two stores of timers; it can have one")
        if not found:
            return
        if on_timer is None:
            raise StreamsError(f"{self._node.name} is connected to timers, {found[0].name}: it needs on_timer(key, at)")
        (self._timers,) = found
        punctuated, context = self._node.punctuated, self

        def fire(key: object, at: int) -> None:
            previous, context.key = context.key, key
            try:
                punctuated(lambda timestamp: on_timer(key, timestamp), at)
            finally:
                context.key = previous

        self._timers.fires_to(fire)

    def timer(self, key: object, at: Moment, punctuation: Punctuation) -> None:
        check_type(punctuation, Punctuation, "The clock of a timer", "Punctuation.STREAM_TIME or WALL_CLOCK_TIME")
        self._own_timers().set_timer(key, epoch_millis(at, "The time of a timer"), punctuation)

    def cancel_timer(self, key: Any) -> None:
        self._own_timers().cancel_timer(key)

    def _own_timers(self) -> TimerRows:
        if self._timers is None:
            raise StreamsError(
                f"Processor {self._node.name} has no timers. Connect a store of Stores.timer_store_builder() to it, as "
                "any other store"
            )
        return self._timers

    def commit(self) -> None:
        self._task.request_commit()

    def current_system_time_ms(self) -> int:
        return self._task.wall_clock_ms()

    def current_stream_time_ms(self) -> int:
        return self._task.stream_time_ms

    def _forward_any(self, record: Record, child: str | None = None) -> None:
        task, (key, value, given, given_headers) = self._task, record
        if type(given) is not int or not 0 <= given <= TIMESTAMP_MAX:
            given = self._checked_timestamp(given)
        target = self._forward if child is None else self._node.children.get(child)
        if target is None:
            raise StreamsError(
                f"Unknown downstream node: {child} either does not exist or is not connected to {self._node.name}"
            )
        timestamp, headers = task.timestamp, task.headers
        target(key, value, given, given_headers)
        task.timestamp = timestamp
        task.headers = headers

    def _checked_timestamp(self, given: object) -> int:
        reason = f"its timestamp is {given!r}, but must not be negative"
        try:
            timestamp = as_timestamp(given)
        except (TypeError, ValueError) as error:
            timestamp, reason = -1, str(error)
        if timestamp < 0:
            raise StreamsError(f"{self._node.name} forwards a malformed record: {reason}")
        return timestamp


class _ProcessorContext(_Context):
    """The ProcessorContext of one processor in one task."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.forward: Callable[..., None] = RecordForward(
            node.task, node.name, node.child, Record, self._forward_any
        ).call


class _FixedKeyContext(_Context):
    """The FixedKeyProcessorContext of one processor in one task."""

    def forward(self, record: Record, child: str | None = None) -> None:
        key = self.key
        if key is not _NO_KEY and record.key is not key and record.key != key:
            raise StreamsError(
                f"{self._node.name} must keep the key of its records: it got {key!r} and forwards {record.key!r}. "
                "Use process() with a Processor to change keys."
            )
        self._forward_any(record, child)


class _ForwardingDisabledContext(_Context):
    """The context of a transformer in one task (Kafka Streams: ForwardingDisabledProcessorContext)."""

    def forward(self, record: Record, child: str | None = None) -> None:
        raise StreamsError(
            f"{self._node.name}: a transformer returns its result and cannot forward records. Use to_stream() and "
            "process() for that."
        )


def forwarding_disabled_context(node: NodeContext) -> object:
    """Return the ProcessingContext of a node's ValueTransformerWithKey."""
    return _ForwardingDisabledContext(node)
