"""Table joins read the rows that the other table has forwarded, not those in its cache, which may leave no trace.

A key that is created and deleted between two flushes is not forwarded. A join that read it in between would never be
corrected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    BufferConfig,
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from tests.examples import one_of
from tests.operators.conftest import Flow

CACHED = {"statestore.cache.max.bytes": 1_000_000}
#: Changes of the right row between two commits; a left row is written after the first one.
STEPS: list[list[str | None]] = [
    ["R", None],
    ["R"],
    ["R", "S"],
    [None, "R"],
]
BEFORE = [None, "Q"]
Tables = KTable[Any, Any]


def pair(one: Any, other: Any) -> str:
    return f"{one}+{other}"


def same(table: Tables, _other: Tables) -> Tables:
    return table


def mapped(table: Tables, _other: Tables) -> Tables:
    return table.map_values(str.lower)


def filtered(table: Tables, _other: Tables) -> Tables:
    return table.filter(lambda _key, value: value != "S")


def suppressed(table: Tables, _other: Tables) -> Tables:
    return table.suppress(Suppressed.until_time_limit(0, BufferConfig.max_records(9)))


def joined(table: Tables, other: Tables) -> Tables:
    """Join without a store: its rows are computed when read."""
    return table.join(other, pair)


def by_key(left: Tables, right: Tables) -> Tables:
    return left.left_join(right, pair)


def by_foreign_key(left: Tables, right: Tables) -> Tables:
    return left.left_join(right, pair, foreign_key=lambda value: "k")


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("steps", one_of(4, STEPS))
@pytest.mark.parametrize("derive", [same, mapped, filtered, suppressed, joined])
@pytest.mark.parametrize("join", [by_key, by_foreign_key])
def test_the_last_result_does_not_depend_on_when_caches_are_flushed(
    start: Any,
    text: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    join: Callable[[Tables, Tables], Tables],
    derive: Callable[[Tables, Tables], Tables],
    steps: list[str | None],
    before: str | None,
) -> None:
    def declare(builder: StreamsBuilder) -> None:
        left = builder.table("left", store=Materialized("left", caching=False, **text), **text)
        right, other = builder.table("right", **text), builder.table("other", **text)
        join(left, derive(right, other)).to_stream().to("out", **text)

    def last(flow: Flow) -> Any:
        flow.pipe("other", "k", "O")
        if before is not None:
            flow.pipe("right", "k", before)
        with monkeypatch.context() as between_commits:
            if flow is late:
                between_commits.setattr(flow.driver.task, "commit", lambda: None)
            flow.pipe("right", "k", steps[0]).pipe("left", "k", "L")
            for value in steps[1:]:
                flow.pipe("right", "k", value)
        flow.driver.task.commit()
        flow.driver.advance_wall_clock_time(1)  # read the records that the flush has written to internal topics
        return flow.read()[-1][1]

    early, late = start(declare), start(declare, CACHED)
    assert last(late) == last(early)


def newest(_key: str, value: str, _aggregate: str) -> str | None:
    return None if value == "gone" else value


@pytest.mark.parametrize(
    ("windows", "last_step"),
    [
        (TimeWindows(10), ("gone", 0)),  # the window has no aggregate any more
        (SessionWindows(5), ("S", 4)),  # the session is merged into a longer one
    ],
)
def test_windows_and_sessions_deleted_before_a_flush_are_not_joined(
    start: Any, text: dict[str, Any], monkeypatch: pytest.MonkeyPatch, windows: Any, last_step: tuple[str, int]
) -> None:
    def declare(builder: StreamsBuilder) -> None:
        def table(name: str, caching: bool) -> Tables:
            windowed = builder.stream(name, **text).group_by_key().windowed_by(windows)
            merger = (lambda _key, _one, other: other,) if isinstance(windows, SessionWindows) else ()
            store = Materialized(name, caching=caching, **text)
            aggregated: Tables = windowed.aggregate(str, newest, *merger, store=store)
            return aggregated

        joined = table("left", caching=False).left_join(table("right", caching=True), pair)
        joined.to_stream().map(lambda window, value: (f"{window.start}-{window.end}", value)).to("out", **text)

    def last(flow: Flow) -> dict[str, Any]:
        with monkeypatch.context() as between_commits:
            if flow is late:
                between_commits.setattr(flow.driver.task, "commit", lambda: None)
            flow.pipe("right", "k", "R", 0).pipe("left", "k", "L", 0).pipe("right", "k", *last_step)
        flow.driver.task.commit()
        return {key: value for key, value, _ in flow.read()}

    early, late = start(declare), start(declare, CACHED)
    expected = last(early)
    assert "L+None" in expected.values()
    assert last(late) == expected
