"""Windows, durations and suppression: their contents, and refused declarations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
)
from penstock.topology.common.durations import to_millis


def test_durations_are_timedeltas_or_milliseconds() -> None:
    assert TimeWindows(timedelta(seconds=1), grace=timedelta(milliseconds=5)) == TimeWindows(1000, 5)
    assert to_millis(timedelta(days=-1), "x") == -86_400_000


@pytest.mark.parametrize("duration", [1.5, "5", None, True])
def test_other_durations_are_refused(duration: Any) -> None:
    with pytest.raises(TypeError, match="timedelta or an int"):
        to_millis(duration, "The duration")


def test_fractions_of_milliseconds_are_refused() -> None:
    with pytest.raises(TopologyError, match="whole milliseconds"):
        TimeWindows(timedelta(microseconds=1500))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeWindows(0),
        lambda: TimeWindows(10, -1),
        lambda: TimeWindows(10, advance=11),
        lambda: TimeWindows(10, advance=0),
        lambda: SessionWindows(0),
        lambda: SessionWindows(5, -1),
        lambda: SlidingWindows(-1),
        lambda: SlidingWindows(1, -1),
        lambda: UnlimitedWindows(-1),
        JoinWindows,
        lambda: JoinWindows(before=5, after=-6),
        lambda: JoinWindows(5, grace=-1),
    ],
)
def test_impossible_windows_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(TopologyError):
        make()


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 500))
def test_time_windows_include_the_timestamp_and_none_is_missing(size: int, advance: int, timestamp: int) -> None:
    windows = TimeWindows(size, advance=min(advance, size))
    expected = [
        Window(start, start + size)
        for start in range(0, timestamp + 1, windows.advance_ms)
        if start <= timestamp < start + size
    ]
    assert list(windows.windows_for(timestamp).values()) == expected


def test_an_unlimited_window_starts_as_declared() -> None:
    assert UnlimitedWindows(5).windows_for(4) == {}
    assert list(UnlimitedWindows(5).windows_for(5)) == [5]


def test_join_windows_are_symmetric_by_default() -> None:
    windows = JoinWindows(10, after=3)
    assert (windows.before_ms, windows.after_ms, windows.size_ms) == (10, 3, 13)
    assert windows.before(1) == JoinWindows(before=1, after=3)


def test_kafkas_factory_names() -> None:
    assert TimeWindows.of_size_and_grace(5, 1).advance_by(2) == TimeWindows(5, 1, 2)
    assert SlidingWindows.of_time_difference_with_no_grace(5) == SlidingWindows(5)
    assert SessionWindows.of_inactivity_gap_and_grace(5, 1) == SessionWindows(5, 1)
    assert JoinWindows.of_time_difference_and_grace(5, 1) == JoinWindows(5, grace=1)


def test_windows_that_never_close_cannot_emit_on_close() -> None:
    windowed = StreamsBuilder().stream("in").group_by_key().windowed_by(UnlimitedWindows())
    with pytest.raises(TopologyError, match="never close"):
        windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)


def test_final_results_need_a_buffer_without_early_emission() -> None:
    with pytest.raises(TopologyError, match="emit early"):
        Suppressed.until_window_closes(BufferConfig.max_records(5))
    Suppressed.until_window_closes(BufferConfig.max_records(5).shut_down_when_full())


def test_a_suppression_has_its_limits() -> None:
    resolved = Suppressed.until_time_limit(100, BufferConfig.max_bytes(7)).resolve(55)
    assert resolved == (100, False, None, 7, True)
    assert Suppressed.until_window_closes().resolve(55) == (55, True, None, None, False)


def test_suppress_needs_windows_that_close() -> None:
    table = StreamsBuilder().stream("in").group_by_key().count()
    with pytest.raises(TopologyError, match=r"only defined for windowed computations.*KSTREAM-AGGREGATE"):
        table.suppress(Suppressed.until_window_closes())


def test_windowed_by_needs_windows() -> None:
    with pytest.raises(TopologyError, match="windowed_by"):
        StreamsBuilder().stream("in").group_by_key().windowed_by(JoinWindows(5))  # type: ignore[call-overload]
