"""The accepted responses of a foreign-key join: those with the hash of the current left row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock import Materialized, Serdes, StreamsBuilder
from penstock.topology.records import RawRecord, SentRecord

ASKED, CHANGED = b'{"city":"r","n":1}', b'{"city":"r","n":2}'
#: The value that caused the request, as another program may have written it to the left table's topic.
SPACED = b'{"city": "r", "n": 1}'
CHANGED_SINCE = "foreign-key response for a value that has changed since"


class Left(msgspec.Struct):
    city: str
    n: int


@pytest.mark.parametrize(
    ("optimization", "row", "counts"),
    [
        ("none", ASKED, True),
        ("none", CHANGED, False),
        ("none", None, False),
        ("all", SPACED, True),  # the left table's topic is its changelog: a restart restores what others wrote
        ("all", CHANGED, False),
    ],
)
def test_a_response_is_accepted_if_it_belongs_to_the_current_left_row(
    compiled: Callable[..., Any], documents: dict[str, Any], optimization: str, row: bytes | None, counts: bool
) -> None:
    def declare(builder: StreamsBuilder) -> None:
        rows = Materialized("rows", key_serde=Serdes.string(), value_serde=Serdes.json(Left))
        left = builder.table("left", store=rows)
        right = builder.table("right", **documents)
        joined = left.join(right, lambda one, other: [one.n, other], foreign_key=lambda one: one.city)
        joined.to_stream().to("out", **documents)

    task = compiled(declare, {"topology.optimization": optimization})

    def process(topic: str, key: bytes | None, value: bytes | None) -> list[SentRecord]:
        source = task.compiled.source_of(topic)
        source.process_batch([RawRecord(topic, 0, 0, 0, key, value)])
        task.commit()
        sent: list[SentRecord] = task.take_produced()
        return sent

    def received(sent: list[SentRecord]) -> list[SentRecord]:
        [message] = [record for record in sent if task.compiled.source_of(record.topic) is not None]
        return process(message.topic, message.key, message.value)

    process("right", b"r", b'"city"')
    response = received(process("left", b"l", ASKED))
    task.stores["rows"].restore([RawRecord("left", 0, 1, 0, b"l", row)], None)
    joined = [record.value for record in received(response) if record.topic == "out"]
    assert joined == ([b'[1,"city"]'] if counts else [])
    assert sum(count for (_, reason), count in task.dropped.items() if reason == CHANGED_SINCE) == (not counts)
