"""Checkpoints in object storage, taken and loaded by stream threads over an in-memory Kafka cluster."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder
from penstock.statestore.checkpoints.bucket import Bucket
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import TaskCheckpoints
from penstock.topology.records import TaskId
from penstock.workers.control.messages import CheckpointStatus
from penstock.workers.tasks.processor_state_manager import CHECKPOINT_INTERVAL_MS
from penstock.workers.thread.thread_status import CHECKPOINT_GROUP
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import eventually
from tests.workers.counting import CHANGELOG, IN, OUT, counting, counts, feed
from tests.workers.test_function_metrics import status_of
from tests.workers.test_task_metrics import measured
from tests.workers.thread_stage import Application, Stage, Thread

TASK = TaskId(0, 0)
NEVER = 10**9
Make = Callable[..., Application]


class Place:
    """A bucket in a directory, and the application that uses it."""

    def __init__(self, folder: Path, stage: Stage, make: Make) -> None:
        self.folder, self.stage, self._make = folder, stage, make
        self.checkpoints = TaskCheckpoints(Bucket(f"file://{folder}", "app"), str(TASK))

    def application(self, topology: Any = None, **config: Any) -> Application:
        times = {"commit_interval_ms": NEVER, "transaction_timeout_ms": NEVER, "penstock_checkpoint_interval_ms": 1}
        uri = {"penstock_checkpoint_uri": f"file://{self.folder}"}
        return self._make(topology or counting(), **{**uri, **times, **config})

    def manifests(self) -> list[Manifest]:
        found = [each.manifest for each in self.checkpoints.found()]
        return [each for each in found if isinstance(each, Manifest)]

    def take(self, thread: Thread) -> Manifest:
        """Make a thread commit, and wait until the checkpoint of this commit is uploaded."""
        before = len(self.manifests())
        self.stage.clock.advance(CHECKPOINT_INTERVAL_MS + 1)
        thread.step().commit()
        eventually(lambda: len(self.manifests()) > before, "a checkpoint is uploaded")
        return self.manifests()[0]

    def replace(self, taken: Manifest, **changes: Any) -> None:
        """Change a manifest, as if it had been written so."""
        folder = self.folder / "app" / str(TASK) / "manifests"
        (folder / taken.name).unlink()
        changed = replace(taken, **changes)
        (folder / changed.name).write_bytes(changed.encode())

    def lose_disk(self) -> None:
        shutil.rmtree(self.stage.state_dir / "app")


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka, clock: ManualClock) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    clock.epoch_ms = time.time_ns() // 1_000_000 - clock.now_ms  # the bucket's clock is a real one


@pytest.fixture
def place(tmp_path: Path, stage: Stage, application: Make) -> Place:
    return Place(tmp_path / "bucket", stage, application)


def running(thread: Thread) -> Thread:
    """Step until a thread runs: its checkpoint is loaded beside it."""

    def is_running() -> bool:
        return bool(thread.step().state.name == "RUNNING")

    eventually(is_running, "the thread runs")
    return thread


def replayed(thread: Thread) -> int:
    return int(thread.changelog_reader.total_restored)


def waits(thread: Thread) -> tuple[str, ...]:
    found: tuple[str, ...] = thread.task_manager.active.creator.environment.checkpoints.waits()
    return found


def log_lines(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if "checkpoints" in record.name)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return what was logged about checkpoints."""
    caplog.set_level(logging.INFO)
    return lambda: log_lines(caplog)


Log = Callable[[], str]


class Counted:
    """A thread that has counted five records, taken a checkpoint, and counted two more; then its disk was lost."""

    def __init__(self, place: Place, cluster: DirectKafka, **config: Any) -> None:
        self.place, self.cluster = place, cluster
        self.app = place.application(**config)
        thread = running(self.app.thread())
        feed(cluster, "ababc")
        thread.step(3)
        self.taken = place.take(thread)
        feed(cluster, "ad")
        thread.step(3).commit()
        thread.close()
        place.lose_disk()

    def restart(self, app: Application | None = None) -> int:
        """Return how many records the changelog's replay had; the state must be right in any case."""
        again = running((app or self.app).thread())
        self.cluster.append(IN, 0, b"a", b"value", 5000)
        again.step(3).commit()
        assert counts(self.cluster) == {"a": 4, "b": 2, "c": 1, "d": 1}
        again.close()
        return replayed(again)


