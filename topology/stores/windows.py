"""Time windows for aggregations and stream joins. All durations are ``timedelta`` or int milliseconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from typing_extensions import override

from ..common.durations import Duration, non_negative_millis, to_millis
from ..context.timestamp_extractors import TIMESTAMP_MAX
from ..errors import TopologyError
from ..records import Window


class EmitStrategy(Enum):
    """When a windowed aggregation emits results (KIP-825)."""

    ON_WINDOW_UPDATE = "window_update"
    ON_WINDOW_CLOSE = "window_close"


class Windows(ABC):
    """Windows that a timestamp alone determines (Kafka Streams: Windows). Subclass it for custom windows.

    size_ms and grace_ms are in milliseconds; a window closes grace_ms after its end.
    """

    size_ms: int
    grace_ms: int

    @abstractmethod
    def windows_for(self, timestamp: int) -> Mapping[int, Window]:
        """Return the windows that hold a timestamp (ms), by their start, in the order of their updates."""


def _init(instance: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


@dataclass(frozen=True, init=False)
class TimeWindows(Windows):
    """Windows of fixed size: tumbling, or hopping with an advance smaller than the size (Kafka Streams: TimeWindows).

    Each holds [start, start + size). Raises TopologyError for a size below 1 ms, a negative grace, or an advance
    outside 1 ms … size.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    def __init__(self, size: Duration, grace: Duration = 0, advance: Duration | None = None) -> None:
        size_ms = to_millis(size, "The window size")
        if size_ms <= 0:
            raise TopologyError(f"The window size must be larger than zero, got {size_ms} ms")
        advance_ms = size_ms if advance is None else to_millis(advance, "The window advance")
        if not 0 < advance_ms <= size_ms:
            raise TopologyError(
                f"Window advancement must be above zero and at most the window size, {size_ms} ms; got {advance_ms} ms"
            )
        _init(self, size_ms=size_ms, advance_ms=advance_ms, grace_ms=non_negative_millis(grace, "The grace period"))

    @classmethod
    def of_size_and_grace(cls, size: Duration, grace: Duration) -> TimeWindows:
        """Return tumbling windows (Kafka Streams: ofSizeAndGrace)."""
        return cls(size, grace)

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Return tumbling windows that close at their end (Kafka Streams: ofSizeWithNoGrace)."""
        return cls(size)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Return hopping windows of the same size that start at every advance."""
        return TimeWindows(self.size_ms, self.grace_ms, advance)

    @override
    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """Return them by ascending start."""
        size, advance = self.size_ms, self.advance_ms
        first = max(0, timestamp - size + advance) // advance * advance
        return {start: Window(start, start + size) for start in range(first, timestamp + 1, advance)}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAY_MS = 86_400_000
#: How much longer than its days a window can be when clocks are set back: since 1970 at most 7 hours, in Antarctica.
_SET_BACK_MS = 7 * 3_600_000
#: By unit: the days of the longest window, the first day of the window that has a day, and the first day of the next
#: window after a first day.
_CALENDAR: Mapping[str, tuple[int, Callable[[date], date], Callable[[date], date]]] = {
    "day": (1, lambda day: day, lambda first: first + timedelta(days=1)),
    "week": (7, lambda day: day - timedelta(days=day.weekday()), lambda first: first + timedelta(days=7)),
    "month": (31, lambda day: day.replace(day=1), lambda first: (first + timedelta(days=31)).replace(day=1)),
    "year": (366, lambda day: day.replace(month=1, day=1), lambda first: first.replace(year=first.year + 1)),
}


@dataclass(frozen=True, init=False)
class CalendarWindows(Windows):
    """The days, weeks (from Monday), months or years of a time zone; days have 23 or 25 hours when clocks change.

    unit: "day", "week", "month" or "year". tz: a name such as "Europe/Paris", or a ZoneInfo. size_ms is an upper limit,
    7 hours more than the days of the longest window: rows are kept that long, but a window ends where the next one
    starts. Raises TopologyError for other units, unknown time zones and a negative grace.
    """

    unit: str
    tz: ZoneInfo
    grace_ms: int

    def __init__(self, unit: str, tz: str | ZoneInfo = "UTC", grace: Duration = 0) -> None:
        if unit not in _CALENDAR:
            raise TopologyError(f"CalendarWindows are those of a {', '.join(_CALENDAR)}; got {unit!r}")
        try:
            zone = tz if isinstance(tz, ZoneInfo) else ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError, TypeError) as error:
            raise TopologyError(
                f"There is no time zone {tz!r}: use a name such as Europe/Paris, and install the package tzdata if the "
                "system has no time zones"
            ) from error
        _init(self, unit=unit, tz=zone, grace_ms=non_negative_millis(grace, "The grace period"))

    @property
    def size_ms(self) -> int:  # type: ignore[override]
        """The longest that a window may be, in ms."""
        return _CALENDAR[self.unit][0] * _DAY_MS + _SET_BACK_MS

    @override
    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """Return the only window, by its start."""
        window = self.window_of(timestamp)
        return {window.start: window}

    def window_of(self, timestamp: int) -> Window:
        """Return the window that holds a timestamp (ms). Raises ValueError if it does not end by the year 9999."""
        _, first_of, next_of = _CALENDAR[self.unit]
        try:
            first = first_of((_EPOCH + timestamp * _MILLISECOND).astimezone(self.tz).date())
            end_day = next_of(first)
            start, end = _midnight(first, self.tz), _midnight(end_day, self.tz)
            if timestamp >= end:  # clocks were set back to the day before, whose window had ended
                start, end = end, _midnight(next_of(end_day), self.tz)
        except (OverflowError, ValueError) as error:
            raise ValueError(
                f"The window of {timestamp} ms since 1970 is after the year 9999, where calendars end"
            ) from error
        return Window(max(start, 0), end)  # as in Kafka Streams, no window starts before 1970

    def window_end(self, start: int) -> int:
        """Return the end of the window that starts then (ms)."""
        return self.window_of(start).end


