"""User-defined headers: a dict, text; equal for all ways in and out. And timestamps."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Processor, Record, StreamsBuilder, StreamsError
from penstock.testing import MockProcessorContext, TopologyTestDriver
from penstock.topology.context.exception_handlers import ProducerRecord, Response

TAKEN = [
    ([("a", b"x"), ("b", None)], [("a", b"x"), ("b", None)]),
    ({"a": b"x", "b": None}, [("a", b"x"), ("b", None)]),
    ({"a": "é"}, [("a", b"\xc3\xa9")]),
    ([("a", "x"), ["b", bytearray(b"y")]], [("a", b"x"), ("b", b"y")]),
    ((("a", b"x"),), [("a", b"x")]),
    (None, None),
]
REFUSED = ["ab", b"ab", ["ab"], [("a",)], [(1, b"x")], [("a", 1)], {"a": 1}, {"a": ["x"]}, 5, [("a", b"x", b"y")]]


def piped(headers: Any) -> Any:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", headers=headers)
        return driver.create_output_topic("out").read_record().headers


def forwarded(headers: Any) -> Any:
    class Adding(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record.with_headers(headers))

    builder = StreamsBuilder()
    builder.stream("in").process(Adding).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", headers={"before": "b"})
        return driver.create_output_topic("out").read_record().headers


def sent_as_dead_letter(headers: Any) -> Any:
    def handler(context: Any, record: Any, error: Exception) -> Response:
        return Response.resume([ProducerRecord("letters", b"k", b"v", headers=headers)])

    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: 1 / 0).to("out")
    with TopologyTestDriver(builder.build(), {"processing.exception.handler": handler}) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        return driver.create_output_topic("letters", value_serde="bytes").read_record().headers


def captured(headers: Any) -> Any:
    context: MockProcessorContext = MockProcessorContext()
    context.forward(Record("k", "v", 0, headers))
    return context.forwarded()[0].record.headers


WAYS = [piped, forwarded, sent_as_dead_letter, captured]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("given", "expected"), TAKEN, ids=repr)
def test_headers_become_pairs_of_text_and_bytes(way: Any, given: Any, expected: Any) -> None:
    found = way(given)
    assert (found and list(found)) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", REFUSED, ids=repr)
def test_invalid_headers_are_refused(way: Any, given: Any) -> None:
    with pytest.raises((TypeError, StreamsError), match=r"headers are a dict|a header is a pair|of (a )?header"):
        way(given)


@pytest.mark.parametrize("given", [-1, 1.5, None, "5", True, 2**63], ids=repr)
def test_a_forwarded_timestamp_is_a_64_bit_integer(given: Any) -> None:
    class Stamping(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record.with_timestamp(given))

    builder = StreamsBuilder()
    builder.stream("in").process(Stamping, name="P").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in")
        with pytest.raises(StreamsError, match=r"P forwards a malformed record: .*timestamp"):
            source.pipe_input("k", "v")


def test_headers_that_need_no_change_are_not_copied() -> None:
    headers = [("a", b"x")]
    assert Record("k", "v", 0, headers).headers is headers
