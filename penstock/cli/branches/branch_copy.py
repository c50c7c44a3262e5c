"""Copies the records of an application's internal topics to those of a branch, while the application runs."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping

from penstock.cli.progress import Progress
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.errors import ClientError
from penstock.clients.reading.reader import Records
from penstock.clients.writing.writer import Writer
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import InvalidOffsetError, PartitionConsumer

from .branch_brokers import BranchBrokers

BATCH_RECORDS = 5_000
POLL_SECONDS = 0.2
#: Without progress for so long the copy fails, in seconds.
PATIENCE_SECONDS = 60.0
FLUSH_SECONDS = 0.5


class BranchCopy:
    """Copies committed records, in order within each partition, with their timestamps and headers.

    routes: the branch's partition of each partition; the former are empty. numbered: the partitions for offset_of().
    consumer: reads committed records only; writer: idempotent, without transactions.
    """

    def __init__(
        self,
        routes: Mapping[TopicPartition, TopicPartition],
        numbered: Collection[TopicPartition],
        consumer: PartitionConsumer,
        writer: Writer,
        brokers: BranchBrokers,
        progress: Progress,
    ) -> None:
        self._routes, self._consumer, self._writer = routes, consumer, writer
        self._brokers, self._progress = brokers, progress
        #: How many records were copied.
        self._copied = dict.fromkeys(routes, 0)
        #: The offsets of copied records: the position in the array is the offset in the branch.
        self._offsets = {partition: array("q") for partition in numbered}
        self.records = 0

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read from these offsets; partitions that are not named from their first record."""
        firsts = self._brokers.offsets(self._routes.keys(), EARLIEST)
        self._consumer.assign({p: max(first, starts.get(p, first)) for p, first in firsts.items()})

    def run(self, ends: Mapping[TopicPartition, int], in_time: Callable[[], bool] = lambda: True) -> bool:
        """Copy all records before these offsets. Returns False if the time was over before.

        Raises BrokerUnavailableError without progress for PATIENCE_SECONDS, StreamsError for a refused record.
        """
        heard = time.monotonic()
        while unread := sum(max(end - self._position(partition), 0) for partition, end in ends.items()):
            if not in_time():
                return False
            self._progress("Copying records", self.records, self.records + unread)
            if self._write(self._poll()):
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_SECONDS:
                raise BrokerUnavailableError(
                    f"{unread} records of internal topics could not be read within {PATIENCE_SECONDS:.0f} s. Check "
                    "that the brokers run, then run the command again"
                )
        return True

    def _position(self, partition: TopicPartition) -> int:
        return self._consumer.position(partition) or 0

    def _poll(self) -> Records:
        try:
            return self._consumer.poll(BATCH_RECORDS, POLL_SECONDS)
        except InvalidOffsetError as error:  # the application has processed and deleted them
            self._consumer.seek(self._brokers.offsets(error.partitions, EARLIEST))
            return {}

    def _write(self, records: Records) -> int:
        """Return the number of records."""
        for partition, messages in records.items():
            topic, number = self._routes[partition]
            for message in messages:
                at = message.timestamp()[1]
                headers = message.headers()
                try:
                    self._writer.produce(
                        topic,
                        message.key(),
                        message.value(),
                        number,
                        at if at >= 0 else None,
                        None if headers is None else list(headers),
                    )
                except ClientError as error:
                    raise StreamsError(f"A record of {partition} cannot be written to {topic}: {error}") from error
            self._copied[partition] += len(messages)
            if partition in self._offsets:
                self._offsets[partition].extend(message.offset() for message in messages)
            self.records += len(messages)
        self._writer.poll()
        self._check()
        return sum(map(len, records.values()))

    def _check(self) -> None:
        lost = self._writer.take_lost()
        if lost:
            raise StreamsError(
                f"The brokers refused a record for {lost[0].record.topic()}: {lost[0].error}. Run the command again"
            )

    def finish(self) -> None:
        """Wait until all records are in the branch; raises StreamsError if some are missing, or there are others."""
        while not self._writer.flush(FLUSH_SECONDS):
            pass
        self._check()
        ends = self._brokers.offsets(self._routes.values(), LATEST)
        wrong = [str(to) for partition, to in self._routes.items() if ends[to] != self._copied[partition]]
        if wrong:
            raise StreamsError(
                f"Another process has written to {', '.join(wrong)} meanwhile. Stop it, then run the command again"
            )

    def offset_of(self, partition: TopicPartition, offset: int) -> int:
        """Return the branch's offset of the first copied record at or after an offset, of a numbered partition."""
        return bisect_left(self._offsets[partition], offset)

    def close(self) -> None:
        """Close the clients."""
        self._consumer.close()
        self._writer.close()
