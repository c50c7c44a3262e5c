"""Deletes records of repartition topics that have been consumed (Kafka Streams: maybePurgeCommittedRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from penstock.clients.cluster.admin import Admin
from penstock.clients.errors import BrokerError, ErrorCode, Kind, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TopicPartition

#: Time limit of a request, in ms. After it a warning is logged, and the next call repeats the request.
REQUEST_TIMEOUT_MS = 30_000


class RecordPurge:
    """Never blocks: as long as a request is pending, the next one is not sent.

    Failures are logged, and the next call covers their offsets as well. Successful deletions are not repeated.
    """

    def __init__(self, admin: Admin, log: PrefixedLogger) -> None:
        self._admin = admin
        self._log = log
        self._pending: dict[TopicPartition, tuple[int, Future[int]]] = {}
        self._purged: dict[TopicPartition, int] = {}
        self._failing: dict[TopicPartition, str] = {}

    def __call__(self, before: Mapping[TopicPartition, int]) -> bool:
        """Delete the records before these offsets. Returns False if the last request is still pending."""
        if not all(future.done() for _, future in self._pending.values()):
            return False
        for partition, (offset, future) in self._pending.items():
            self._note(partition, offset, future)
        self._pending = {}
        # Drop partitions that have moved away.
        self._purged = {p: offset for p, offset in self._purged.items() if p in before}
        self._failing = {p: reason for p, reason in self._failing.items() if p in before}
        new = {p: offset for p, offset in before.items() if offset > self._purged.get(p, 0)}
        if new:
            futures = self._admin.delete_records(new, REQUEST_TIMEOUT_MS)
            self._pending = {partition: (new[partition], future) for partition, future in futures.items()}
        return True

    def _note(self, partition: TopicPartition, offset: int, future: Future[int]) -> None:
        """Handle a response; a repeated error is logged once."""
        try:
            future.result()
        except (RetriableError, BrokerError) as error:
            reason = str(error)
            if self._failing.get(partition) != reason:
                advice = ""
                if _is_forbidden(error):
                    advice = (
                        ". Grant the application the operation Delete on its repartition topics; otherwise they grow"
                    )
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
    """Return whether a later request may succeed."""
    if not isinstance(error, BrokerError):
        return False
    return error.code.kind is Kind.FORBIDDEN or error.code == ErrorCode.POLICY_VIOLATION
