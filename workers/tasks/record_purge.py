"""Deletes records of repartition topics that have been consumed (Kafka Streams: maybePurgeCommittedRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from penstock.clients.cluster.admin import Admin
from penstock.clients.errors import BrokerError, ErrorCode, Kind, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TopicPartition

#: How long the brokers may take, in ms; then a warning says so, and the next call repeats it.
REQUEST_TIMEOUT_MS = 30_000


class RecordPurge:
    """Never waits for the broker: a request that is not answered yet holds back the next one.

    What failed is logged and repeated by the next call, since its offsets include those of this one. What
    succeeded is not asked for again.
    """

    def __init__(self, admin: Admin, log: PrefixedLogger) -> None:
        self._admin = admin
        self._log = log
        self._pending: dict[TopicPartition, tuple[int, Future[int]]] = {}
        self._purged: dict[TopicPartition, int] = {}
        self._failing: dict[TopicPartition, str] = {}

    def __call__(self, before: Mapping[TopicPartition, int]) -> bool:
        """Delete the records before these offsets. Returns False if the last request is still under way."""
        if not all(future.done() for _, future in self._pending.values()):
            return False
        for partition, (offset, future) in self._pending.items():
            self._note(partition, offset, future)
        self._pending = {}
        # Partitions that have moved away are forgotten.
        self._purged = {p: offset for p, offset in self._purged.items() if p in before}
        self._failing = {p: reason for p, reason in self._failing.items() if p in before}
        new = {p: offset for p, offset in before.items() if offset > self._purged.get(p, 0)}
        if new:
            futures = self._admin.delete_records(new, REQUEST_TIMEOUT_MS)
            self._pending = {partition: (new[partition], future) for partition, future in futures.items()}
        return True

    def _note(self, partition: TopicPartition, offset: int, future: Future[int]) -> None:
        """Take in an answer; a repeated error is logged once."""
        try:
            future.result()
        except (RetriableError, BrokerError) as error:
            reason = str(error)
            if self._failing.get(partition) != reason:
                advice = ""
                if _is_forbidden(error):
                    advice = ". The application needs the operation Delete on its repartition topics, else they grow"
                self._log.warning(
                    "The consumed records of repartition topic %s, before offset %d, could not be deleted: %s%s. It is "
                    "tried again each repartition.purge.interval.ms",
                    partition,
                    offset,
                    reason,
                    advice,
                )
            self._failing[partition] = reason
        else:
            self._purged[partition] = offset
            if self._failing.pop(partition, None) is not None:
                self._log.info("The consumed records of %s are deleted again", partition)


def _is_forbidden(error: Exception) -> bool:
    """Return whether the next request may succeed."""
    if not isinstance(error, BrokerError):
        return False
    return error.code.kind is Kind.FORBIDDEN or error.code == ErrorCode.POLICY_VIOLATION
