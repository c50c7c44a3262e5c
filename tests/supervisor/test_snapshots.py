"""Snapshots of running and of stopped applications; another machine replays only the tail of changelogs."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from broker_stage import PARTITIONS, Counting, end_offset, shared_by
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition

from penstock import KafkaStreams, StateRestoreListener
from penstock.cli import cli
from penstock.statestore.directory.snapshot import MANIFEST_NAME, PARTIAL, new_snapshot, read_snapshot, snapshots_in
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import eventually


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["snapshot", *arguments], prog_name="penstock")


def options(state_dir: Path, application_id: str = "app") -> tuple[str, ...]:
    return "-c", f"application.id={application_id}", "-c", f"state.dir={state_dir}"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The state.dir of a stopped application: one task, one store with a row and an offset."""
    store = RocksDBStore(tmp_path / "state" / "app" / "0_1" / "stores" / "counts")
    store.put(b"key", b"committed")
    store.commit(7)
    store.close()
    return tmp_path / "state"


def restored(state_dir: Path) -> tuple[bytes | None, int | None]:
    store = RocksDBStore(state_dir / "app" / "0_1" / "stores" / "counts")
    try:
        return store.get(b"key"), store.committed_offset()
    finally:
        store.close()


def test_a_checkpoint_has_the_committed_rows_and_is_independent(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "one")
    store.put(b"key", b"old")
    store.commit(1)
    store.put(b"key", b"not committed")
    store.checkpoint(tmp_path / "copy")
    assert store.get(b"key") == b"not committed"
    store.commit(2)
    store.close()
    copy = RocksDBStore(tmp_path / "copy")
    assert (copy.get(b"key"), copy.committed_offset()) == (b"old", 1)
    copy.close()
    linked = [path for path in (tmp_path / "copy").glob("*.sst") if path.stat().st_nlink > 1]
    assert linked


WHOLE = {"version": 1, "application_id": "app", "time_ms": 5, "penstock_version": "1", "tasks": {"0_1": {"counts": 7}}}
WRONG: list[dict[str, Any]] = [
    {"version": 2},
    {"time_ms": "soon"},
    {"time_ms": None},
    {"application_id": 1},
    {"tasks": []},
    {"tasks": {"../..": {}}},
    {"tasks": {"0_1": []}},
    {"tasks": {"0_1": {"counts": "7"}}},
]


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "null",
        "\xff",
        "[" * 100_000,
        *(json.dumps(WHOLE | wrong) for wrong in WRONG),
        json.dumps({name: value for name, value in WHOLE.items() if name != "tasks"}),
    ],
    ids=lambda manifest: manifest[:90],
)
def test_a_damaged_snapshot_is_named_and_the_others_are_listed_and_restored(
    tmp_path: Path, closed: Path, manifest: str
) -> None:
    backup = tmp_path / "backup"
    assert run("create", str(backup), *options(closed), "--name", "whole").exit_code == 0
    (backup / "damaged").mkdir()
    (backup / "damaged" / MANIFEST_NAME).write_bytes(manifest.encode("latin-1"))
    listed = run("list", str(backup), "--json")
    assert (listed.exit_code, [Path(row["path"]).name for row in json.loads(listed.stdout)]) == (0, ["whole"])
    assert f"Warning: The snapshot {backup / 'damaged'} cannot be read: " in listed.stderr
    one = run("restore", str(backup / "damaged"), *options(tmp_path / "new"))
    assert one.exit_code == ExitCode.USAGE
    assert f"Error: The snapshot {backup / 'damaged'} cannot be read: " in one.stderr
    newest = run("restore", str(backup), *options(tmp_path / "new"))
    assert newest.exit_code == 0, newest.output
    assert restored(tmp_path / "new") == (b"committed", 7)


@pytest.mark.parametrize("name", ["a.partial", ".", "..", "a/b", "", "x" * 300, "☃" * 90, "a\nb", "a\0b"])
def test_an_invalid_snapshot_name_is_refused(tmp_path: Path, closed: Path, name: str) -> None:
    result = run("create", str(tmp_path / "backup"), *options(closed), f"--name={name}")
    if name:
        assert result.exit_code == ExitCode.USAGE, result.output
        assert "cannot name a snapshot" in result.stderr
        assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("what", ["link to a file", "link to a folder", "pipe", "missing task"])
