"""Damaged files and truncated changelogs, with real RocksDB files: the task is wiped, restored and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.thread.stream_thread import RestoreBudget
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("app-counts-changelog", 0)
#: Enough rows for a file of several blocks.
KEYS = 2_000


def one(files: list[Path]) -> Path:
    return max(files, key=lambda file: file.stat().st_size)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Invert the bits between the first bytes and the index."""
    data = bytearray(path.read_bytes())
    for position in range(100, len(data) // 2):
        data[position] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "CURRENT empty": lambda store: (store / "CURRENT").write_bytes(b""),
    "CURRENT missing": lambda store: (store / "CURRENT").unlink(),
    "MANIFEST missing": lambda store: one(list(store.glob("MANIFEST-*"))).unlink(),
    "MANIFEST flipped": lambda store: flip(one(list(store.glob("MANIFEST-*")))),
    "table missing": lambda store: one(list(store.glob("*.sst"))).unlink(),
    "table truncated": lambda store: truncate(one(list(store.glob("*.sst")))),
    "table flipped": lambda store: flip(one(list(store.glob("*.sst")))),
}


@pytest.fixture
def app(cluster: DirectKafka, application: MakeApplication) -> Application:
    """An application whose changelog has a count of 1 for each of many keys, after a process has run."""
    for topic in (IN, OUT, CHANGELOG.topic):
        cluster.create_topic(topic, 1)
    for number in range(KEYS):
        cluster.append(CHANGELOG.topic, 0, b"k%06d" % number, b"\0\0\0\0\0\0\0\1", 1)
    made = application(counting())
    made.thread().until_idle().close()
    return made


def store_directory(app: Application) -> Path:
    return app.stage.state_dir / "app" / "0_0" / "stores" / "counts"


def count_on(cluster: DirectKafka, thread: Thread) -> None:
    """Count a record of each of some keys, spread over the whole store."""
    for number in range(0, KEYS, 100):
        cluster.append(IN, 0, b"k%06d" % number, b"", 2000)
    thread.until_idle().step(20).commit()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_wiped_and_restored(
    cluster: DirectKafka, app: Application, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[damage](store_directory(app))
    thread = app.thread()
    count_on(cluster, thread)
    assert "Detected the states of tasks [0_0] are corrupted" in caplog.text
    assert "damaged" in caplog.text
    assert thread.changelog_reader.total_restored == KEYS
    assert counts(cluster) == {f"k{number:06d}": 2 for number in range(0, KEYS, 100)}


def test_a_handler_that_continues_is_not_called_for_a_damaged_file(
    cluster: DirectKafka, app: Application, application: MakeApplication
) -> None:
    """It would drop the records whose rows cannot be read."""
    flip(one(list(store_directory(app).glob("*.sst"))))
    thread = application(counting(), processing_exception_handler="log_and_continue").thread()
    count_on(cluster, thread)
    assert thread.changelog_reader.total_restored == KEYS
    assert counts(cluster) == {f"k{number:06d}": 2 for number in range(0, KEYS, 100)}


def test_undamaged_files_are_kept(cluster: DirectKafka, app: Application) -> None:
    thread = app.thread()
    count_on(cluster, thread)
    assert thread.changelog_reader.total_restored == 0
    assert counts(cluster) == {f"k{number:06d}": 2 for number in range(0, KEYS, 100)}


def test_a_store_with_a_truncated_manifest_is_restored_from_its_older_state(
    cluster: DirectKafka, app: Application
) -> None:
    truncate(one(list(store_directory(app).glob("MANIFEST-*"))))
    thread = app.thread()
    count_on(cluster, thread)
    assert thread.changelog_reader.total_restored == KEYS
    assert counts(cluster) == {f"k{number:06d}": 2 for number in range(0, KEYS, 100)}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_does_not_end_silently_at_a_damaged_block(app: Application, reverse: bool) -> None:
    flip(one(list(store_directory(app).glob("*.sst"))))
    store = RocksDBStore(store_directory(app))
    try:
        with pytest.raises(Exception, match="Corruption: block checksum mismatch"):
            list(store.scan(None, None, reverse))
        with pytest.raises(Exception, match="Corruption: block checksum mismatch"):
            store.rows(b"k000000", b"k002000")
    finally:
        store.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(None, None, 4), (b"b", None, 3), (None, b"b", 1), (b"b", b"d", 2), (b"x", None, 0), (None, b"0", 0)],
)
def test_scans_of_an_undamaged_store_return_all_rows(
    tmp_path: Path, start: bytes | None, end: bytes | None, found: int, reverse: bool
) -> None:
    store = RocksDBStore(tmp_path / "store")
    try:
        store.restore([(key, b"") for key in (b"a", b"b", b"c", b"e")], 4)
        assert len(list(store.scan(start, end, reverse))) == found
    finally:
        store.close()


def test_a_changelog_truncated_beyond_the_store_is_restored_from_its_beginning(
    cluster: DirectKafka, app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        cluster.append(CHANGELOG.topic, 0, b"new%d" % number, b"\0\0\0\0\0\0\0\1", 1)
    cluster.log(CHANGELOG).delete_before(KEYS + 5)  # someone has deleted records
    thread = app.thread().until_idle()
    assert f"its store is at offset {KEYS}, but the changelog holds offsets {KEYS + 5} to {KEYS + 10}" in caplog.text
    assert thread.changelog_reader.total_restored == 5
    store = thread.task_manager.active.running[TASK].state_manager.stores["counts"]
    assert store.get("k000000") is None
    assert store.get("new9").value == 1


def test_a_changelog_truncated_while_it_is_read_is_read_from_its_beginning(
    cluster: DirectKafka, app: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.workers.thread.stream_thread.RESTORE_ALONE_BUDGET", RestoreBudget(0, 100))
    app.stage.state_dir.joinpath("app").rename(app.stage.state_dir / "gone")
    thread = app.thread()
    thread.until(lambda: thread.changelog_reader.total_restored == 300)
    cluster.log(CHANGELOG).delete_before(500)
    thread.until_idle()
    assert "The state of changelog app-counts-changelog-0 cannot be used" in caplog.text
    assert thread.changelog_reader.total_restored == 300 + KEYS - 500
    store = thread.task_manager.active.running[TASK].state_manager.stores["counts"]
    assert store.get("k000100") is None, "what is not in the changelog any more"
    feed(cluster, "a")
    thread.step(3).commit()
    assert counts(cluster) == {"a": 1}
