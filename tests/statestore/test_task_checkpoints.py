"""Checkpoints in a bucket: on a real S3 server, by Google's API in front of it, on Azure's, and in a directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.statestore.checkpoints import bucket as buckets
from penstock.statestore.checkpoints.bucket import Bucket, BucketError, DamagedObjectError, MissingObjectError
from penstock.statestore.checkpoints.file_hashes import FileHashes
from penstock.statestore.checkpoints.fitness import ChangelogNow, unfit
from penstock.statestore.checkpoints.manifest import DamagedManifestError, Manifest, StoredStore, decode
from penstock.statestore.checkpoints.task_checkpoints import (
    GRACE_SECONDS,
    TaskCheckpoints,
    Uploaded,
    UploadTooLateError,
)
from penstock.topology.errors import ConfigError
from tests.azure_server import azure_server
from tests.free_port import free_port
from tests.google_server import google_server
from tests.s3_server import S3Server, s3_server

TOPIC, TOPIC_ID, TASK = "app-counts-changelog", "0a" * 16, "0_1"
NOW = 1_800_000_000.0
#: The URI of a bucket, and what its client needs in its environment.
Place = tuple[str, Mapping[str, str]]
FACTS = {"version": 1, "subtopologies": {}, "stores": {}, "internal_topics": {}}
CHANGELOG = ChangelogNow(TOPIC, TOPIC_ID, 1, first=0, end=1_000, tombstones_ms=86_400_000)


@pytest.fixture(scope="module", params=["s3", "gs", pytest.param("az", marks=pytest.mark.long), "file"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("bucket")
    match request.param:
        case "s3":
            with s3_server(folder / "log") as s3:
                yield s3.uri, s3.environment()
        case "gs":
            with google_server(folder / "log") as google:
                yield google.uri, google.environment()
        case "az":
            with azure_server(folder) as azure:
                yield azure.uri, azure.environment()
        case _:
            yield f"file://{folder}", {}


@pytest.fixture
def bucket(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    uri, environment = place
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Bucket(uri, f"app-{tmp_path.name}")


@pytest.fixture
def checkpoints(bucket: Bucket) -> TaskCheckpoints:
    return TaskCheckpoints(bucket, TASK)


def manifest(offset: int = 100, generation: int = 3, time_ms: int = int(NOW * 1000)) -> Manifest:
    stores = {"counts": StoredStore(TOPIC, TOPIC_ID, 1, offset)}
    return Manifest("app", TASK, generation, time_ms, "1.0", "hash", FACTS, stores)


class Store:
    """The directory of a RocksDB checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "counts").mkdir(parents=True)

    def write(self, **files: bytes) -> None:
        for name, data in files.items():
            (self.path / "counts" / name.replace("_", ".")).write_bytes(data)

    def upload(self, checkpoints: TaskCheckpoints, taken: Manifest, keep: int = 2) -> Uploaded:
        hashes = FileHashes(self.path.parent / "hashes.json")
        done = checkpoints.upload(taken, self.path, hashes, keep, lambda: 0.0)
        hashes.save()
        return done


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "checkpoint")
    made.write(a_sst=b"a" * 100, b_sst=b"b" * 100, CURRENT=b"1")
    return made


def newest(checkpoints: TaskCheckpoints) -> Manifest:
    found = next(checkpoints.found()).manifest
    assert isinstance(found, Manifest)
    return found


def objects(checkpoints: TaskCheckpoints) -> int:
    return len(checkpoints.bucket.objects(f"{TASK}/files"))


def test_what_was_uploaded_is_loaded(checkpoints: TaskCheckpoints, store: Store, tmp_path: Path) -> None:
    done = store.upload(checkpoints, manifest())
    assert (done.total_bytes, done.sent_bytes, done.written) == (201, 201, True)
    checkpoints.load(newest(checkpoints), tmp_path / "loaded")
    assert {path.name: path.read_bytes() for path in (tmp_path / "loaded" / "counts").iterdir()} == {
        "a.sst": b"a" * 100,
        "b.sst": b"b" * 100,
        "CURRENT": b"1",
    }
    assert checkpoints.problems(newest(checkpoints), tmp_path) == []


def test_table_files_travel_once(checkpoints: TaskCheckpoints, store: Store) -> None:
    store.upload(checkpoints, manifest())
    store.write(c_sst=b"c" * 50, CURRENT=b"2")
    done = store.upload(checkpoints, manifest(offset=200))
    assert (done.total_bytes, done.sent_bytes) == (251, 51)


def test_a_large_file_travels_in_parts(checkpoints: TaskCheckpoints, store: Store, tmp_path: Path) -> None:
    data = os.urandom(buckets.PART_BYTES * 2 + 17)
    store.write(large_sst=data)
    store.upload(checkpoints, manifest())
    checkpoints.load(newest(checkpoints), tmp_path / "loaded")
    assert (tmp_path / "loaded" / "counts" / "large.sst").read_bytes() == data


