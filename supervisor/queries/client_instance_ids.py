"""The ids that brokers have given to an application's clients (Kafka Streams: ClientInstanceIds; KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.topology.errors import StreamsError

_PRODUCER = "-producer"


@dataclass(frozen=True, slots=True)
class ClientInstanceIds:
    """The ids of an application's clients on this host, by which a broker's metrics plugin distinguishes them.

    Kafka's tools print the same 16 bytes in base64. Clients that push no metrics are left out.
    """

    admin: UUID | None
    clients: Mapping[str, UUID]

    def admin_instance_id(self) -> UUID:
        """Return the id of the admin client; raises StreamsError if it pushes no metrics."""
        if self.admin is None:
            raise StreamsError("Telemetry is not enabled on the admin client: set enable.metrics.push=true.")
        return self.admin

    def consumer_instance_ids(self) -> dict[str, UUID]:
        """Return the ids of all consumers, also of restore and global consumers, by client id."""
        return {client_id: found for client_id, found in self.clients.items() if not client_id.endswith(_PRODUCER)}

    def producer_instance_ids(self) -> dict[str, UUID]:
        """Return the ids of all producers, by client id."""
        return {client_id: found for client_id, found in self.clients.items() if client_id.endswith(_PRODUCER)}
