"""Reads a partition from one offset to another, for handovers and replays, which have no stream thread."""

from __future__ import annotations

import time
from collections.abc import Generator

from penstock.clients.reading.reader import Records
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import Message, TopicPartition

from .partition_consumer import InvalidOffsetError, PartitionConsumer

#: Maximum number of records in a batch.
BATCH_RECORDS = 10_000
#: How long a poll waits for the brokers, in seconds.
POLL_SECONDS = 1.0


def read_range(
    consumer: PartitionConsumer, partition: TopicPartition, start: int, end: int, patience_seconds: float
) -> Generator[list[Message], None, None]:
    """Yield the records of a partition from an offset up to end (exclusive) in batches.

    consumer: without partitions. It is closed at the end: exhaust the generator, or close it. Raises
    BrokerUnavailableError if the position does not move for patience_seconds, StreamsError if the records cannot be
    read.
    """
    try:
        consumer.limit({partition: end})
        consumer.assign({partition: start})
        at, moved = start, time.monotonic()
        while at < end:
            records = _polled(consumer, partition, at).get(partition)
            position = consumer.position(partition) or 0
            if records:
                yield records
            if position > at:
                at, moved = position, time.monotonic()
            elif time.monotonic() - moved > patience_seconds:
                raise BrokerUnavailableError(
                    f"{partition} returned nothing for {patience_seconds:.0f} s at offset {at}, its end is {end}. "
                    "A transaction that is still open ends by itself; then repeat the command"
                )
    finally:
        consumer.close()


def _polled(consumer: PartitionConsumer, partition: TopicPartition, at: int) -> Records:
    try:
        return consumer.poll(BATCH_RECORDS, POLL_SECONDS)
    except InvalidOffsetError as error:
        raise StreamsError(
            f"{partition} cannot be read on from offset {at}: {error}. The records there were deleted meanwhile. "
            "Repeat the command"
        ) from error