@lru_cache(maxsize=4096)
def _midnight(day: date, zone: ZoneInfo) -> int:
    """Return the time (ms) at which a day begins; it may begin at 1 o'clock, and midnight may come twice."""
    return (datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC) - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, init=False)
class UnlimitedWindows(Windows):
    """One window without an end (Kafka Streams: UnlimitedWindows). start is milliseconds since the epoch."""

    start_ms: int
    size_ms = TIMESTAMP_MAX
    grace_ms = 0  # it never closes

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise TopologyError(f"The start of an unlimited window must not be negative, got {start}")
        _init(self, start_ms=start)

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """Return the window that starts at 0."""
        return cls()

    def start_on(self, start: int) -> UnlimitedWindows:
        """Return the window that starts then (milliseconds since the epoch)."""
        return UnlimitedWindows(start)

    @override
    def windows_for(self, timestamp: int) -> dict[int, Window]:
        start = self.start_ms
        return {start: Window(start, TIMESTAMP_MAX)} if timestamp >= start else {}


@dataclass(frozen=True, init=False)
class SlidingWindows:
    """Windows around records that are at most difference apart (KIP-450, Kafka Streams: SlidingWindows).

    Each holds [start, start + difference]. Raises TopologyError for a negative difference or grace.
    """

    time_difference_ms: int
    grace_ms: int

    def __init__(self, difference: Duration, grace: Duration = 0) -> None:
        _init(
            self,
            time_difference_ms=non_negative_millis(difference, "The time difference of sliding windows"),
            grace_ms=non_negative_millis(grace, "The grace period"),
        )

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> SlidingWindows:
        """Return sliding windows (Kafka Streams: ofTimeDifferenceAndGrace)."""
        return cls(difference, grace)

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> SlidingWindows:
        """Return sliding windows without grace (Kafka Streams: ofTimeDifferenceWithNoGrace)."""
        return cls(difference)


@dataclass(frozen=True, init=False)
class SessionWindows:
    """Sessions of activity that a gap without records ends (Kafka Streams: SessionWindows).

    Each holds [first record, last record]. Raises TopologyError for a gap below 1 ms or a negative grace.
    """

    inactivity_gap_ms: int
    grace_ms: int

    def __init__(self, gap: Duration, grace: Duration = 0) -> None:
        gap_ms = to_millis(gap, "The inactivity gap of session windows")
        if gap_ms <= 0:
            raise TopologyError(f"The inactivity gap of session windows must be larger than zero, got {gap_ms} ms")
        _init(self, inactivity_gap_ms=gap_ms, grace_ms=non_negative_millis(grace, "The grace period"))

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: Duration, grace: Duration) -> SessionWindows:
        """Return session windows (Kafka Streams: ofInactivityGapAndGrace)."""
        return cls(gap, grace)

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: Duration) -> SessionWindows:
        """Return session windows without grace (Kafka Streams: ofInactivityGapWithNoGrace)."""
        return cls(gap)


@dataclass(frozen=True, init=False)
class CountWindows:
    """Windows of so many records of a key, in the order in which they arrive; with an advance below the size, hopping.

    A new window begins with every advance-th record. Kafka Streams has none. Raises TopologyError for a size below 1,
    or an advance outside 1 … size.
    """

    size: int
    advance: int

    def __init__(self, size: int, advance: int | None = None) -> None:
        if not isinstance(size, int) or size < 1:
            raise TopologyError(f"CountWindows need a size of at least 1 record, got {size!r}")
        advance = size if advance is None else advance
        if not isinstance(advance, int) or not 1 <= advance <= size:
            raise TopologyError(f"The advance of CountWindows is a number of records from 1 to {size}, got {advance!r}")
        _init(self, size=size, advance=advance)


@dataclass(frozen=True, init=False)
class JoinWindows:
    """How far apart two records may be to be joined (Kafka Streams: JoinWindows).

    A record of the right stream joins one of the left stream at timestamp t if its timestamp is in
    [t - before, t + after]. difference sets both; before and after override it, and may be negative as long as the
    interval is not. Raises TopologyError for an interval or grace below zero.
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    def __init__(
        self,
        difference: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
    ) -> None:
        if difference is None and before is None and after is None:
            raise TopologyError("JoinWindows needs a difference, or before and after")
        both = 0 if difference is None else to_millis(difference, "The time difference of join windows")
        before_ms = both if before is None else to_millis(before, "before of join windows")
        after_ms = both if after is None else to_millis(after, "after of join windows")
        if before_ms + after_ms < 0:
            raise TopologyError(
                f"The window interval before + after must not be negative, got {before_ms} + {after_ms} ms"
            )
        _init(self, before_ms=before_ms, after_ms=after_ms, grace_ms=non_negative_millis(grace, "The grace period"))

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> JoinWindows:
        """Return symmetric join windows (Kafka Streams: ofTimeDifferenceAndGrace)."""
        return cls(difference, grace=grace)

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> JoinWindows:
        """Return symmetric join windows without grace (Kafka Streams: ofTimeDifferenceWithNoGrace)."""
        return cls(difference)

    def before(self, before: Duration) -> JoinWindows:
        """Return join windows with another before."""
        return JoinWindows(before=before, after=self.after_ms, grace=self.grace_ms)

    def after(self, after: Duration) -> JoinWindows:
        """Return join windows with another after."""
        return JoinWindows(before=self.before_ms, after=after, grace=self.grace_ms)

    @property
    def size_ms(self) -> int:
        """The width of the interval, before + after."""
        return self.before_ms + self.after_ms
