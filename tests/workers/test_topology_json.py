"""The topology in JSON, for the dashboard and /stores."""

from __future__ import annotations

import orjson

from penstock import Serdes, StreamsBuilder, StreamsConfig
from penstock.workers.group.topic_names import TopicNames
from penstock.workers.queries.topology_json import topology_json


class Upper:
    """A serde without a name."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode().upper()


def test_serdes_have_names_without_addresses() -> None:
    builder = StreamsBuilder()
    left = builder.table("left", key_serde=Serdes.string(), value_serde=Upper(), store="left")
    right = builder.table("right", key_serde=Serdes.string(), value_serde=Serdes.string())
    left.join(right, lambda one, other: one, foreign_key=lambda one: one, store="joined")
    builder.stream("in").deduplicate_by_key(5, name="once").to("out")
    topology = builder.build()
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "host:1"})
    built = topology.internal_builder.build_subtopologies(config)
    text = topology_json(topology, built, TopicNames("app", built))
    stores = {store["name"]: store for store in orjson.loads(text)["stores"]}
    assert stores["left"]["key_serde"] == "Serdes.string()"
    assert "Upper object" in stores["left"]["value_serde"]
    assert stores["once"]["value_serde"] == "TimestampAndOffsetSerde(keys=None, ids=None)"
    assert b" at 0x" not in text