#: The changelog has three counts of the first five records and two of the others.
ALL, TAIL = 5, 2


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_task_without_state_replays_only_what_came_after_its_checkpoint(
    place: Place, cluster: DirectKafka, guarantee: str, log: Log
) -> None:
    counted = Counted(place, cluster, processing_guarantee=guarantee)
    taken = counted.taken
    assert (taken.task, taken.stores["counts"].topic) == ("0_0", CHANGELOG)
    assert [(each.topic, each.offset, each.time_ms) for each in taken.inputs] == [(IN, 5, 1004)]
    assert counted.restart() == TAIL
    assert re.search(r"Loading checkpoint \S+ of task 0_0: 0.\d MiB", log())
    assert re.search(
        r"Loaded checkpoint \S+ of task 0_0: 0.\d MiB in .* taken \d+ s ago; its changelogs are rep", log()
    )


def test_without_a_checkpoint_the_changelog_is_replayed(place: Place, cluster: DirectKafka, log: Log) -> None:
    counted = Counted(place, cluster)
    shutil.rmtree(place.folder)
    assert counted.restart() == ALL
    assert "Restoring task 0_0 from its changelog: there is no checkpoint" in log()


def test_state_on_disk_is_used_before_a_checkpoint(place: Place, cluster: DirectKafka, log: Log) -> None:
    counted = Counted(place, cluster)
    assert counted.restart() == TAIL
    loads = log().count("Loaded")
    feed(cluster, "")
    assert replayed(running(counted.app.thread())) == 0
    assert log().count("Loaded") == loads == 1


def test_deleted_keys_do_not_come_back(place: Place, cluster: DirectKafka, log: Log) -> None:
    """A checkpoint that is older than the tombstones are kept is not used."""
    counted = Counted(place, cluster)
    place.stage.clock.advance(86_400_000)
    assert counted.restart() == ALL
    assert "keeps tombstones for 86400 s (delete.retention.ms): deleted keys could come back" in log()


@pytest.mark.parametrize("ahead_ms", [400_000, -400_000])
def test_a_clock_that_is_wrong_costs_a_checkpoint_and_not_the_state(
    place: Place, cluster: DirectKafka, log: Log, ahead_ms: int
) -> None:
    """The clock of this host is behind that of the bucket, or the one of the writer was ahead of both."""
    if ahead_ms < 0:
        counted = Counted(place, cluster)
        place.stage.clock.epoch_ms += ahead_ms
    else:
        place.stage.clock.epoch_ms += ahead_ms
        counted = Counted(place, cluster)
        place.stage.clock.epoch_ms -= ahead_ms
    assert counted.restart() == ALL
    assert re.search(r"is not used: it is \d+ s from the future: the clock of this host or of its writer is ", log())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic_id": "0a" * 16}, "the changelog app-counts-changelog was deleted and created again since"),
        ({"offset": 9}, "it ends at offset 9 of app-counts-changelog-0, which has the committed offsets 0 to 5"),
        ({"topic": "other"}, "the store counts has the changelog app-counts-changelog-0 now, not other"),
    ],
)
def test_a_checkpoint_of_another_changelog_is_not_used(
    place: Place, cluster: DirectKafka, log: Log, change: dict[str, Any], reason: str
) -> None:
    counted = Counted(place, cluster)
    place.replace(counted.taken, stores={"counts": replace(counted.taken.stores["counts"], **change)})
    assert counted.restart() == ALL
    assert f"is not used: {reason}" in log()


def test_a_damaged_file_costs_a_checkpoint_and_not_the_state(place: Place, cluster: DirectKafka, log: Log) -> None:
    counted = Counted(place, cluster)
    for file in (place.folder / "app" / "0_0" / "files").iterdir():
        file.write_bytes(b"x" * file.stat().st_size)
    assert counted.restart() == ALL
    assert re.search(r"is not used: .* is damaged: it has \d+ bytes and another checksum", log())
    assert "Restoring task 0_0 from its changelog: no checkpoint fits" in log()


