"""Clients by their load, as Kafka Streams' ConstrainedPrioritySet keeps them.

Loads change while clients are in the queue, so the result depends on the shape of the heap. The heap is therefore the
one of Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.topology.common.java_collections import PriorityQueue, grown_hash_order

from .client_state import ClientState
from .java_hashes import process_hash, process_order


class ConstrainedPrioritySet:
    """clients: the initial clients, in insertion order."""

    def __init__(self, clients: Iterable[ClientState]) -> None:
        self._queue = PriorityQueue[ClientState](
            lambda client: (client.assigned_task_load, process_order(client.process_id))
        )
        self.offer(clients)

    def poll(self, suits: Callable[[ClientState], bool]) -> ClientState | None:
        """Remove and return the suitable client with the least load, None if there is none."""
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
        """Insert clients; reinsert those already in the set with their current load."""
        for client in clients:
            if client in self._queue:
                self._queue.remove(client)
            self._queue.add(client)
