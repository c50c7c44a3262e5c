"""Waits for effects of other processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import psutil
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    TopicMetadata,
)

from penstock.clients.errors import ErrorCode

#: Up to this many times the number of cores, the patience grows with the load.
LOAD_MAX = 5.0
#: How busy the machine is when the run begins, or will be because of the run's own processes.
BUSY = max(os.getloadavg()[0], float(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
PATIENCE_FACTOR = min(max(BUSY / (os.cpu_count() or 1), 1.0), LOAD_MAX)
#: Seconds until a test fails that waits for an effect; longer if the machine is busy when the run begins. A passing
#: test does not wait so long, and no measurement uses this.
PATIENCE_SECONDS = 300.0 * PATIENCE_FACTOR
LOOK_SECONDS = 0.05
#: Above any patience, the longest session that brokers allow: a process that gets no CPU for a while, or takes long to
#: start in the place of a killed one, keeps its tasks. What moves them is never the end of a session.
LONGEST_SESSION_MS = 1_800_000


def eventually(
    check: Callable[[], bool], what: str | Callable[[], object] = "", patience_seconds: float = PATIENCE_SECONDS
) -> float:
    """Wait until check() is true; return the seconds that took. what: describes the condition, or its progress."""
    begin, pace = time.monotonic(), threading.Event()
    while not check():
        assert time.monotonic() - begin < patience_seconds, (
            f"it never came true that {what}" if isinstance(what, str) else f"it never came true; at last: {what()}"
        )
        pace.wait(LOOK_SECONDS)
    return time.monotonic() - begin


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended. A zombie has: it only waits for its parent."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_for_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until all leaders of a new topic, or of a change, are shown and serve their partitions.

    A broker learns of both with a delay, and shows itself as a leader before it is one: it would refuse the first batch
    of a producer, and the batches that are in flight behind it would overtake it.
    """

    def is_shown() -> bool:
        found = admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics.get(topic, TopicMetadata()).partitions or {}
        return len(found) == count and all(partition.leader >= 0 for partition in found.values())

    def is_served() -> bool:
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return not _refusals(admin.list_offsets({TopicPartition(topic, number): earliest for number in range(count)}))

    eventually(is_shown, f"{topic} has {count} partitions with leaders")
    eventually(is_served, f"the leaders of {topic} serve its partitions")


def change_settings(admin: AdminClient, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic or a group; return when the broker that is asked shows them."""
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in settings.items()]
    change, asked = ConfigResource(kind, name, incremental_configs=entries), ConfigResource(kind, name)
    admin.incremental_alter_configs([change])[change].result(PATIENCE_SECONDS)

    def shown() -> dict[str, str | None]:
        found = admin.describe_configs([asked])[asked].result(PATIENCE_SECONDS)
        return {setting: found[setting].value for setting in settings if setting in found}

    eventually(lambda: shown() == settings, lambda: f"{name} has {shown()}, not {settings}")


def allow_deletions(admin: AdminClient, topic: str) -> None:
    """Let records of a compacted topic be deleted, which brokers refuse otherwise."""
    change_settings(admin, ResourceType.TOPIC, topic, {"cleanup.policy": "compact,delete"})


def deny(admin: AdminClient, topic: str, operation: AclOperation) -> None:
    """Forbid all clients an operation on a topic; return when the broker, of which there is one, has heard of it."""
    pattern, who = ResourcePatternType.LITERAL, ("User:ANONYMOUS", "*")
    rule = AclBinding(ResourceType.TOPIC, topic, pattern, *who, operation, AclPermissionType.DENY)
    admin.create_acls([rule])[rule].result(PATIENCE_SECONDS)
    asked = AclBindingFilter(ResourceType.TOPIC, topic, pattern, *who, operation, AclPermissionType.DENY)
    eventually(lambda: rule in admin.describe_acls(asked).result(PATIENCE_SECONDS), f"{topic} is forbidden")


def delete_records(admin: AdminClient, topic: str, offsets: Mapping[int, int]) -> None:
    """Delete the records of each partition below its offset, as soon as the leaders know that they lead and may."""
    places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    refusals: dict[TopicPartition, KafkaException] = {}

    def is_deleted() -> bool:
        nonlocal refusals
        refusals = _refusals(admin.delete_records(places), ErrorCode.POLICY_VIOLATION)
        return not refusals

    eventually(is_deleted, lambda: f"the leaders of {topic} refuse to delete records: {refusals}")


def _refusals(
    asked: Mapping[TopicPartition, Future[Any]], *passing: ErrorCode
) -> dict[TopicPartition, KafkaException]:
    """Return the errors of leaders that pass: those that Kafka calls retriable, and these; raises any other one."""
    refusals = {}
    for partition, answer in asked.items():
        try:
            answer.result(PATIENCE_SECONDS)
        except KafkaException as error:
            code = ErrorCode(error.args[0].code())
            if not (code.retriable or code in passing):
                raise
            refusals[partition] = error
    return refusals