def test_the_highest_offset_is_the_newest_whoever_wrote_it_last(checkpoints: TaskCheckpoints, store: Store) -> None:
    """A former owner that was stopped while uploading continues after its successor has written."""
    store.upload(checkpoints, manifest(offset=500, generation=8))
    store.upload(checkpoints, manifest(offset=400, generation=7, time_ms=int(NOW * 1000) + 999))
    assert newest(checkpoints).generation == 8


def test_a_manifest_is_never_overwritten(checkpoints: TaskCheckpoints, store: Store) -> None:
    assert store.upload(checkpoints, manifest()).written
    first = checkpoints.bucket.read(f"{TASK}/manifests/{manifest().name}")
    store.write(d_sst=b"other")
    assert not store.upload(checkpoints, manifest()).written
    assert checkpoints.bucket.read(f"{TASK}/manifests/{manifest().name}") == first
    assert checkpoints.bucket.create(f"{TASK}/manifests/{manifest().name}", first)  # a repeated request


def test_an_upload_that_took_too_long_writes_no_manifest(checkpoints: TaskCheckpoints, store: Store) -> None:
    with pytest.raises(UploadTooLateError, match="took 1801 s, longer than 1800 s"):
        checkpoints.upload(
            manifest(), store.path, FileHashes(store.path.parent / "h"), 2, lambda: GRACE_SECONDS / 2 + 1
        )
    assert list(checkpoints.found()) == []


def test_nothing_is_deleted_within_the_grace_period(checkpoints: TaskCheckpoints, store: Store) -> None:
    for offset in (100, 200, 300, 400):
        store.upload(checkpoints, manifest(offset), keep=1)
    checkpoints.bucket.create(f"{TASK}/files/unfinished", b"of an upload in progress")
    assert checkpoints.collect(1, now_of(checkpoints)) == 0
    assert len(list(checkpoints.found())) == 4


def now_of(checkpoints: TaskCheckpoints) -> float:
    """Return the bucket's time."""
    return max(each.modified for each in checkpoints.bucket.objects(TASK))


def test_superseded_checkpoints_and_files_without_a_manifest_are_deleted_later(
    checkpoints: TaskCheckpoints, store: Store, tmp_path: Path
) -> None:
    for offset in (100, 200, 300, 400):
        store.write(a_sst=b"%d" % offset)
        store.upload(checkpoints, manifest(offset))
    checkpoints.bucket.create(f"{TASK}/files/unfinished", b"of a killed process")
    assert objects(checkpoints) == 4 + 2 + 1
    # The manifests of 100 and 200, their two files, and the unfinished one.
    assert checkpoints.collect(2, now_of(checkpoints) + GRACE_SECONDS + 1) == 5
    assert [newest(checkpoints).stores["counts"].offset, objects(checkpoints)] == [400, 4]
    for found in checkpoints.found():
        assert isinstance(found.manifest, Manifest)
        assert checkpoints.problems(found.manifest, tmp_path) == []


def test_checkpoints_of_a_deleted_changelog_do_not_count_as_kept(checkpoints: TaskCheckpoints, store: Store) -> None:
    """The new changelog begins at offset 0: its checkpoints have lower offsets, and are the ones to keep."""
    for offset in (700, 800):
        store.upload(checkpoints, manifest(offset))
    changed = {"counts": StoredStore(TOPIC, "0b" * 16, 1, 5)}
    store.upload(checkpoints, replace(manifest(time_ms=int(NOW * 1000) + 1), stores=changed))
    checkpoints.collect(2, now_of(checkpoints) + GRACE_SECONDS + 1)
    assert newest(checkpoints).stores["counts"].offset == 5


def test_a_damaged_file_is_found(checkpoints: TaskCheckpoints, store: Store, tmp_path: Path) -> None:
    store.upload(checkpoints, manifest())
    taken = newest(checkpoints)
    victim, gone = (taken.files[hashlib.sha256(data).hexdigest()].object for data in (b"a" * 100, b"b" * 100))
    checkpoints.bucket.delete([f"{TASK}/files/{victim}"])
    with pytest.raises(MissingObjectError, match="does not exist"):
        checkpoints.load(taken, tmp_path / "loaded")
    checkpoints.bucket.create(f"{TASK}/files/{victim}", b"a" * 99 + b"x")
    with pytest.raises(DamagedObjectError, match="is damaged: it has 100 bytes and another checksum"):
        checkpoints.load(taken, tmp_path / "loaded again")
    checkpoints.bucket.delete([f"{TASK}/files/{gone}"])
    assert len(checkpoints.problems(taken, tmp_path)) == 2


