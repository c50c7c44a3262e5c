"""Days, weeks, months and years of a time zone: their bounds, when clocks change, and tables of them."""

from __future__ import annotations

import pickle
import struct
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import (
    CalendarWindows,
    EmitStrategy,
    Serdes,
    StreamsBuilder,
    Suppressed,
    TopologyError,
    Windowed,
    agg,
)
from penstock.kernel.window_nodes import CalendarWindows as CompiledWindows
from penstock.testing import TopologyTestDriver
from penstock.topology.records import RawRecord
from tests.statestore.support import OpenStore

HOUR = 3_600_000
PARIS = "Europe/Paris"
#: Also: clocks that change at midnight, at 00:01 back to the day before, by half an hour, by 7 hours; a day left out.
ZONES = (
    PARIS,
    "UTC",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Antarctica/Vostok",
    "Pacific/Apia",
)
#: 1970 to 2100, before which some zones had other rules, in ms.
TIMES = st.integers(0, 4_102_444_800_000)


def ms(*local: int, zone: str = PARIS) -> int:
    """Return a local time in ms."""
    return round(datetime(*local, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("unit", "zone", "at", "start", "hours"),
    [
        ("day", PARIS, (2026, 3, 28, 12), (2026, 3, 28), 24),
        ("day", PARIS, (2026, 3, 29, 12), (2026, 3, 29), 23),
        ("day", PARIS, (2026, 10, 25, 12), (2026, 10, 25), 25),
        ("day", "Australia/Lord_Howe", (2026, 4, 5, 12), (2026, 4, 5), 24.5),
        ("day", "America/Sao_Paulo", (2018, 11, 4, 12), (2018, 11, 4, 1), 23),
        ("week", PARIS, (2026, 3, 29, 12), (2026, 3, 23), 7 * 24 - 1),
        ("week", PARIS, (2026, 3, 30), (2026, 3, 30), 7 * 24),
        ("month", PARIS, (2026, 2, 28, 23), (2026, 2, 1), 28 * 24),
        ("month", PARIS, (2026, 10, 31), (2026, 10, 1), 31 * 24 + 1),
        ("month", PARIS, (2026, 12, 31), (2026, 12, 1), 31 * 24),
        ("year", "UTC", (2028, 7, 1), (2028, 1, 1), 366 * 24),
    ],
)
def test_a_window_has_the_length_of_the_local_calendar(
    unit: str, zone: str, at: tuple[int, ...], start: tuple[int, ...], hours: float
) -> None:
    window = CalendarWindows(unit, tz=zone).window_of(ms(*at, zone=zone))
    assert window.start == ms(*start, zone=zone)
    assert (window.end - window.start) / HOUR == hours


@given(unit=st.sampled_from(("day", "week", "month", "year")), zone=st.sampled_from(ZONES), at=TIMES)
@example(unit="day", zone="America/St_Johns", at=ms(2006, 10, 28, 23, 30, zone="America/St_Johns") + HOUR)
@example(unit="day", zone="Antarctica/Vostok", at=ms(1994, 1, 31, 12, zone="Antarctica/Vostok"))
@example(unit="day", zone="Antarctica/Vostok", at=ms(1994, 2, 1, 12, zone="Antarctica/Vostok"))
@example(unit="week", zone=PARIS, at=0)
@example(unit="day", zone="Pacific/Apia", at=ms(2011, 12, 31, 5, zone="Pacific/Apia"))
def test_windows_follow_each_other_without_a_gap(unit: str, zone: str, at: int) -> None:
    windows = CalendarWindows(unit, tz=zone)
    window = windows.window_of(at)
    assert 0 <= window.start <= at < window.end
    assert windows.window_of(window.start) == windows.window_of(window.end - 1) == window
    assert windows.window_of(window.end).start == window.end
    assert windows.window_end(window.start) == window.end
    assert window.end - window.start <= windows.size_ms
    assert windows.windows_for(at) == {window.start: window}


@given(
    zone=st.sampled_from(ZONES),
    grace=st.integers(0, 100 * HOUR),
    steps=st.lists(st.tuples(st.integers(0, 900 * HOUR), st.booleans()), max_size=30),
)
def test_the_kernels_windows_match_their_declaration(zone: str, grace: int, steps: list[tuple[int, bool]]) -> None:
    stream_time = -1
    declared = CalendarWindows("day", zone, grace)
    windows = CompiledWindows(declared.window_of, grace)
    for step, is_told in steps:
        timestamp = ms(2026, 3, 1) + step
        if is_told:  # as when the operator's state is set
            windows.stream_time = stream_time = timestamp
            continue
        stream_time = max(stream_time, timestamp)
        window = declared.window_of(timestamp)
        closed = window.end <= stream_time - grace
        assert list(windows.starts(timestamp)) == [None if closed else window.start]
        assert closed or windows.end(window.start) == window.end
        assert windows.stream_time == stream_time


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hour",), "those of a day, week, month, year; got 'hour'"),
        (("day", "Europe/Atlantis"), "There is no time zone 'Europe/Atlantis'"),
        (("day", "../etc"), "There is no time zone"),
        (("day", None), "There is no time zone None"),
        (("day", "UTC", -1), "must not be negative"),
    ],
)
def test_a_wrong_declaration_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        CalendarWindows(*arguments)


def test_equal_windows_are_equal_and_can_be_sent() -> None:
    windows = CalendarWindows("day", tz=PARIS, grace=timedelta(hours=1))
    assert windows == CalendarWindows("day", ZoneInfo(PARIS), HOUR)
    assert pickle.loads(pickle.dumps(windows)) == windows
    assert windows != CalendarWindows("day", tz="Europe/Berlin", grace=HOUR)


