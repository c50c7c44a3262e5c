"""Restores of window stores begin with the rows that have not expired, and leave the same rows as whole restores."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    JoinWindows,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StateRestoreListener,
    Stores,
    StreamsBuilder,
    TimeWindows,
)
from penstock.clients.errors import ErrorCode, broker_error
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.restore import changelog
from penstock.workers.restore.changelog import PROBED_OFFSETS
from penstock.workers.tasks.changelog_bounds import ChangelogBounds
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT
from tests.workers.direct_io import DirectWriter
from tests.workers.test_standby_tasks import Pair
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TASK = TaskId(0, 0)
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
RECORDS = 3_000
STEP_MS = 3_000
TEN_SECONDS = timedelta(seconds=10)
#: More than there are: no changelog is probed.
NEVER = 1_000_000


def windowed(windows: Any, store_type: str = "rocksDB") -> Any:
    builder = StreamsBuilder()
    grouped = builder.stream(IN, **TEXT).group_by_key()
    grouped.windowed_by(windows).count(store=Materialized("counts", store_type=store_type, caching=False))
    return builder.build()


def joined() -> Any:
    builder = StreamsBuilder()
    left, right = builder.stream(IN, **TEXT), builder.stream("right", **TEXT)
    windows = JoinWindows(TEN_SECONDS, grace=TEN_SECONDS)
    left.join(right, lambda one, other: one + other, windows, name="join").to(OUT, **TEXT)
    return builder.build()


TOPOLOGIES: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: windowed(TimeWindows(TEN_SECONDS)),
    "hopping": lambda: windowed(TimeWindows(timedelta(minutes=5), grace=TEN_SECONDS, advance=timedelta(minutes=1))),
    "sliding": lambda: windowed(SlidingWindows(TEN_SECONDS, grace=timedelta(minutes=1))),
    "in memory": lambda: windowed(TimeWindows(TEN_SECONDS, grace=TEN_SECONDS), "in_memory"),
    "join": joined,
}


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    for name in (IN, "right", OUT):
        cluster.create_topic(name, 1)


def feed(cluster: DirectKafka, first: int = 0, records: int = RECORDS) -> None:
    """Write records of which some are late."""
    choice = random.Random(first)
    for number in range(first, first + records):
        late = choice.choice((0, 0, 0, 5_000, 40_000))
        topic = choice.choice((IN, "right"))
        cluster.append(topic, 0, b"k%d" % choice.randrange(5), b"v", max(number * STEP_MS - late, 0))


def rows(thread: Thread) -> dict[str, list[Any]]:
    stores = thread.task_manager.active.running[TASK].state_manager.stores
    return {name: list(store.rows.scan(None, None)) for name, store in stores.items()}


def processed(app: Application, **how: Any) -> Thread:
    """Return a thread that has processed and committed everything."""
    thread = app.thread(**how).until_running()
    ends = [app.stage.cluster.log(TopicPartition(topic, 0)).end for topic in (IN, "right")]
    thread.until(
        lambda: (
            not any(
                (thread.consumer.positions.get(TopicPartition(topic, 0), end) or 0) < end
                for topic, end in zip((IN, "right"), ends, strict=True)
            )
        )
    )
    thread.step(20).commit()
    return thread


def restored(app: Application, slot: int, monkeypatch: pytest.MonkeyPatch, probe_from: int) -> tuple[Any, int]:
    """Return the rows after a restore without files, and how many records it read."""
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", probe_from)
    state = app.stage.state_dir / "app"
    if state.exists():
        state.rename(app.stage.state_dir / f"gone-{slot}")
    thread = app.thread(slot=slot).until_running()
    found = rows(thread), thread.changelog_reader.total_restored
    thread.close()
    return found


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_expired_rows_are_not_read(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch, kind: str, guarantee: str
) -> None:
    app = application(TOPOLOGIES[kind](), processing_guarantee=guarantee)
    feed(cluster)
    processed(app).close()
    everything, read = restored(app, 2, monkeypatch, NEVER)
    alive, needed = restored(app, 3, monkeypatch, 100)
    assert alive == everything
    assert any(alive.values())
    print(f"\n{kind}, {guarantee}: read {needed} records in place of {read}")
    assert needed * 5 < read


def test_sessions_and_stores_of_processors_are_read_as_a_whole(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late record in a long session logs an old time; a processor may put any window at any time."""
    app = application(windowed(SessionWindows(TEN_SECONDS)))
    feed(cluster)
    processed(app).close()
    everything, read = restored(app, 2, monkeypatch, NEVER)
    alive, needed = restored(app, 3, monkeypatch, 100)
    assert (alive, needed) == (everything, read)
    store = Stores.window_store_builder(Stores.persistent_window_store("own", 1000, 10))
    assert not store.logged_in_window