def test_an_older_checkpoint_is_used_in_place_of_a_damaged_one(place: Place, cluster: DirectKafka) -> None:
    counted = Counted(place, cluster)
    newer = place.folder / "app" / "0_0" / "manifests" / f"9{counted.taken.name[1:]}"
    newer.write_bytes(b'{"sha256": "torn')
    assert counted.restart() == TAIL


def test_stores_of_another_offset_than_the_manifest_says_are_not_used(
    place: Place, cluster: DirectKafka, log: Log
) -> None:
    """The files are whole, and their database is another one: it is deleted, and not loaded again."""
    counted = Counted(place, cluster)
    stores = {"counts": replace(counted.taken.stores["counts"], offset=2)}
    place.replace(counted.taken, stores=stores)
    assert counted.restart() == ALL
    assert "is not used: it was loaded before, and its stores could not be used" in log()


def test_a_checkpoint_of_another_version_of_the_store_is_not_used(place: Place, cluster: DirectKafka, log: Log) -> None:
    counted = Counted(place, cluster)
    facts = {**counted.taken.facts, "stores": {"counts": {**counted.taken.facts["stores"]["counts"], "backend": "x"}}}
    place.replace(counted.taken, facts=facts)
    assert counted.restart() == ALL
    assert "is not used: it is from another version of the topology: counts" in log()


def test_a_bucket_that_cannot_be_used_stops_no_task(place: Place, cluster: DirectKafka, log: Log) -> None:
    counted = Counted(place, cluster)
    shutil.rmtree(place.folder)
    place.folder.write_text("a file")
    assert counted.restart() == ALL
    assert re.search(r"Restoring task 0_0 from its changelog: .*file://", log())
    thread = running(counted.app.thread())
    place.stage.clock.advance(CHECKPOINT_INTERVAL_MS + 1)
    feed(cluster, "a")
    thread.step(3).commit()
    eventually(lambda: "No checkpoint of task 0_0 was uploaded: " in log(), "the failure is logged")
    assert thread.state.name == "RUNNING"


def test_a_standby_task_begins_with_a_checkpoint(place: Place, cluster: DirectKafka, log: Log) -> None:
    app = place.application(num_standby_replicas=1)
    first = running(app.thread())
    feed(cluster, "ababc")
    first.step(3)
    taken = place.take(first)
    elsewhere = Application(
        place.stage, app.topology, {**app.config, "state.dir": str(place.stage.state_dir / "other")}
    )
    standby = elsewhere.thread(slot=2, process_id="7fffffff-0000-0000-0000-000000000002")

    def follows() -> bool:
        first.step()
        standby.step()
        return TASK in standby.task_manager.standby.running

    eventually(follows, lambda: (standby.state, standby.task_manager.all_tasks(), first.state, log()))
    assert "Loaded checkpoint" in log()
    assert standby.changelog_reader.total_updated == 0
    (store,) = standby.task_manager.standby.running[TASK].state_manager.stores.values()
    assert store.committed_offset() == taken.stores["counts"].offset


def test_a_task_that_leaves_while_it_loads_ends_the_load(place: Place, cluster: DirectKafka) -> None:
    counted = Counted(place, cluster)
    thread = counted.app.thread()
    thread.until(lambda: thread.task_manager.active.created)
    thread.step()
    assert [text.partition(",")[0] for text in waits(thread)] == ["loading the checkpoint of task 0_0"]
    shown = status_of(thread).checkpoint
    assert shown is not None
    assert (shown.age_seconds, shown.uploads, shown.loading_bytes is None) == (None, 0, False)
    thread.close()
    assert not list((place.stage.state_dir / "app" / "0_0" / "transfers").glob("load/*"))
    assert counted.restart() == TAIL


