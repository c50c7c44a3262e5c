"""The metadata committed with offsets: Kafka Streams' bytes, and the handling of other applications' text."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.tasks.topic_partition_metadata import MAX_BYTES, TopicPartitionMetadata

LONGS = st.integers(-(2**63), 2**63 - 1)


@given(LONGS, st.dictionaries(st.text(), LONGS))
def test_encoded_metadata_can_be_decoded(partition_time: int, processor_metadata: dict[str, int]) -> None:
    metadata = TopicPartitionMetadata(partition_time, processor_metadata)
    assert TopicPartitionMetadata.decode(metadata.encode()) == metadata
    assert TopicPartitionMetadata.decode(metadata.encode() + "\0") == metadata  # through a librdkafka transaction


def test_the_bytes_are_those_of_kafka_streams() -> None:
    """TopicPartitionMetadata.encode: magic byte 2, the time; then the map's size, and for each entry size, key,
    long.
    """
    assert TopicPartitionMetadata(1).encode() == base64.b64encode(b"\2" + b"\0" * 7 + b"\1").decode()
    encoded = TopicPartitionMetadata(-1, {"st": 258}).encode()
    entry = b"\0\0\0\2" + b"st" + b"\0" * 6 + b"\1\2"
    assert base64.b64decode(encoded) == b"\2" + b"\xff" * 8 + b"\0\0\0\1" + entry


def test_times_of_many_operators_are_compressed() -> None:
    """150 windowed nodes: 8 KB in Kafka Streams' format, which brokers refuse. Java reads the partition time."""
    times = {f"KSTREAM-AGGREGATE-STATE-STORE-{number:010}": 1_700_000_000_000 + number for number in range(150)}
    metadata = TopicPartitionMetadata(5, times)
    assert len(metadata.encode()) <= MAX_BYTES
    assert TopicPartitionMetadata.decode(metadata.encode()) == metadata
    assert base64.b64decode(metadata.encode())[:13] == b"\2" + b"\0" * 7 + b"\5" + b"\0" * 4


def test_metadata_that_remains_too_large_is_omitted(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(1)
    times = {chance.randbytes(20).hex(): chance.getrandbits(60) for _ in range(500)}
    assert TopicPartitionMetadata.decode(TopicPartitionMetadata(5, times).encode()) == TopicPartitionMetadata(5)
    assert "The times of 500 operators are too long" in caplog.text


def test_version_1_has_no_processor_metadata() -> None:
    text = base64.b64encode(b"\1" + b"\0" * 7 + b"\5").decode()
    assert TopicPartitionMetadata.decode(text) == TopicPartitionMetadata(5)


def test_empty_text_is_empty_metadata() -> None:
    assert TopicPartitionMetadata.decode("") == TopicPartitionMetadata(-1, {})


@pytest.mark.parametrize("data", [b"\2\0", b"\x09" * 9, None])
def test_foreign_text_is_logged_and_ignored(data: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    text = "no base64!" if data is None else base64.b64encode(data).decode()
    assert TopicPartitionMetadata.decode(text) == TopicPartitionMetadata()
    assert "Unsupported offset metadata" in caplog.text
