"""Deletes records of repartition topics that have been consumed (Kafka Streams: maybePurgeCommittedRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from penstock.topology.records import TopicPartition

from .log_context import PrefixedLogger


class RecordPurge:
    """Never waits for the broker: a request that is not answered yet holds back the next one."""

    def __init__(self, admin: AdminClient, log: PrefixedLogger) -> None:
        self._admin = admin
        self._log = log
        self._pending: list[Future[Any]] = []

    def __call__(self, before: Mapping[TopicPartition, int]) -> bool:
        """Delete the records before these offsets. Returns False if the last request is still under way."""
        if not all(future.done() for future in self._pending):
            return False
        for future in self._pending:
            error = future.exception()
            if error is not None:
                self._log.debug(
                    "Previous delete-records request has failed: %s. Try sending the new request now", error
                )
        offsets = [confluent_kafka.TopicPartition(p.topic, p.partition, offset) for p, offset in before.items()]
        self._pending = list(self._admin.delete_records(offsets).values())
        return True
