"""Java's hash codes and order of Kafka Streams' ids, which decide between equal candidates."""

from __future__ import annotations

from uuid import UUID

from penstock.topology.records import TaskId


def task_hash(task: TaskId) -> int:
    """Return TaskId.hashCode(): Objects.hash of its numbers and of no named topology."""
    return ((31 + task.subtopology) * 31 + task.partition) * 31 & 0xFFFFFFFF


def process_hash(process_id: UUID) -> int:
    """Return UUID.hashCode()."""
    mixed = (process_id.int >> 64) ^ (process_id.int & 0xFFFFFFFFFFFFFFFF)
    return (mixed >> 32) ^ (mixed & 0xFFFFFFFF)


def process_order(process_id: UUID) -> tuple[int, int]:
    """Return the sort key of UUID.compareTo: two signed numbers."""
    data = process_id.bytes
    return int.from_bytes(data[:8], signed=True), int.from_bytes(data[8:], signed=True)
