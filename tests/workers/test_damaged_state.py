"""Files of a task that were damaged while nobody ran: the thread starts all the same, and counts on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from counting import IN, OUT, counting, counts, feed
from memory_kafka import Cluster
from thread_stage import Application

from penstock.statestore.checkpoint import CHECKPOINT_FILE_NAME


@pytest.mark.parametrize("content", [b"\xf1\x00\xff", b"", b"0\n7\n", b"0\n1\napp-counts-changelog 0 99999999\n"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_damaged_checkpoint_is_no_more_than_a_hint(
    cluster: Cluster, application: Callable[..., Application], guarantee: str, content: bytes
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), processing_guarantee=guarantee)
    feed(cluster, "aab")
    app.thread().until_idle().close()
    (note,) = Path(app.stage.state_dir).rglob(CHECKPOINT_FILE_NAME)
    note.write_bytes(content)
    feed(cluster, "a")
    app.thread().until_idle().commit()
    assert counts(cluster) == {"a": 3, "b": 1}
