"""The text committed beside offsets: Kafka Streams' bytes, and what becomes of other people's."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.tasks.topic_partition_metadata import TopicPartitionMetadata

LONGS = st.integers(-(2**63), 2**63 - 1)


@given(LONGS, st.dictionaries(st.text(), LONGS))
def test_what_is_written_can_be_read(partition_time: int, processor_metadata: dict[str, int]) -> None:
    metadata = TopicPartitionMetadata(partition_time, processor_metadata)
    assert TopicPartitionMetadata.decode(metadata.encode()) == metadata
    assert TopicPartitionMetadata.decode(metadata.encode() + "\0") == metadata  # through a librdkafka transaction


def test_the_bytes_are_kafka_streams() -> None:
    """TopicPartitionMetadata.encode: magic byte 2, the time; then the map's size, and by entry size, key, long."""
    assert TopicPartitionMetadata(1).encode() == base64.b64encode(b"\2" + b"\0" * 7 + b"\1").decode()
    encoded = TopicPartitionMetadata(-1, {"st": 258}).encode()
    entry = b"\0\0\0\2" + b"st" + b"\0" * 6 + b"\1\2"
    assert base64.b64decode(encoded) == b"\2" + b"\xff" * 8 + b"\0\0\0\1" + entry


def test_version_1_has_no_processor_metadata() -> None:
    text = base64.b64encode(b"\1" + b"\0" * 7 + b"\5").decode()
    assert TopicPartitionMetadata.decode(text) == TopicPartitionMetadata(5)


def test_nothing_is_nothing() -> None:
    assert TopicPartitionMetadata.decode("") == TopicPartitionMetadata(-1, {})


@pytest.mark.parametrize("data", [b"\2\0", b"\x09" * 9, None])
def test_foreign_text_is_logged_and_ignored(data: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    text = "no base64!" if data is None else base64.b64encode(data).decode()
    assert TopicPartitionMetadata.decode(text) == TopicPartitionMetadata()
    assert "Unsupported offset metadata" in caplog.text
