"""Checked by mypy, not run: types follow through the DSL."""

from __future__ import annotations

from typing import Any, assert_type

from penstock import (
    BranchedKStream,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Windowed,
)


def average(left: bytes, right: int) -> float:
    return len(left) / right


def typed(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.bytes())
    assert_type(stream, KStream[str, bytes])
    assert_type(stream.map_values(len), KStream[str, int])
    assert_type(stream.map_values(lambda key, value: key + str(value), with_key=True), KStream[str, str])
    assert_type(stream.map(lambda key, value: (value, key)), KStream[bytes, str])
    assert_type(stream.flat_map_values(lambda value: [1.5]), KStream[str, float])
    assert_type(stream.select_key(lambda key, value: len(key)), KStream[int, bytes])
    assert_type(stream.group_by(lambda key, value: len(key)), KGroupedStream[int, bytes])
    assert_type(stream.group_by_key().count(), KTable[str, int])
    assert_type(stream.group_by_key().windowed_by(TimeWindows(10)).count(), KTable[Windowed, int])
    assert_type(stream.group_by_key().windowed_by(SessionWindows(10)).count(), KTable[Windowed, int])
    assert_type(stream.split(), BranchedKStream[str, bytes])
    table = builder.table("rows", key_serde=Serdes.string(), value_serde=Serdes.int64())
    assert_type(table, KTable[str, int])
    assert_type(table.map_values(str), KTable[str, str])
    assert_type(stream.join(table, average), KStream[str, float])
    assert_type(stream.join(stream, average, JoinWindows(5)), KStream[str, float])
    assert_type(table.join(table, lambda left, right: "x"), KTable[str, str])


def untyped(builder: StreamsBuilder) -> None:
    assert_type(builder.stream("in"), KStream[Any, Any])
    assert_type(builder.stream("in").map_values(len), KStream[Any, int])


def annotated(stream: KStream[str, dict[str, int]]) -> KStream[str, int]:
    return stream.map_values(len)