def test_an_incomplete_or_escaping_snapshot_changes_nothing(tmp_path: Path, closed: Path, what: str) -> None:
    assert run("create", str(tmp_path / "backup"), *options(closed), "--name", "one").exit_code == 0
    task = tmp_path / "backup" / "one" / "0_1"
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    if what == "link to a file":
        (task / "stores" / "counts" / "extra").symlink_to(secret / "key")
    elif what == "link to a folder":
        (task / "stores" / "extra").symlink_to(secret)
    elif what == "pipe":
        os.mkfifo(task / "extra")
    else:
        shutil.rmtree(task)
    result = run("restore", str(tmp_path / "backup"), *options(closed), "--force")
    assert result.exit_code == ExitCode.USAGE, result.output
    why = "is incomplete: " if what == "missing task" else "was not made by Penstock: "
    assert f"The snapshot {tmp_path / 'backup' / 'one'} {why}" in result.stderr
    assert restored(closed) == (b"committed", 7), "the state that is there"
    listed = json.loads(run("list", str(tmp_path / "backup"), "--json").stdout)
    assert len(listed) == 1, "its size can be told"


def test_a_snapshot_of_a_stopped_application_can_be_restored(tmp_path: Path, closed: Path) -> None:
    made = run("create", str(tmp_path / "backup"), *options(closed), "--name", "one", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["tasks"] == {"0_1": {"counts": 7}}
    assert "one  app  1 task, 1 store" in run("list", str(tmp_path / "backup")).output
    shutil.rmtree(closed)
    result = run("restore", str(tmp_path / "backup"), *options(tmp_path / "other"), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == str(tmp_path / "other" / "app")
    assert restored(tmp_path / "other") == (b"committed", 7)


def test_a_restored_store_does_not_modify_the_snapshot(tmp_path: Path, closed: Path) -> None:
    run("create", str(tmp_path / "backup"), *options(closed), "--name", "one")
    run("restore", str(tmp_path / "backup"), *options(tmp_path / "other"))
    files = [path for path in (tmp_path / "other" / "app" / "0_1").rglob("*") if path.is_file()]
    assert {path.suffix for path in files if path.stat().st_nlink > 1} == {".sst"}  # other files may be modified
    store = RocksDBStore(tmp_path / "other" / "app" / "0_1" / "stores" / "counts")
    store.put(b"key", b"newer")
    store.commit(99)
    store.close()
    assert run("restore", str(tmp_path / "backup"), *options(tmp_path / "other"), "--force").exit_code == 0
    assert restored(tmp_path / "other") == (b"committed", 7)


def test_existing_state_is_replaced_only_with_force(tmp_path: Path, closed: Path) -> None:
    run("create", str(tmp_path / "backup"), *options(closed), "--name", "one")
    refused = run("restore", str(tmp_path / "backup" / "one"), *options(closed))
    assert refused.exit_code == ExitCode.USAGE
    assert "has state of the tasks 0_1 already" in refused.output


def test_mistakes_are_reported(tmp_path: Path, closed: Path) -> None:
    backup = str(tmp_path / "backup")
    assert "There is nothing to take a snapshot of" in run("create", backup, *options(tmp_path / "empty")).output
    assert not snapshots_in(tmp_path / "backup", pytest.fail)
    run("create", backup, *options(closed), "--name", "one")
    assert "exists already" in run("create", backup, *options(closed), "--name", "one").output
    assert "cannot name a snapshot" in run("create", backup, *options(closed), "--name", "../one").output
    assert "belongs to application app" in run("restore", backup, *options(tmp_path / "x", "other")).output
    assert "is not a snapshot" in run("restore", str(tmp_path), *options(tmp_path / "x")).output
    state = StateDirectory(closed, "app")
    state.lock_application()
    assert run("create", backup, *options(closed)).exit_code == ExitCode.LOCKED
    assert run("restore", backup, *options(closed), "--force").exit_code == ExitCode.LOCKED
    state.close()


def test_an_old_snapshot_is_refused_because_deletions_are_forgotten(tmp_path: Path, closed: Path) -> None:
    run("create", str(tmp_path / "backup"), *options(closed), "--name", "one")
    manifest = tmp_path / "backup" / "one" / MANIFEST_NAME
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(values | {"time_ms": values["time_ms"] - 25 * 3_600_000}))
    arguments = ("restore", str(tmp_path / "backup"), *options(tmp_path / "other"))
    refused = run(*arguments)
    assert refused.exit_code == ExitCode.USAGE
    assert "is 25 hours old" in refused.output
    assert run(*arguments, "--max-age-hours", "26").exit_code == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 9}', '{"version": 1, "tasks": {"../../x": {}}}'])
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(text)
    result = run("restore", str(tmp_path), *options(tmp_path / "x"))
    assert result.exit_code == ExitCode.USAGE
    assert "cannot be read" in result.output


