"""A bucket that is full, broken or late, and a full disk: no wrong state follows, and errors say why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.statestore.checkpoints import bucket as buckets
from penstock.statestore.checkpoints.bucket import Bucket, BucketError, DamagedObjectError
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import TaskCheckpoints
from tests.s3_server import S3Server, s3_server
from tests.scripted_front import Fate, Refuse, ScriptedFront, Tear, scripted_front
from tests.small_disk import small_disk
from tests.statestore.test_task_checkpoints import NOW, TASK, Store, manifest, newest
from tests.waiting import PATIENCE_SECONDS

MANIFESTS, FILES = f"/{TASK}/manifests/", f"/{TASK}/files/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as running:
        yield running


@pytest.fixture
def front(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedFront]:
    monkeypatch.setattr(buckets, "RETRIES", 1)
    with scripted_front(server.port) as running:
        for name, value in server.environment(running.port).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def checkpoints(front: ScriptedFront, server: S3Server, tmp_path: Path) -> TaskCheckpoints:
    return TaskCheckpoints(Bucket(server.uri, f"app-{tmp_path.name}"), TASK)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "checkpoint")
    made.write(a_sst=b"a" * 100, b_sst=b"b" * 100)
    return made


def puts(part: str, fate: Fate) -> Callable[[str, str], Fate]:
    """Return a script for the writes of objects with this part in their path."""
    return lambda method, path: fate if method == "PUT" and part in path else None


@pytest.mark.parametrize(
    "refusal",
    [
        Refuse(507, "InsufficientStorage"),
        Refuse(403, "QuotaExceeded"),
        Refuse(500, "InternalError"),
        Refuse(503, "SlowDown"),
    ],
    ids=lambda refusal: refusal.code,
)
@pytest.mark.parametrize("part", [FILES, MANIFESTS])
def test_a_bucket_that_takes_nothing_keeps_the_checkpoint_before(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, part: str, refusal: Refuse, tmp_path: Path
) -> None:
    """It is full, or over its quota, or broken; once it works again, so do uploads."""
    store.upload(checkpoints, manifest(offset=100))
    front.script = puts(part, refusal)
    store.write(c_sst=b"c" * 100)
    with pytest.raises(BucketError, match=rf"s3://.*: writing app-.*{part}.* failed: .*{refusal.status}"):
        store.upload(checkpoints, manifest(offset=200))
    front.script = lambda *_: None
    assert newest(checkpoints).stores["counts"].offset == 100
    assert checkpoints.problems(newest(checkpoints), tmp_path) == []
    store.upload(checkpoints, manifest(offset=300))
    assert newest(checkpoints).stores["counts"].offset == 300


def test_a_bucket_that_answers_500_to_every_read_is_an_error(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, tmp_path: Path
) -> None:
    store.upload(checkpoints, manifest())
    taken = newest(checkpoints)
    front.script = lambda *_: Refuse(500, "InternalError")
    with pytest.raises(BucketError, match=r"listing app-.*/0_1/manifests failed: .*500"):
        list(checkpoints.found())
    with pytest.raises(BucketError, match=r"reading app-.*/files/.* failed: .*500"):
        checkpoints.load(taken, tmp_path / "loaded")


def test_a_request_that_fails_once_is_repeated(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, tmp_path: Path
) -> None:
    failed: set[str] = set()

    def once(method: str, path: str) -> Fate:
        asked = f"{method} {path}"
        if asked in failed:
            return None
        failed.add(asked)
        return Refuse(500, "InternalError")

    front.script = once
    assert store.upload(checkpoints, manifest()).written
    assert checkpoints.problems(newest(checkpoints), tmp_path) == []


def test_a_torn_upload_is_found_by_a_load_and_repaired_by_the_next_upload(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, tmp_path: Path
) -> None:
    """The bucket has half of a file, and has acknowledged it."""
    torn: list[Fate] = [Tear()]
    front.script = lambda method, path: torn.pop() if torn and method == "PUT" and FILES in path else None
    store.upload(checkpoints, manifest(offset=100))
    with pytest.raises(DamagedObjectError, match="is damaged: it has 50 bytes"):
        checkpoints.load(newest(checkpoints), tmp_path / "loaded")
    done = store.upload(checkpoints, manifest(offset=200, time_ms=int(NOW * 1000) + 1))
    assert done.sent_bytes == 100, "the other file is whole"
    checkpoints.load(newest(checkpoints), tmp_path / "loaded again")


def test_a_torn_manifest_is_passed_over(checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront) -> None:
    store.upload(checkpoints, manifest(offset=100))
    front.script = puts(MANIFESTS, Tear())
    store.upload(checkpoints, manifest(offset=200))
    found = [found.manifest for found in checkpoints.found()]
    assert isinstance(found[0], str)
    assert "it is damaged" in found[0]
    assert isinstance(found[1], Manifest)
    assert found[1].stores["counts"].offset == 100


def test_a_manifest_that_arrives_late_is_not_the_newest(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, tmp_path: Path
) -> None:
    """Its writer has lost the task, and a network has kept its last request until its successor had written."""
    late = Store(tmp_path / "late" / "checkpoint")
    late.write(a_sst=b"a" * 100, old_sst=b"o" * 100)
    with front.holding("PUT", MANIFESTS) as hold:
        former = threading.Thread(target=late.upload, args=(checkpoints, manifest(offset=100, generation=3)))
        former.start()
        assert hold.arrived.wait(PATIENCE_SECONDS)
        store.upload(checkpoints, manifest(offset=200, generation=4))
        assert [found.name for found in checkpoints.found()] == [manifest(200, 4).name]
        hold.let_go.set()
        former.join()
    assert [found.name for found in checkpoints.found()] == [manifest(200, 4).name, manifest(100, 3).name]
    for found in checkpoints.found():
        assert isinstance(found.manifest, Manifest)
        assert checkpoints.problems(found.manifest, tmp_path) == []


def test_a_file_that_arrives_after_its_manifest_is_missing_until_then(
    checkpoints: TaskCheckpoints, store: Store, front: ScriptedFront, tmp_path: Path
) -> None:
    """Buckets show what they have acknowledged, but a restore from a backup may not."""
    store.upload(checkpoints, manifest())
    taken = newest(checkpoints)
    victim = next(iter(taken.files.values())).object
    data = checkpoints.bucket.read(f"{TASK}/files/{victim}")
    checkpoints.bucket.delete([f"{TASK}/files/{victim}"])
    with pytest.raises(BucketError, match="it does not exist"):
        checkpoints.load(taken, tmp_path / "early")
    checkpoints.bucket.create(f"{TASK}/files/{victim}", data)
    checkpoints.load(taken, tmp_path / "late")


def test_a_full_disk_keeps_the_checkpoint_before(store: Store, tmp_path: Path) -> None:
    """Of a bucket in a directory. The transfers run in their own process, as in an application."""
    place = tmp_path / "disk"

    def upload(offset: int) -> dict[str, Any]:
        job = {
            "kind": "upload",
            "uri": f"file://{place}/bucket",
            "manifest": manifest(offset).encode().decode(),
            "directory": str(store.path),
            "hashes": str(tmp_path / "hashes.json"),
            "keep": 2,
        }
        return run([*disk.prefix, sys.executable, "-m", "penstock.statestore.checkpoints.transfer"], job)

    with small_disk(place, 12) as disk:
        assert "uploaded" in upload(100)
        disk.fill()
        store.write(large_sst=os.urandom(6 << 20))
        assert "No space left on device" in upload(200)["error"]
        disk.free()
        done = upload(300)["uploaded"]
        assert (done["written"], done["total_bytes"]) == (True, 200 + (6 << 20))


def run(command: list[str], job: dict[str, Any]) -> dict[str, Any]:
    """Run a transfer, and return its last report."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()  # it ends with its stdin
        lines = process.stdout.read().splitlines()
    report: dict[str, Any] = json.loads(lines[-1])
    return report
