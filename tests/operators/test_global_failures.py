"""Failures in the processors of global stores: who decides about them (KIP-1270)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Processor, Record, Serdes, Stores, StreamsBuilder, StreamsError
from penstock.topology.context.exception_handlers import ErrorHandlerContext, ProducerRecord, Response

Start = Callable[..., Any]
ENABLED = "processing.exception.handler.global.enabled"
HANDLER = "processing.exception.handler"


class Numbers(Processor[str, str, None, None]):
    """Keeps numbers in the global store; fails for other values."""

    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("numbers").put(record.key, str(int(record.value)))


def with_numbers(builder: StreamsBuilder) -> None:
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("numbers"), *text.values())
    builder.add_global_store(store.with_logging_disabled(), "global", Numbers, **text)
    builder.stream("in", **text).map_values(int).to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())


def test_the_handler_decides_if_that_is_enabled(start: Start) -> None:
    flow = start(with_numbers, {ENABLED: True, HANDLER: "log_and_continue"})
    flow.pipe("global", "a", "1").pipe("global", "b", "two").pipe("global", "c", "3")
    assert list(flow.driver.get_key_value_store("numbers").all()) == [("a", "1"), ("c", "3")]
    assert flow.driver.dropped_records() == {("KTABLE-SOURCE-0000000001", "processing error"): 1}


@pytest.mark.parametrize("config", [{}, {ENABLED: True}, {HANDLER: "log_and_continue"}])
def test_otherwise_the_failure_is_raised(start: Start, config: dict[str, Any]) -> None:
    flow = start(with_numbers, config)
    with pytest.raises(StreamsError, match=r"processor=KTABLE-SOURCE-0000000001, topic=global, .*offset=0, key='a': V"):
        flow.pipe("global", "a", "one")


def test_a_handler_without_effect_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start(with_numbers, {HANDLER: "log_and_continue"})
    (warned,) = (record.getMessage() for record in caplog.records if ENABLED in record.getMessage())
    assert warned.startswith("processing.exception.handler decides nothing about failures in processors of global")
    start(with_numbers, {HANDLER: "fail"})
    start(with_numbers, {HANDLER: "log_and_continue", ENABLED: True})
    assert len([record for record in caplog.records if "global stores" in record.getMessage()]) == 1


def test_other_processors_are_not_affected(start: Start) -> None:
    flow = start(with_numbers, {HANDLER: "log_and_continue", "errors.dead.letter.queue.topic.name": "dead"})
    flow.pipe("in", "a", "one").pipe("in", "a", "2")
    assert [value for _, value, _ in flow.read()] == [2]
    assert flow.driver.create_output_topic("dead").read_value() == b"one"


@pytest.mark.parametrize("answer", [Response.resume, Response.fail])
def test_dead_letters_are_logged_and_not_written(
    start: Start, caplog: pytest.LogCaptureFixture, answer: Callable[[list[ProducerRecord]], Response]
) -> None:
    seen: list[ErrorHandlerContext] = []

    def handler(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
        seen.append(context)
        return answer([ProducerRecord("dead", context.source_raw_key, context.source_raw_value)])

    flow = start(with_numbers, {ENABLED: True, HANDLER: handler})
    if answer == Response.fail:
        with pytest.raises(StreamsError, match="invalid literal"):
            flow.pipe("global", "b", "two")
    else:
        flow.pipe("global", "b", "two")
    assert [(one.topic, one.offset, one.source_raw_value) for one in seen] == [("global", 0, b"two")]
    assert flow.driver.produced_topic_names() == set()
    (warned,) = (record.getMessage() for record in caplog.records if "Dead letter" in record.getMessage())
    assert warned.endswith(
        "none is written to dead for the record that failed in KTABLE-SOURCE-0000000001, topic=global partition=0 "
        "offset=0"
    )