def test_an_invalid_task_id_is_refused(tmp_path: Path) -> None:
    manifest = {"version": 1, "application_id": "app", "time_ms": 1, "penstock_version": "0"}
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest | {"tasks": {"../../x": {}}}))
    assert "cannot be read" in run("restore", str(tmp_path), *options(tmp_path / "x")).output


def test_a_failure_leaves_no_files(tmp_path: Path) -> None:
    def fail() -> None:
        with new_snapshot(tmp_path, "one") as path:
            assert path.name == "one" + PARTIAL
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


class Restored(StateRestoreListener):
    """Counts the replayed records of each changelog."""

    def __init__(self) -> None:
        self.records: Counter[int] = Counter()

    def on_batch_restored(self, partition: Any, store: str, batch_end_offset: int, restored: int) -> None:
        self.records[partition.partition] += restored


def changelog_ends(counting: Counting) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": counting.bootstrap_servers, "group.id": "unused"})
    topic = f"{counting.config['application.id']}-counts-changelog"
    try:
        return {number: end_offset(consumer, TopicPartition(topic, number)) for number in range(PARTITIONS)}
    finally:
        consumer.close()


@pytest.mark.broker
@pytest.mark.slow
def test_another_machine_replays_only_records_after_the_snapshot(counting: Counting, tmp_path: Path) -> None:
    counting.config["statestore.cache.max.bytes"] = 0  # each count is a record of the changelog
    counting.produce(50)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "both have their tasks")
        counting.wait_for_all_counts()
        where = options(Path(str(counting.config["state.dir"])), str(counting.config["application.id"]))
        made = run("create", str(tmp_path / "backup"), *where)
        assert made.exit_code == 0, made.output
        counting.produce(1)
        counting.wait_for_all_counts()
        streams.close(leave_group=True)  # the id of its process is in the state directory
    ((path, _),) = snapshots_in(tmp_path / "backup", pytest.fail)
    taken = read_snapshot(path).tasks
    assert len(taken) == PARTITIONS
    shutil.rmtree(Path(str(counting.config["state.dir"])))

    other = tmp_path / "other"
    result = run("restore", str(path), *options(other, str(counting.config["application.id"])))
    assert result.exit_code == 0, result.output
    listener, ends = Restored(), changelog_ends(counting)
    offsets = {number: taken[f"0_{number}"]["counts"] or 0 for number in ends}
    tail = {number: end - offsets[number] for number, end in ends.items() if end > offsets[number]}
    with KafkaStreams(counting.topology(), counting.config | {"state.dir": str(other)}) as streams:
        streams.set_global_state_restore_listener(listener)
        streams.start()
        eventually(lambda: shared_by(streams, 1), "the other machine has all tasks")
        eventually(lambda: listener.records.total() >= sum(tail.values()), "the tail is replayed")
        counting.produce(1)
        counting.wait_for_all_counts()
    print(f"replayed {listener.records.total()} of {sum(ends.values())} records")
    assert dict(listener.records) == tail
    assert 0 < sum(tail.values()) < sum(ends.values())
