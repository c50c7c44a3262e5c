"""A stream thread's clients over the in-memory broker."""

from __future__ import annotations

from typing import Any

from penstock.clients.group.membership import Assign
from tests.direct_kafka import DirectKafka
from tests.workers.direct_group import DirectMember, DirectOffsetsReader
from tests.workers.direct_io import DirectAdmin, DirectReader, DirectWriter


class DirectClientSupplier:
    """KafkaClientSupplier over a DirectKafka; keeps the clients it created, for tests."""

    def __init__(self, kafka: DirectKafka, exactly_once: bool = False) -> None:
        self.kafka = kafka
        self.exactly_once = exactly_once
        self.made: dict[str, Any] = {}

    def telemetries(self) -> dict[str, Any]:
        return {}  # the broker in memory has none

    def get_consumer(self, client_id: str) -> DirectReader:
        reader = self.made[client_id] = DirectReader(self.kafka, client_id, self.exactly_once)
        return reader

    get_restore_consumer = get_global_consumer = get_consumer

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> DirectWriter:
        writer = self.made[client_id] = DirectWriter(self.kafka, client_id, transactional_id)
        return writer

    def get_admin(self, client_id: str) -> DirectAdmin:
        admin = self.made[client_id] = DirectAdmin(self.kafka, client_id)
        return admin

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> DirectOffsetsReader:
        return DirectOffsetsReader(self.kafka, client_id)

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> DirectMember:
        member = self.made[client_id] = DirectMember(self.kafka, client_id, assign, instance_id)
        return member