def test_a_store_on_disk_skips_what_has_expired_since(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(windowed(TimeWindows(TEN_SECONDS)))
    feed(cluster)
    processed(app).close()
    old, gone = app.stage.state_dir / "app", app.stage.state_dir / "old"
    shutil.copytree(old, gone)
    feed(cluster, RECORDS)
    processed(app, slot=4).close()
    everything, read = restored(app, 2, monkeypatch, NEVER)
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(gone, old)
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", 100)
    thread = app.thread(slot=3).until_running()
    assert rows(thread) == everything
    assert thread.changelog_reader.total_restored * 50 < read


def test_a_store_on_disk_does_not_go_back(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(windowed(TimeWindows(timedelta(days=1))))  # nothing expires
    feed(cluster)
    processed(app).close()
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", 3)
    for number in range(5):
        key = b"new" + struct.pack(">qi", number * 1_000, 0)
        cluster.append("app-counts-changelog", 0, key, b"\0" * 16, RECORDS * STEP_MS)
    thread = app.thread(slot=2).until_running()
    assert thread.changelog_reader.total_restored == 5


def test_a_changelog_that_was_trimmed_is_restored_from_what_is_left(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(windowed(TimeWindows(TEN_SECONDS)))
    feed(cluster)
    processed(app).close()
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", 100)
    everything, needed = restored(app, 2, monkeypatch, NEVER)
    log = cluster.log(TopicPartition("app-counts-changelog", 0))
    trimmed: list[int] = []

    class Trim(StateRestoreListener):
        """Trims the changelog up to ten records before its end, once the restore has begun."""

        def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, *_: Any) -> None:
            if not trimmed:
                log.delete_before(log.end - 10)
            trimmed.append(starting_offset)

    shutil.rmtree(app.stage.state_dir / "app")
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", 100)
    thread = app.thread(slot=3, state_restore_listener=Trim()).until_running()
    assert rows(thread) == everything
    assert trimmed[0] >= log.end - 10, "so the trimming did not even touch it"
    assert needed > 1000


def abort(cluster: DirectKafka, records: int) -> None:
    """Write records of later windows to the changelog, and abort the transaction."""
    other = DirectWriter(cluster, "other", "other")
    other.init_transactions(1)
    other.begin_transaction()
    for number in range(records):
        time_ms = 10 * RECORDS * STEP_MS + number * 10_000
        key = b"k1" + struct.pack(">qi", time_ms, 0)
        other.produce("app-counts-changelog", key, b"\0" * 16, 0, time_ms)
    other.flush()
    other.abort_transaction(1)


@pytest.mark.parametrize("aborted", [5, PROBED_OFFSETS + 5, 10 * PROBED_OFFSETS])
def test_aborted_records_do_not_count_as_the_newest(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch, aborted: int
) -> None:
    app = application(windowed(TimeWindows(TEN_SECONDS)), processing_guarantee="exactly_once_v2")
    feed(cluster)
    processed(app).close()
    everything, read = restored(app, 2, monkeypatch, NEVER)
    abort(cluster, aborted)
    alive, needed = restored(app, 3, monkeypatch, 100)
    assert alive == everything
    assert needed < 100 < read


def test_if_all_records_were_aborted_nothing_is_restored(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(windowed(TimeWindows(TEN_SECONDS)), processing_guarantee="exactly_once_v2")
    app.thread().until_running().close()  # creates the changelog
    abort(cluster, 10 * PROBED_OFFSETS)
    assert restored(app, 2, monkeypatch, 100) == ({"counts": []}, 0)


def test_if_the_offset_cannot_be_looked_up_everything_is_read(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(windowed(TimeWindows(TEN_SECONDS)))
    feed(cluster)
    processed(app).close()
    everything, read = restored(app, 2, monkeypatch, NEVER)

    def refuse(*_: Any) -> Future[int]:
        refused: Future[int] = Future()
        refused.set_exception(broker_error(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "no times"))
        return refused

    monkeypatch.setattr(ChangelogBounds, "first_at", refuse)
    assert restored(app, 3, monkeypatch, 100) == (everything, read)


def test_a_standby_task_skips_them_too(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "PROBE_FROM_OFFSETS", 100)
    app = application(windowed(TimeWindows(TEN_SECONDS)), num_standby_replicas=1)
    feed(cluster)
    processed(app).close()
    pair = Pair(app)
    reader = pair.standby.changelog_reader
    pair.standby.until(lambda: reader.lag(*pair.standby.task_manager.standby.running.values()) == 0)
    assert 0 < reader.total_updated < 100
    (store,) = pair.standby.task_manager.standby.running[TASK].state_manager.stores.values()
    (kept,) = rows(pair.active).values()
    assert list(store.rows.scan(None, None)) == kept
