"""A serde's error belongs to the record, not to the store: no store is reported as damaged,
or wiped, because of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from penstock import Materialized, Serdes, StreamsBuilder, StreamsError
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.errors import TaskCorruptedError
from penstock.topology.records import TaskId
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, feed
from tests.workers.thread_stage import Application

CHANGELOG = "app-counts-changelog"
#: RocksDB's wording for a damaged file; a checksum in a user's serde may use the same.
ERRORS = [Exception("Corruption: block checksum mismatch"), ValueError("corrupt"), OSError("IO error: No such file")]


class Moody:
    """A serde of decimal numbers that fails on request."""

    read: ClassVar[Exception | None] = None
    write: ClassVar[Exception | None] = None

    def serialize(self, topic: str, value: int | None) -> bytes | None:
        if self.write is not None:
            raise self.write
        return None if value is None else b"%d" % value

    def deserialize(self, topic: str, data: bytes | None) -> int | None:
        if self.read is not None:
            raise self.read
        return None if data is None else int(data)


@pytest.fixture
def wiped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record which tasks are wiped."""
    found: list[Any] = []
    wipe = StateDirectory.wipe

    def noted(directory: StateDirectory, task: TaskId) -> None:
        found.append(task)
        wipe(directory, task)

    monkeypatch.setattr(StateDirectory, "wipe", noted)
    return found


@pytest.mark.parametrize("error", ERRORS, ids=str)
@pytest.mark.parametrize("fails", ["read", "write", "restore"])
@pytest.mark.parametrize("cache", [0, 1_000_000])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_serde_error_wipes_no_store(
    cluster: DirectKafka,
    application: Callable[..., Application],
    monkeypatch: pytest.MonkeyPatch,
    wiped: list[Any],
    error: Exception,
    fails: str,
    cache: int,
    guarantee: str,
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    kept = Materialized("counts", key_serde=Serdes.string(), value_serde=Moody())
    builder = StreamsBuilder()
    stream = builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.group_by_key().aggregate(lambda: 0, lambda key, value, total: total + 1, store=kept).to_stream().to(
        OUT, key_serde=Serdes.string(), value_serde=Moody()
    )
    app = application(builder.build(), processing_guarantee=guarantee, statestore_cache_max_bytes=cache)
    feed(cluster, "aab")
    app.thread().until_idle().close()
    if fails == "restore":  # on another host, whose serde fails from the start
        app.stage.state_dir = app.stage.state_dir / "elsewhere"
    feed(cluster, "a")
    with monkeypatch.context() as mood:
        mood.setattr(Moody, "write" if fails == "write" else "read", error)
        thread = app.thread()
        with pytest.raises(StreamsError) as raised:
            thread.until_idle().commit()
        assert not isinstance(raised.value, TaskCorruptedError)
        thread.crash()
    app.thread().until_idle().commit()
    assert wiped == []
    assert cluster.table(OUT) == {b"a": b"3", b"b": b"1"}
    assert cluster.table(CHANGELOG)[b"a"] == b"3"
