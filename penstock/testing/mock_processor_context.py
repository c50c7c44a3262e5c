"""MockProcessorContext: tests of a single processor, without a topology (KIP-267)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.topology.common.durations import Duration, to_millis
from penstock.topology.errors import StreamsError
from penstock.topology.processor_api import Punctuation
from penstock.topology.records import Record, RecordMetadata, TaskId
from penstock.topology.serdes.serdes import Serde, resolve_serde
from penstock.workers.metrics.custom_metrics import CustomMetrics
from penstock.workers.metrics.sensors import Sensor


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """A record that the processor has forwarded; child is the given name, or None for all children."""

    record: Record[Any, Any]
    child: str | None = None


@dataclass(slots=True)
class CapturedPunctuator:
    """A punctuation that the processor has scheduled; call ``punctuator(timestamp in ms)`` to run it."""

    interval_ms: int
    type: Punctuation
    punctuator: Callable[[int], None]
    cancelled: bool = field(default=False)

    def cancel(self) -> None:
        """Mark it as canceled, as the processor would."""
        self.cancelled = True


class MockProcessorContext:
    """The context of a Processor or FixedKeyProcessor under test; it captures the processor's calls.

    config: returned by ``app_configs``. state_dir: returned by ``state_dir``. Stores are the test's own:
    add_state_store(name, store). ``metrics.metrics()`` returns the metrics that the processor has added.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        task_id: TaskId | None = None,
        state_dir: Path | str | None = None,
    ) -> None:
        self.app_configs: Mapping[str, Any] = dict(config or {})
        self.application_id: str = self.app_configs.get("application.id", "mock-processor-context")
        self.task_id = task_id or TaskId(0, 0)
        self.metrics = CustomMetrics({"thread-id": "MockProcessorContext"}, Sensor, lambda: self._system_time_ms)
        self._state_dir = state_dir
        self._metadata: RecordMetadata | None = None
        self._stores: dict[str, Any] = {}
        self._forwarded: list[CapturedForward] = []
        self._punctuators: list[CapturedPunctuator] = []
        self._committed = False
        self._system_time_ms = 0
        self._stream_time_ms = -1

    @property
    def key_serde(self) -> Serde[Any]:
        """The default serde of keys; raises ConfigError if the config names none."""
        return resolve_serde(None, self.app_configs, True, "MockProcessorContext")

    @property
    def value_serde(self) -> Serde[Any]:
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

    def add_state_store(self, name: str, store: Any) -> None:
        """Make a store available to the processor."""
        self._stores[name] = store

    def get_state_store(self, name: str) -> Any:
        """Return a store; raises KeyError if it was not added."""
        return self._stores[name]

    def schedule(
        self, interval: Duration, punctuation: Punctuation, callback: Callable[[int], None]
    ) -> CapturedPunctuator:
        """Capture a punctuation; callback(timestamp) runs only if the test calls it.

        interval: ``timedelta`` or ms; TypeError for other types.
        """
        captured = CapturedPunctuator(to_millis(interval, "interval"), punctuation, callback)
        self._punctuators.append(captured)
        return captured

    def scheduled_punctuators(self) -> list[CapturedPunctuator]:
        """Return the scheduled punctuations, in order."""
        return list(self._punctuators)

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
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
