"""Clients by their load, as Kafka Streams' ConstrainedPrioritySet keeps them.

Loads change while clients are in its queue. What comes out then depends on the shape of the heap, so it is Java's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.topology.common.java_collections import PriorityQueue, grown_hash_order

from .client_state import ClientState
from .java_hashes import process_hash, process_order


class ConstrainedPrioritySet:
    """clients: what it begins with, in the order in which they are put in."""

    def __init__(self, clients: Iterable[ClientState]) -> None:
        self._queue = PriorityQueue[ClientState](
            lambda client: (client.assigned_task_load, process_order(client.process_id))
        )
        self.offer(clients)

    def poll(self, suits: Callable[[ClientState], bool]) -> ClientState | None:
        """Remove and return the suiting client with the least load, None if none suits."""
        passed_over: list[ClientState] = []
        found = None
        while found is None and len(self._queue):
            client = self._queue.poll()
            if suits(client):
                found = client
            else:
                passed_over.append(client)
        self.offer(grown_hash_order(passed_over, lambda client: process_hash(client.process_id)))
        return found

    def offer(self, clients: Iterable[ClientState]) -> None:
        """Put clients in, those that are in it already at their present load."""
        for client in clients:
            if client in self._queue:
                self._queue.remove(client)
            self._queue.add(client)
