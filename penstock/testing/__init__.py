"""Tests of topologies without a broker, and of applications with one in memory.

TopologyTestDriver is as Kafka Streams has it (KIP-247, KIP-470):

with TopologyTestDriver(builder.build()) as driver:
    words = driver.create_input_topic("words")
    words.pipe_input("key", "hello")
    assert driver.create_output_topic("counts").read_key_value() == ("hello", 1)

EmbeddedKafka is a cluster that any Kafka client can connect to:

with EmbeddedKafka(topics={"words": 1}) as kafka:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
"""

from __future__ import annotations

from .broker import EmbeddedKafka
from .driver import TopologyTestDriver
from .driver_topics import NoSuchElementError, TestInputTopic, TestOutputTopic, TestRecord
from .mock_processor_context import CapturedForward, CapturedPunctuator, MockProcessorContext

__all__ = [
    "CapturedForward",
    "CapturedPunctuator",
    "EmbeddedKafka",
    "MockProcessorContext",
    "NoSuchElementError",
    "TestInputTopic",
    "TestOutputTopic",
    "TestRecord",
    "TopologyTestDriver",
]
