"""The Processor API: operators that users write themselves (KIP-478, KIP-820).

Each task creates its own processor by calling the class, or the function without arguments, that was passed to
``KStream.process``, ``KStream.process_values`` or ``Topology.add_processor``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, overload

from typing_extensions import TypeVar

from .clocks import Punctuation as Punctuation
from .common.durations import Duration, Moment
from .context.store_interfaces import StoreBuilder
from .context.task_context import Cancellable
from .records import Record, RecordMetadata, TaskId
from .serdes.serdes import Serde

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut")
VOut = TypeVar("VOut")
#: The type of a store, such as KeyValueStore[str, int].
S = TypeVar("S")
#: Key and value that a context forwards; a context without parameters forwards any.
KForward = TypeVar("KForward", contravariant=True, default=Any)
VForward = TypeVar("VForward", contravariant=True, default=Any)


#: Kafka Streams' name of Punctuation.
PunctuationType = Punctuation


#: The statistic that a metric shows of its sensor's values. avg, max, min and rate (values per second) cover the last
#: ``metrics.num.samples`` windows; total is the number of values, sum their sum, value the last one.
Statistic = Literal["avg", "max", "min", "rate", "total", "sum", "value"]


class Sensor(Protocol):
    """Records values; its metrics show statistics of them (Kafka: Sensor)."""

    def record(self, value: float = 1.0) -> None:
        """Record a value, also in the parents. Raises TypeError or ValueError unless it is a number."""

    def add(self, name: str, statistic: Statistic, group: str, tags: Mapping[str, str] | None = None) -> None:
        """Add a metric. It has the tag ``thread-id`` in addition to the given ones.

        Raises ValueError if another sensor has a metric of this name, group and tags, or for an unknown statistic.
        """


class StreamsMetrics(Protocol):
    """The metrics that processors add: one registry for each stream thread (Kafka Streams: StreamsMetrics).

    They are in ``KafkaStreams.metrics()`` and at ``/metrics``, with the tag ``thread-id``. The same arguments return
    the same sensor in all tasks of the thread.
    """

    def add_rate_total_sensor(
        self, scope_name: str, entity_name: str, operation_name: str, tags: Mapping[str, str] | None = None
    ) -> Sensor:
        """Return a sensor that counts: ``<operation>-rate`` and ``<operation>-total``.

        The group is ``stream-<scope>-metrics``; a tag ``<scope>-id`` has the entity's name.
        """

    def add_latency_rate_total_sensor(
        self, scope_name: str, entity_name: str, operation_name: str, tags: Mapping[str, str] | None = None
    ) -> Sensor:
        """Return a sensor for times: beside rate and total ``<operation>-latency-avg`` and ``-latency-max``."""

    def add_sensor(self, name: str, *parents: Any) -> Sensor:
        """Return a sensor without metrics; add some with ``add``. Its values are also recorded by its parents."""

    def remove_sensor(self, sensor: Any) -> None:
        """Remove a sensor with its metrics."""

    def metrics(self) -> list[Any]:
        """Return a ``Metric`` for each metric that was added: ``name``, ``group``, ``tags``, ``value``."""


class ProcessingContext(Protocol):
    """The interface of a task for every processor (Kafka Streams: ProcessingContext)."""

    @property
    def application_id(self) -> str:
        """The application's id."""

    @property
    def task_id(self) -> TaskId:
        """The task."""

    @property
    def app_configs(self) -> Mapping[str, Any]:
        """The application's effective configuration."""

    def app_configs_with_prefix(self, prefix: str) -> Mapping[str, Any]:
        """Return the settings whose names begin with a prefix, by the rest of their names."""

    @property
    def key_serde(self) -> Serde:
        """The default serde of keys, ``default.key.serde``; raises ConfigError if there is none."""

    @property
    def value_serde(self) -> Serde:
        """The default serde of values, ``default.value.serde``; raises ConfigError if there is none."""

    @property
    def state_dir(self) -> Path:
        """The task's directory, for custom files; it is deleted with the task's state. StreamsError on Spark."""

    @property
    def metrics(self) -> StreamsMetrics:
        """The registry for custom metrics; StreamsError on Spark."""

    def record_metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the input record; None in a punctuation."""

    @overload
    def get_state_store(self, name: str) -> Any: ...
    @overload
    def get_state_store(self, name: StoreBuilder[S]) -> S: ...
    def get_state_store(self, name: str | StoreBuilder) -> Any:
        """Return a store that the processor is connected to; raises StreamsError if it is not.

        name: its name, or the StoreBuilder that declares it, from which the result gets its type.
        """

    def schedule(
        self,
        interval: Duration,
        punctuation: Punctuation,
        callback: Callable[[int], None],
        start_time: Moment | None = None,
    ) -> Cancellable:
        """Call callback(timestamp in ms) every interval; raises StreamsError for an interval below 1 ms.

        start_time: when it is called first, and from when intervals are counted (KIP-1146): a ``datetime`` with a time
        zone, or int milliseconds since the epoch. One in the past counts as if it had been called since then. Without
        it, the first call comes with the next record (stream time), or after an interval (wall clock).
        """

    def timer(self, key: object, at: Moment, punctuation: Punctuation) -> None:
        """Set the timer of a key: ``on_timer(key, at)`` of the processor is called once the clock has reached at.

        It replaces the key's timer, if there is one. Needs a connected Stores.timer_store_builder. at: a
        ``datetime`` with a time zone, or int milliseconds since the epoch; a time that has passed counts as now. Raises
        StreamsError without such a store, and in on_timer() for a time that is not later than its own.
        """

    def cancel_timer(self, key: object) -> None:
        """Cancel the timer of a key, if there is one."""

    def commit(self) -> None:
        """Request a commit as soon as the current record is processed."""

    def current_system_time_ms(self) -> int:
        """Return the task's wall clock in milliseconds."""

    def current_stream_time_ms(self) -> int:
        """Return the highest timestamp (ms) that the task has seen."""