def test_the_status_and_metrics_show_uploads(place: Place, cluster: DirectKafka) -> None:
    thread = running(place.application(penstock_checkpoint_interval_ms=10_000).thread())
    assert checkpoint_of(thread).uploads == 0
    feed(cluster, "ab")
    thread.step(3)
    taken = place.take(thread)
    eventually(lambda: checkpoint_of(thread).uploads == 1, "the upload has ended")
    place.stage.clock.advance(25_000)
    thread.step()
    shown, found = checkpoint_of(thread), measured(thread, CHECKPOINT_GROUP, task_id="0_0")
    assert shown.bytes == found["bytes"] == taken.total_bytes > 0
    assert shown.age_seconds == pytest.approx(found["age-seconds"], abs=5)
    assert found["age-seconds"] >= 25
    assert found["intervals-missed"] >= 2
    assert shown.upload_seconds == found["upload-seconds"] >= 0
    assert (shown.failures, shown.loading_bytes) == (found["failed-uploads-total"], None) == (0, None)


def checkpoint_of(thread: Thread) -> CheckpointStatus:
    found = status_of(thread).checkpoint
    assert found is not None
    return found


def test_a_task_without_stores_has_no_checkpoints_and_no_age(place: Place, cluster: DirectKafka) -> None:
    builder = StreamsBuilder()
    raw: dict[str, Any] = {"key_serde": Serdes.bytes(), "value_serde": Serdes.bytes()}
    builder.stream(IN, **raw).to(OUT, **raw)
    thread = running(place.application(builder.build()).thread())
    feed(cluster, "ab")
    thread.step(3)
    place.stage.clock.advance(CHECKPOINT_INTERVAL_MS + 1)
    thread.commit()
    assert status_of(thread).checkpoint is None
    with pytest.raises(AssertionError, match=f"{CHECKPOINT_GROUP} .*: \\[\\]"):
        measured(thread, CHECKPOINT_GROUP, task_id="0_0")
    assert place.manifests() == []


def test_uploads_leave_no_hard_links(place: Place, cluster: DirectKafka) -> None:
    thread = running(place.application().thread())
    feed(cluster, "ab")
    thread.step(3)
    place.take(thread)
    transfers = place.stage.state_dir / "app" / "0_0" / "transfers"
    eventually(lambda: [path.name for path in transfers.iterdir()] == ["hashes.json"], "only the hashes remain")


def test_checkpoints_are_taken_once_per_interval(place: Place, cluster: DirectKafka) -> None:
    thread = running(place.application(penstock_checkpoint_interval_ms=100_000).thread())
    feed(cluster, "ab")
    thread.step(3)
    place.stage.clock.advance(100_000)  # the first one is due within an interval
    thread.step().commit()
    eventually(lambda: len(place.manifests()) == 1, "the first one is uploaded")
    eventually(lambda: not is_uploading(thread), "the upload ends")
    feed(cluster, "c")
    place.stage.clock.advance(CHECKPOINT_INTERVAL_MS + 1)
    thread.step(3).commit()
    assert not is_uploading(thread)
    place.stage.clock.advance(100_000)
    thread.step().commit()
    eventually(lambda: len(place.manifests()) == 2, "the second one is uploaded")


def is_uploading(thread: Thread) -> bool:
    return any(
        not each.asked.done() for each in thread.task_manager.active.creator.environment.checkpoints._uploads.values()
    )


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_the_state_of_an_idle_task_is_uploaded_once(place: Place, cluster: DirectKafka, guarantee: str) -> None:
    thread = running(
        place.application(penstock_checkpoint_interval_ms=100_000, processing_guarantee=guarantee).thread()
    )
    feed(cluster, "ab")
    thread.step(3).commit()
    place.stage.clock.advance(CHECKPOINT_INTERVAL_MS + 1)
    thread.step().commit()
    assert not is_uploading(thread)
    assert place.manifests() == []
    place.stage.clock.advance(100_000)
    thread.step().commit()
    eventually(lambda: len(place.manifests()) == 1, "it is uploaded when it is due, although nothing has come since")
    eventually(lambda: not is_uploading(thread), "the upload ends")
    for _ in range(3):
        place.stage.clock.advance(100_000)
        thread.step().commit()
        assert not is_uploading(thread)
    assert len(place.manifests()) == 1
    status = status_of(thread).checkpoint
    assert status is not None
    assert status.age_seconds is not None
    assert status.age_seconds < 100, "nothing has changed since"
