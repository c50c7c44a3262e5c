"""Counts words: the first program of a user."""

from __future__ import annotations

import sys
from typing import assert_type

from penstock import KafkaStreams, KStream, KTable, ReadOnlyKeyValueStore, Serdes, StreamsBuilder, Topology
from penstock.testing import TestOutputTopic, TopologyTestDriver


def split_line(line: str) -> list[str]:
    return line.lower().split()


def topology() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key_serde=Serdes.string(), value_serde=Serdes.string())
    words = lines.flat_map_values(split_line).filter(lambda key, word: len(word) > 2)
    counts = words.group_by(lambda key, word: word, key_serde=Serdes.string()).count(store="counts")
    counts.to_stream().to("counts", key_serde=Serdes.string(), value_serde=Serdes.int64())
    assert_type(words, KStream[str, str])
    assert_type(counts, KTable[str, int])
    return builder.build()


def try_it() -> None:
    with TopologyTestDriver(topology()) as driver:
        driver.create_input_topic("lines").pipe_input("k", "to be or not to be: not")
        output = driver.create_output_topic("counts", Serdes.string(), Serdes.int64())
        assert_type(output, TestOutputTopic[str, int])
        words = sorted(word.upper() for word, _ in output.read_key_values_to_list())
        assert words == ["BE:", "NOT", "NOT"]


def main() -> None:
    config = {"application.id": "words", "bootstrap.servers": "127.0.0.1:9092", "num.stream.threads": 2}
    with KafkaStreams(topology(), config) as streams:
        streams.start()
        counts: ReadOnlyKeyValueStore[str, int] = streams.store("counts")
        assert_type(counts.get("not"), int | None)
        print({word: count + 1 for word, count in counts.all()})
        sys.exit(streams.run())
