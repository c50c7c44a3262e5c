"""The global tables of a replay: a task with the rows of their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.graph.topology import Topology
from penstock.topology.records import Message

from .replayed_task import check_stores

#: Returns the records of a topic in batches.
Batches = Callable[[str], Iterable[Sequence[Message]]]


def global_topics(topology: Topology, config: StreamsConfig) -> Sequence[str]:
    """Return the topics of the global tables."""
    built = topology.internal_builder.build_global_topology(config)
    return () if built is None else built.source_topics


def open_global_tables(
    topology: Topology, config: StreamsConfig, clock: Clock, directory: Path, batches: Batches
) -> DriverTask | None:
    """Return the task of the global tables, with all records of their topics; None if the topology has none.

    Raises ConfigError for a store of the user's own class.
    """
    built = topology.internal_builder.build_global_topology(config)
    if built is None:
        return None
    check_stores("The application", built)
    # As in the driver, a record that a global table cannot read is logged and skipped.
    config = config.with_overrides({"deserialization.exception.handler": "continue"})
    task = DriverTask(built, config, clock, directory, ThreadCache(config["statestore.cache.max.bytes"]))
    try:
        for topic, source in task.compiled.sources.items():
            for batch in batches(topic):
                source.process_batch(batch)
        task.commit()
    except BaseException:
        task.close()
        raise
    return task
