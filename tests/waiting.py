"""Waiting for effects of other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, TopicMetadata

PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05


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


def wait_for_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until the broker, which learns of it with a delay, shows a new topic or a change, with all leaders."""

    def is_shown() -> bool:
        found = admin.list_topics(topic, timeout=10).topics.get(topic, TopicMetadata()).partitions or {}
        return len(found) == count and all(partition.leader >= 0 for partition in found.values())

    eventually(is_shown, f"{topic} has {count} partitions with leaders", patience_seconds=10)