class ProcessorContext(ProcessingContext, Protocol[KForward, VForward]):
    """The context of a Processor (Kafka Streams: processor.api.ProcessorContext).

    Its type parameters are the types of the key and value that it forwards.
    """

    def forward(self, record: Record[KForward, VForward], child: str | None = None) -> None:
        """Send a record to all children, or to the child node of this name.

        Raises StreamsError for an unknown child, and for a negative timestamp.
        """


class FixedKeyProcessorContext(ProcessingContext, Protocol[KForward, VForward]):
    """The context of a FixedKeyProcessor. Its type parameters are those of ProcessorContext."""

    def forward(self, record: Record[KForward, VForward], child: str | None = None) -> None:
        """Like ProcessorContext.forward; raises StreamsError if the key is not the input record's."""


class Processor(ABC, Generic[KIn, VIn, KOut, VOut]):
    """Processes records one by one; may change keys. ``self.context`` is set by init()."""

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Prepare for a task: stores can be fetched and punctuations scheduled here. Overriders call super().init()."""
        self.context = context

    @abstractmethod
    def process(self, record: Record[KIn, VIn]) -> None:
        """Process a record; results go to ``self.context.forward``."""

    def on_timer(self, key: KIn, at: int) -> None:
        """Handle the timer of a key, which was set for this time (ms since the epoch)."""
        raise NotImplementedError(f"{type(self).__name__} sets timers, but has no on_timer(key, at)")

    def close(self) -> None:
        """Release what the processor holds; called once when the task closes."""


class FixedKeyProcessor(ABC, Generic[KIn, VIn, VOut]):
    """Processes records one by one and keeps their keys, so that no repartitioning follows."""

    context: FixedKeyProcessorContext[KIn, VOut]

    def init(self, context: FixedKeyProcessorContext[KIn, VOut]) -> None:
        """Prepare for a task. Overriders call super().init()."""
        self.context = context

    @abstractmethod
    def process(self, record: Record[KIn, VIn]) -> None:
        """Process a record; results go to ``self.context.forward`` with the same key."""

    def on_timer(self, key: KIn, at: int) -> None:
        """Handle the timer of a key, which was set for this time (ms since the epoch). Results must have this key."""
        raise NotImplementedError(f"{type(self).__name__} sets timers, but has no on_timer(key, at)")

    def close(self) -> None:
        """Release what the processor holds; called once when the task closes."""


class ValueTransformerWithKey(ABC, Generic[KIn, VIn, VOut]):
    """Computes new values for the rows of a table, optionally with state (Kafka Streams: ValueTransformerWithKey).

    For KTable.transform_values. The context has no forward(): results are returned.
    """

    context: ProcessingContext

    def init(self, context: ProcessingContext) -> None:
        """Prepare for a task. Overriders call super().init()."""
        self.context = context

    @abstractmethod
    def transform(self, key: KIn, value: VIn | None) -> VOut | None:
        """Return the new value of a row, None for no row; value is None for a deleted or missing row.

        It is also called to read a row or its old value if the result is not kept in a store; record_metadata() of the
        context is None then.
        """

    def close(self) -> None:
        """Release what the transformer holds; called once when the task closes."""


#: Kafka Streams' names for base classes that keep the context.
ContextualProcessor = Processor
ContextualFixedKeyProcessor = FixedKeyProcessor

#: Makes one processor per task: a class, or a function without arguments. An optional attribute or method ``stores``
#: names StoreBuilders to add and connect (Kafka Streams: ConnectedStoreProvider).
ProcessorSupplier = Callable[[], Any]


def stores_of(supplier: ProcessorSupplier) -> tuple[StoreBuilder, ...]:
    """Return the StoreBuilders of a supplier's ``stores``, a collection or a method."""
    stores: object = getattr(supplier, "stores", None)
    if callable(stores):
        stores = stores()
    return () if stores is None or not isinstance(stores, Iterable) else tuple(stores)