#: The last hour of a day of 25 hours, the first one of the next day, and one that is late.
RECORDS = (
    (1, ms(2026, 10, 25, 0)),
    (2, ms(2026, 10, 25, 23, 59)),
    (10, ms(2026, 10, 26, 0)),
    (4, ms(2026, 10, 25, 12)),
)
LONG_DAY = Windowed("k", ms(2026, 10, 25), ms(2026, 10, 26))
NEXT_DAY = Windowed("k", ms(2026, 10, 26), ms(2026, 10, 27))


def daily(builder: StreamsBuilder, grace: int = HOUR) -> Any:
    windows = CalendarWindows("day", tz=PARIS, grace=grace)
    return builder.stream("in").group_by_key().windowed_by(windows).aggregate(agg.sum(), store="store")


def run(builder: StreamsBuilder, cache: int, config: Any = ()) -> TopologyTestDriver:
    driver = TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache, **dict(config)})
    for value, at in RECORDS:
        driver.create_input_topic("in").pipe_input("k", value, at)
    return driver


@pytest.mark.parametrize("cache", [0, 300, 10_485_760])
def test_a_table_has_the_windows_with_their_ends(cache: int) -> None:
    days = Serdes.time_windowed(Serdes.string(), window_end=CalendarWindows("day", PARIS).window_end)
    builder = StreamsBuilder()
    table = daily(builder)
    table.to_stream().to("out")
    # A repartition topic and another table, whose keys are the windows.
    again = table.group_by(lambda window, total: (window, total), key_serde=days).count(store="again")
    again.to_stream().to("counts")
    # And one that is written with the serde of the table's keys.
    table.to_stream().repartition().map(lambda window, total: (window.key, [window.end, total])).to("ends")
    with run(builder, cache) as driver:
        expected = [(LONG_DAY, 1), (LONG_DAY, 3), (NEXT_DAY, 10), (LONG_DAY, 7)]
        sent = driver.create_output_topic("out", key_serde=days).read_key_values_to_list()
        assert sent == expected
        assert list(driver.get_window_store("store").all()) == [(LONG_DAY, 7), (NEXT_DAY, 10)]
        counted = driver.create_output_topic("counts", key_serde=days).read_key_values_to_list()
        assert dict(counted) == {LONG_DAY: 1, NEXT_DAY: 1}
        ends = driver.create_output_topic("ends", key_serde=Serdes.string()).read_values_to_list()
        assert ends == [[window.end, total] for window, total in expected]
        log = driver.create_output_topic("topology-test-driver-store-changelog", Serdes.bytes(), Serdes.bytes())
        records = log.read_records_to_list()
        restored = OpenStore(driver.task.topology.stores["store"])
        restored.task.changelog += [
            RawRecord("t", 0, at, record.timestamp, record.key, record.value) for at, record in enumerate(records)
        ]
        restored.restore_missing()
        assert [window for window, _ in restored.store.all()] == [LONG_DAY, NEXT_DAY]
    assert records[0].key == b"k" + struct.pack(">qi", LONG_DAY.start, 0)


@pytest.mark.parametrize("cache", [0, 300, 10_485_760])
def test_a_late_record_is_dropped_once_its_day_and_the_grace_are_over(cache: int) -> None:
    builder = StreamsBuilder()
    daily(builder, grace=0)
    with run(builder, cache) as driver:
        assert list(driver.get_window_store("store").all()) == [(LONG_DAY, 3), (NEXT_DAY, 10)]
        assert list(driver.dropped_records().values()) == [1]


@pytest.mark.parametrize("unit", ["day", "week", "month", "year"])
@pytest.mark.parametrize("timestamp", [1_790_000_000_000_000, 2**63 - 1, 253_402_300_799_000])
def test_a_time_after_the_calendars_end_is_an_error_of_its_record_alone(unit: str, timestamp: int) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(CalendarWindows(unit, PARIS)).count(store="store")
    with pytest.raises(ValueError, match=f"The window of {timestamp} ms since 1970 is after the year 9999"):
        CalendarWindows(unit, PARIS).window_of(timestamp)
    with TopologyTestDriver(builder.build(), {"processing.exception.handler": "continue"}) as driver:
        topic = driver.create_input_topic("in")
        for at in (timestamp, ms(2026, 10, 25)):
            topic.pipe_input("k", 1, at)
        assert [count for _, count in driver.get_window_store("store").all()] == [1]


@pytest.mark.parametrize("cache", [0, 10_485_760])
def test_suppress_sends_a_day_when_it_is_over(cache: int) -> None:
    builder = StreamsBuilder()
    daily(builder).suppress(Suppressed.until_window_closes()).to_stream().to("out")
    with run(builder, cache) as driver:
        out = driver.create_output_topic("out", key_serde=Serdes.time_windowed(Serdes.string(), 24 * HOUR))
        assert out.is_empty()
        driver.create_input_topic("in").pipe_input("k", 1, ms(2026, 10, 26, 1))
        assert out.read_key_values_to_list() == [(Windowed("k", LONG_DAY.start, LONG_DAY.start + 24 * HOUR), 7)]


def test_final_results_from_the_store_are_refused_with_what_to_do() -> None:
    grouped = StreamsBuilder().stream("in").group_by_key().windowed_by(CalendarWindows("day"))
    with pytest.raises(TopologyError, match=r"use suppress\(Suppressed.until_window_closes\(\)\)"):
        grouped.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()


def test_rows_are_kept_as_long_as_the_longest_window_and_its_grace() -> None:
    builder = StreamsBuilder()
    daily(builder)
    with TopologyTestDriver(builder.build()) as driver:
        declared = driver.task.topology.stores["store"]
    assert declared.retention_ms == (24 + 7 + 1) * HOUR
    assert declared.window_size_ms == (24 + 7) * HOUR