def test_torn_and_foreign_manifests_are_passed_over(checkpoints: TaskCheckpoints, store: Store) -> None:
    store.upload(checkpoints, manifest())
    whole = checkpoints.bucket.read(f"{TASK}/manifests/{manifest().name}")
    checkpoints.bucket.create(f"{TASK}/manifests/9{manifest().name[1:]}", whole)  # copied to another name
    checkpoints.bucket.create(f"{TASK}/manifests/8{manifest().name[1:]}", whole[: len(whole) // 2])
    readable = [not isinstance(found.manifest, str) for found in checkpoints.found()]
    assert readable == [False, False, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 2"),
        ({"generation": 4}, "checksum"),
    ],
)
def test_a_changed_manifest_is_refused(change: dict[str, object], reason: str) -> None:
    outer = json.loads(manifest().encode())
    outer["manifest"] |= change
    with pytest.raises(DamagedManifestError, match=reason):
        decode(json.dumps(outer).encode())


@pytest.mark.parametrize("path", ["../escaped", "/etc/passwd", "..", ""])
def test_a_manifest_cannot_write_elsewhere(path: str) -> None:
    outer = json.loads(manifest().encode())
    outer["manifest"]["stores"]["counts"]["files"] = [
        {"path": path, "bytes": 1, "sha256": "0" * 64, "object": "0" * 64},
    ]
    text = json.dumps(outer["manifest"], sort_keys=True)
    outer["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(DamagedManifestError, match="is not the name of a file"):
        decode(json.dumps(outer).encode())


@pytest.mark.parametrize(
    ("changes", "age", "reason"),
    [
        ({}, 60.0, None),
        ({"first": 100, "end": 100}, 60.0, None),
        ({"topic_id": "0b" * 16}, 60.0, "was deleted and created again"),
        ({"first": 101}, 60.0, "it ends at offset 100 .* committed offsets 101 to 1000"),
        ({"end": 99}, 60.0, "committed offsets 0 to 99"),
        ({"partition": 2}, 60.0, "has the changelog app-counts-changelog-2 now"),
        ({}, 77_000.0, None),
        ({}, 78_000.0, "keeps tombstones for 86400 s .* deleted keys could come back"),
        ({"tombstones_ms": None}, 10_000_000.0, None),
        ({}, -200.0, None),
        ({}, -301.0, "301 s from the future: the clock"),
    ],
)
def test_which_checkpoints_fit(changes: dict[str, object], age: float, reason: str | None) -> None:
    """age: of the clock of the writer, and then of the bucket: the older one counts."""
    changelogs = {"counts": replace(CHANGELOG, **changes)}  # type: ignore[arg-type]
    for modified, now in ((NOW, NOW + age), (NOW + age, NOW + age)):
        found = unfit(manifest(), changelogs, "app", FACTS, modified, now)
        assert (found is None) == (reason is None), found
        if reason is not None:
            assert re.search(reason, str(found))


def test_checkpoints_of_other_applications_stores_and_formats_do_not_fit() -> None:
    changelogs = {"counts": CHANGELOG}
    assert unfit(manifest(), changelogs, "other", FACTS, NOW, NOW) == "it belongs to the application app"
    foreign = replace(manifest(), store_format="rocksdb-2")
    assert unfit(foreign, changelogs, "app", FACTS, NOW, NOW) == "its stores have the format rocksdb-2, not rocksdb-1"
    two = {**changelogs, "sums": CHANGELOG}
    assert unfit(manifest(), two, "app", FACTS, NOW, NOW) == "it has the stores counts, the topology counts, sums"


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("bucket/prefix", "it must be s3"),
        ("http://host/bucket", "it must be s3"),
        ("s3://key:secret@bucket/prefix", "it must be s3"),
        ("s3:///prefix", "names no bucket"),
        ("file://relative/path", "needs its full path"),
    ],
)
def test_other_uris_are_refused(uri: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Bucket(uri, "app")


def test_a_bucket_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "RETRIES", 1)
    server = S3Server(free_port())
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BucketError, match="listing app/0_1/manifests failed"):
        list(TaskCheckpoints(Bucket(server.uri, "app"), TASK).found())


def test_hashes_are_remembered_for_table_files_only(tmp_path: Path) -> None:
    table, other, memory = tmp_path / "1.sst", tmp_path / "CURRENT", tmp_path / "hashes.json"
    table.write_bytes(b"rows")
    other.write_bytes(b"1")
    first = FileHashes(memory)
    before = [first.of(table), first.of(other)]
    first.save()
    assert len(json.loads(memory.read_text())) == 2
    memory.write_text(memory.read_text().replace(before[0], "0" * 64).replace(before[1], "0" * 64))
    again = FileHashes(memory)
    assert [again.of(table), again.of(other)] == ["0" * 64, before[1]]  # the table file is not read
    memory.write_text("damaged")
    assert FileHashes(memory).of(table) == before[0]
