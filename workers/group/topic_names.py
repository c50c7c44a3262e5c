"""Full names of topics: internal ones have the application's id as a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.topology.graph.processor_topology import ProcessorTopology


class TopicNames:
    """Maps the topology's names to topics. Internal are changelogs, repartition and foreign-key topics."""

    def __init__(self, application_id: str, topologies: Iterable[ProcessorTopology]) -> None:
        self._application_id = application_id
        self.internal: frozenset[str] = frozenset(
            name
            for topology in topologies
            for name in (*topology.repartition_topics, *map("{}-changelog".format, topology.stores))
        )

    def full(self, name: str) -> str:
        """Return ``<application.id>-<name>`` for an internal topic, the name itself for a user's."""
        return f"{self._application_id}-{name}" if name in self.internal else name
