"""Arguments of ``KTable.suppress``: how long updates are held back, and the size of the buffer (KIP-328)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..common.durations import Duration, non_negative_millis
from ..common.naming import validate_name
from ..context.idle_time import IdleTimeout
from ..errors import TopologyError
from ..operators.suppress import SuppressedInternal


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """The buffer limits of a suppression, and the action when it is full (Kafka Streams: Suppressed.BufferConfig).

    Start from unbounded(), max_records(n) or max_bytes(n). A buffer that emits early when it is full cannot hold back
    until windows close, because results would not be final.
    """

    records_limit: int | None = None
    bytes_limit: int | None = None
    emits_early: bool = False
    logging: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def unbounded(cls) -> BufferConfig:
        """Buffer without limits."""
        return cls()

    @classmethod
    def max_records(cls, limit: int) -> BufferConfig:
        """Buffer up to this many keys; beyond that the oldest is emitted early."""
        return cls(records_limit=limit, emits_early=True)

    @classmethod
    def max_bytes(cls, limit: int) -> BufferConfig:
        """Buffer up to this many bytes; beyond that the oldest is emitted early."""
        return cls(bytes_limit=limit, emits_early=True)

    def with_max_records(self, limit: int) -> BufferConfig:
        """Return a copy that buffers at most this many keys."""
        return replace(self, records_limit=limit)

    def with_max_bytes(self, limit: int) -> BufferConfig:
        """Return a copy that buffers at most this many bytes."""
        return replace(self, bytes_limit=limit)

    def with_no_bound(self) -> BufferConfig:
        """Return a copy without limits."""
        return replace(self, records_limit=None, bytes_limit=None, emits_early=False)

    def shut_down_when_full(self) -> BufferConfig:
        """Return a copy that fails the task when it is full."""
        return replace(self, emits_early=False)

    def emit_early_when_full(self) -> BufferConfig:
        """Return a copy that emits the oldest update when it is full."""
        return replace(self, emits_early=True)

    def with_logging_disabled(self) -> BufferConfig:
        """Return a copy without a changelog: its contents are lost when the task moves."""
        return replace(self, logging=False, log_config={})

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> BufferConfig:
        """Return a copy with a changelog; config overrides the topic's settings."""
        return replace(self, logging=True, log_config=dict(config or {}))


@dataclass(frozen=True, slots=True)
class Suppressed:
    """How long updates of a table are held back; created by until_window_closes() or until_time_limit().

    time_to_wait_ms is None for until_window_closes, where the table's windows determine it. idle_timeout: when windows
    close without input.
    """

    buffer: BufferConfig
    time_to_wait_ms: int | None = None
    name: str | None = None
    idle_timeout: IdleTimeout | None = None

    @classmethod
    def until_window_closes(
        cls, buffer: BufferConfig | None = None, *, name: str | None = None, wall_clock: Duration | None = None
    ) -> Suppressed:
        """Emit one final result per key and window, when the window closes; tombstones are dropped.

        wall_clock: after this long without input, stream time follows the wall clock, so that windows close; for the
        aggregation of the table too, as an idle timeout of its sources. Without it only records close windows.
        Raises TopologyError for a buffer that emits early, and for a wall_clock below a millisecond.
        """
        buffer = buffer or BufferConfig.unbounded()
        if buffer.emits_early:
            raise TopologyError(
                "until_window_closes() needs a buffer that does not emit early: call shut_down_when_full() or "
                "with_no_bound() on it"
            )
        idle_timeout = None if wall_clock is None else IdleTimeout(wall_clock)
        return cls(buffer, name=name and validate_name(name), idle_timeout=idle_timeout)

    @classmethod
    def until_time_limit(
        cls, limit: Duration, buffer: BufferConfig | None = None, *, name: str | None = None
    ) -> Suppressed:
        """Emit the latest update of a key when the limit has passed since its first update was held back."""
        millis = non_negative_millis(limit, "The time limit of suppress")
        return cls(buffer or BufferConfig.unbounded(), millis, name=name and validate_name(name))

    def with_name(self, name: str) -> Suppressed:
        """Return a copy with an operator name; its buffer's store is ``<name>-store``."""
        return replace(self, name=validate_name(name))

    def resolve(self, grace_ms: int) -> SuppressedInternal:
        """Return the operator's parameters; grace_ms is how long the table's windows stay open after their end."""
        return SuppressedInternal(
            time_to_wait_ms=grace_ms if self.time_to_wait_ms is None else self.time_to_wait_ms,
            until_window_closes=self.time_to_wait_ms is None,
            max_records=self.buffer.records_limit,
            max_bytes=self.buffer.bytes_limit,
            emit_early_when_full=self.buffer.emits_early,
        )
