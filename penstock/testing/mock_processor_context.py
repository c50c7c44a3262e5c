"""MockProcessorContext: tests of a single processor, without a topology (KIP-267)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, overload

from penstock.topology.common.durations import Duration, Moment, epoch_millis, to_millis
from penstock.topology.config.streams_config import settings_with_prefix
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.errors import StreamsError
from penstock.topology.processor_api import Punctuation, S
from penstock.topology.records import HeadersLike, Record, RecordMetadata, SentRecord, TaskId, as_headers
from penstock.topology.serdes.serdes import Serde, resolve_serde
from penstock.topology.stores.custom_store import CommitCallback, StateRestoreCallback, StateStore, StateStoreContext
from penstock.topology.stores.timer import Timer
from penstock.workers.metrics.custom_metrics import CustomMetrics
from penstock.workers.metrics.sensors import Sensor


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """A record that the processor has forwarded; child is the given name, or None for all children."""

    record: Record
    child: str | None = None


@dataclass(slots=True)
class CapturedPunctuator:
    """A punctuation that the processor has scheduled; call ``punctuator(timestamp in ms)`` to run it."""

    interval_ms: int
    type: Punctuation
    punctuator: Callable[[int], None]
    start_ms: int | None = None
    cancelled: bool = field(default=False)

    def cancel(self) -> None:
        """Mark it as canceled, as the processor would."""
        self.cancelled = True


class _MockStoreContext:
    """The StateStoreContext of one store, with the other members of its MockProcessorContext."""

    def __init__(self, processor_context: MockProcessorContext) -> None:
        self._processor_context = processor_context
        self._topic = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor_context, name)

    def register(self, store: StateStore, restore: StateRestoreCallback, commit: CommitCallback | None = None) -> None:
        self._topic = f"{self.application_id}-{store.name}-changelog"
        self._processor_context.add_state_store(store.name, store)

    def log_change(
        self, key: bytes, value: bytes | None, timestamp: int | None = None, headers: HeadersLike = None
    ) -> None:
        at = self._processor_context.current_stream_time_ms() if timestamp is None else timestamp
        change = SentRecord(self._topic, key, value, at, as_headers(headers), self.task_id.partition)
        self._processor_context.record_collector().append(change)


class MockProcessorContext:
    """The context of a Processor or FixedKeyProcessor under test; it captures the processor's calls.

    config: returned by ``app_configs``. state_dir: returned by ``state_dir``. Stores are the test's own:
    add_state_store(name, store). ``metrics.metrics()`` returns the metrics that the processor has added.
    """

    app_configs: Mapping[str, Any]
    application_id: str
    task_id: TaskId
    metrics: CustomMetrics

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        task_id: TaskId | None = None,
        state_dir: Path | str | None = None,
    ) -> None:
        self.app_configs = dict(config or {})
        self.application_id = self.app_configs.get("application.id", "mock-processor-context")
        self.task_id = task_id or TaskId(0, 0)
        self.metrics = CustomMetrics({"thread-id": "MockProcessorContext"}, Sensor, lambda: self._system_time_ms)
        self._state_dir = state_dir
        self._metadata: RecordMetadata | None = None
        self._stores: dict[str, object] = {}
        self._logged: list[SentRecord] = []
        self._forwarded: list[CapturedForward] = []
        self._punctuators: list[CapturedPunctuator] = []
        self._timers: dict[Any, Timer] = {}
        self._committed = False
        self._system_time_ms = 0
        self._stream_time_ms = -1

    @property
    def key_serde(self) -> Serde:
        """The default serde of keys; raises ConfigError if the config names none."""
        return resolve_serde(None, self.app_configs, True, "MockProcessorContext")

    @property
    def value_serde(self) -> Serde:
        """The default serde of values; raises ConfigError if the config names none."""
        return resolve_serde(None, self.app_configs, False, "MockProcessorContext")

    @property
    def state_dir(self) -> Path:
        """The test's directory; raises StreamsError without one."""
        if self._state_dir is None:
            raise StreamsError("This MockProcessorContext has no state_dir: MockProcessorContext(state_dir=tmp_path)")
        return Path(self._state_dir)

    def record_metadata(self) -> RecordMetadata | None:
        """Return the metadata of set_record_metadata."""
        return self._metadata

    def set_record_metadata(self, topic: str, partition: int, offset: int) -> None:
        """Set the origin of the input record."""
        self._metadata = RecordMetadata(topic, partition, offset)

    def set_current_system_time_ms(self, now_ms: int) -> None:
        """Set the wall clock."""
        self._system_time_ms = now_ms

    def set_current_stream_time_ms(self, now_ms: int) -> None:
        """Set stream time."""
        self._stream_time_ms = now_ms

    def current_system_time_ms(self) -> int:
        """Return the wall clock."""
        return self._system_time_ms

    def current_stream_time_ms(self) -> int:
        """Return stream time, -1 if it was not set."""
        return self._stream_time_ms

    def app_configs_with_prefix(self, prefix: str) -> Mapping[str, Any]:
        """Return the settings whose names begin with a prefix, by the rest of their names."""
        return settings_with_prefix(self.app_configs, prefix)

    def add_state_store(self, name: str, store: object) -> None:
        """Make a store available to the processor."""
        self._stores[name] = store

    def get_state_store_context(self) -> StateStoreContext:
        """Return the context for ``init`` of one custom store, which is then available to the processor."""
        return cast("StateStoreContext", _MockStoreContext(self))

    def record_collector(self) -> list[SentRecord]:
        """Return the changes that custom stores have logged, in order."""
        return self._logged

    @overload
    def get_state_store(self, name: str) -> Any: ...
    @overload
    def get_state_store(self, name: StoreBuilder[S]) -> S: ...
    def get_state_store(self, name: str | StoreBuilder) -> Any:
        """Return a store by its name or its StoreBuilder; raises KeyError if it was not added."""
        return self._stores[name.name if isinstance(name, StoreBuilder) else name]

    def schedule(
        self,
        interval: Duration,
        punctuation: Punctuation,
        callback: Callable[[int], None],
        start_time: Moment | None = None,
    ) -> CapturedPunctuator:
        """Capture a punctuation; callback(timestamp) runs only if the test calls it.

        interval: ``timedelta`` or ms; start_time: a ``datetime`` or ms. TypeError for other types.
        """
        start_ms = None if start_time is None else epoch_millis(start_time, "start_time")
        captured = CapturedPunctuator(to_millis(interval, "interval"), punctuation, callback, start_ms)
        self._punctuators.append(captured)
        return captured

    def scheduled_punctuators(self) -> list[CapturedPunctuator]:
        """Return the scheduled punctuations, in order."""
        return list(self._punctuators)

    def timer(self, key: object, at: Moment, punctuation: Punctuation) -> None:
        """Capture a timer; it fires only if the test calls the processor's on_timer. at: a ``datetime`` or ms."""
        self._timers[key] = Timer(epoch_millis(at, "The time of a timer"), punctuation)

    def cancel_timer(self, key: object) -> None:
        """Forget the timer of a key, if there is one."""
        self._timers.pop(key, None)

    def timers(self) -> dict[Any, Timer]:
        """Return the timers that are set, by key."""
        return dict(self._timers)

    def forward(self, record: Record, child: str | None = None) -> None:
        """Capture a forwarded record."""
        self._forwarded.append(CapturedForward(record, child))

    def forwarded(self, child: str | None = None) -> list[CapturedForward]:
        """Return the forwarded records, in order; with child only those for that child."""
        return [captured for captured in self._forwarded if child is None or captured.child in (None, child)]

    def reset_forwards(self) -> None:
        """Clear the forwarded records."""
        self._forwarded.clear()

    def commit(self) -> None:
        """Record a commit request."""
        self._committed = True

    def committed(self) -> bool:
        """Return whether a commit was requested."""
        return self._committed

    def reset_commit(self) -> None:
        """Clear the commit request."""
        self._committed = False
