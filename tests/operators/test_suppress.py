from __future__ import annotations

from typing import Any

import pytest

from penstock import BufferConfig, Serdes, StreamsError, Suppressed, TimeWindows

Options = dict[str, Any]


def suppressed_table(suppressed: Any, numbers: Options) -> Any:
    def declare(builder: Any) -> None:
        builder.table("in", **numbers).suppress(suppressed).to_stream().to("out", **numbers)

    return declare


def test_only_the_last_update_is_emitted_after_the_limit(start: Any, numbers: Options) -> None:
    flow = start(suppressed_table(Suppressed.until_time_limit(10), numbers))
    flow.pipe("in", "a", 1, 0).pipe("in", "a", 2, 5).pipe("in", "b", 1, 9)
    assert flow.read() == []
    assert flow.read_after("in", "c", 1, 10) == [("a", 2, 5)], "the time of the first update counts"


def test_a_tombstone_counts_as_an_update_until_a_time_limit(start: Any, numbers: Options) -> None:
    flow = (
        start(suppressed_table(Suppressed.until_time_limit(10), numbers)).pipe("in", "a", 1, 0).pipe("in", "a", None, 5)
    )
    assert flow.read_after("in", "b", 1, 20) == [("a", None, 5)]


def test_a_full_buffer_emits_the_oldest_row(start: Any, numbers: Options) -> None:
    flow = start(suppressed_table(Suppressed.until_time_limit(1000, BufferConfig.max_records(2)), numbers))
    flow.pipe("in", "a", 1, 5).pipe("in", "b", 1, 3)
    assert flow.read() == []
    assert flow.read_after("in", "c", 1, 6) == [("b", 1, 3)]


@pytest.mark.parametrize(
    ("buffer", "shown"),
    [
        (BufferConfig.max_records(1).shut_down_when_full(), r"\[2/1\] records"),
        (BufferConfig.max_bytes(70).shut_down_when_full(), r"/70\] bytes"),
    ],
)
def test_a_full_buffer_that_must_not_emit_fails(start: Any, numbers: Options, buffer: Any, shown: str) -> None:
    flow = start(suppressed_table(Suppressed.until_time_limit(1000, buffer, name="hold"), numbers))
    flow.pipe("in", "a", 1, 5)
    with pytest.raises(StreamsError, match=f"hold buffer exceeded its max capacity.*{shown}"):
        flow.pipe("in", "b", 1, 6)


def test_each_window_gives_one_final_result(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        windowed = builder.stream("in", **numbers).group_by_key().windowed_by(TimeWindows(10, grace=5))
        final = windowed.count(store="w").suppress(Suppressed.until_window_closes())
        final.to_stream().to("out", key_serde=Serdes.time_windowed(Serdes.string(), 10), value_serde=Serdes.int64())

    flow = start(declare)
    for timestamp in (1, 2, 14, 3):
        flow.pipe("in", "k", 1, timestamp)
    assert flow.read() == []
    flow.pipe("in", "k", 1, 15)
    assert [(key.start, value, timestamp) for key, value, timestamp in flow.read()] == [(0, 3, 3)]


def test_a_suppressed_table_is_read_without_held_updates(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        held = builder.table("in", store="t", **numbers).suppress(Suppressed.until_time_limit(10))
        other = builder.table("other", **numbers)
        other.left_join(held, lambda one, two: (one, two)).map_values(str).to_stream().to(
            "out", key_serde=Serdes.string(), value_serde=Serdes.string()
        )

    flow = start(declare).pipe("in", "a", 1, 0).pipe("in", "b", 1, 100)
    flow.read()
    flow.pipe("in", "a", 2, 105).pipe("other", "a", 7, 106)
    assert [value for _, value, _ in flow.read()] == ["(7, 1)"]


def test_held_updates_keep_their_headers_and_origin(start: Any, numbers: Options) -> None:
    from penstock import Processor

    seen: list[Any] = []

    class Look(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            seen.append((record.value, record.headers, self.context.record_metadata()))

    def declare(builder: Any) -> None:
        builder.table("in", **numbers).suppress(Suppressed.until_time_limit(10)).to_stream().process(Look)

    flow = start(declare)
    flow.pipe("in", "a", 1, 0, headers=[("h", b"1")]).pipe("in", "b", 2, 10)
    assert seen == [(1, [("h", b"1")], ("in", 0, 0))]
