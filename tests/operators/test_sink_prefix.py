"""penstock.sink.prefix: before the names of all topics that an application writes, but for internal ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder
from penstock.sinks import SqliteSink
from penstock.supervisor.source.topology_gate import admit
from penstock.supervisor.source.topology_source import TopologyLoadError
from penstock.testing import TopologyTestDriver
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import ErrorHandlerContext, ProducerRecord, Response
from penstock.topology.errors import ConfigError

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
PREFIX = {"penstock.sink.prefix": "next."}


def written(driver: TopologyTestDriver, topic: str) -> list[str]:
    output = driver.create_output_topic(topic, Serdes.string(), Serdes.string())
    return [record.value for record in output.read_records_to_list()]


def test_all_output_topics_have_it_and_internal_ones_do_not() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.to("fixed", **TEXT)
    stream.to(lambda key, value, context: f"of-{key}", **TEXT)
    moved = stream.select_key(lambda key, value: value).repartition()
    moved.to("moved", **TEXT)
    with TopologyTestDriver(builder.build(), {"application.id": "app", **PREFIX}) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", "v")
        found = {topic: written(driver, topic) for topic in ("next.fixed", "next.of-k", "next.moved", "fixed", "of-k")}
        assert found == {"next.fixed": ["v"], "next.of-k": ["v"], "next.moved": ["v"], "fixed": [], "of-k": []}


def refuse(value: str) -> str:
    raise ValueError(value)


def own_letter(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
    return Response.resume([ProducerRecord("own-letters", b"k", b"own")])


@pytest.mark.parametrize(
    ("handler", "topic", "value"), [("continue", "letters", "bad"), (own_letter, "own-letters", "own")]
)
def test_dead_letters_have_it(handler: object, topic: str, value: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(refuse).to("out", **TEXT)
    letters = {"processing.exception.handler": handler, "errors.dead.letter.queue.topic.name": "letters"}
    with TopologyTestDriver(builder.build(), {"application.id": "app", **PREFIX, **letters}) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", "bad")
        assert (written(driver, f"next.{topic}"), written(driver, topic)) == ([value], [])


def test_a_sink_outside_of_kafka_is_refused_at_the_start(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to_sink(SqliteSink(tmp_path / "rows.db", "rows"))
    config = StreamsConfig(
        {"application.id": "app", "bootstrap.servers": "b:9092", "state.dir": str(tmp_path), **PREFIX}
    )
    with pytest.raises(TopologyLoadError, match=r"penstock.sink.prefix is set, but .* writes outside of Kafka"):
        admit(builder.build(), config)


def test_it_must_be_the_beginning_of_a_topics_name() -> None:
    with pytest.raises(ConfigError, match=r"penstock.sink.prefix='next/'"):
        StreamsConfig({"penstock.sink.prefix": "next/"})
