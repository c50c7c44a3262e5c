"""penstock checkpoint list|verify|delete, over a bucket in a directory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import cli
from penstock.statestore.checkpoints.bucket import Bucket
from penstock.statestore.checkpoints.file_hashes import FileHashes
from penstock.statestore.checkpoints.manifest import Manifest, StoredStore
from penstock.statestore.checkpoints.task_checkpoints import TaskCheckpoints
from penstock.supervisor.exit_codes import ExitCode

FACTS = {"version": 1, "subtopologies": {}, "stores": {}, "internal_topics": {}}


class Uploads:
    """Checkpoints of the application app, and the command over them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = f"file://{folder}/bucket"

    def add(self, task: str, offset: int, rows: bytes = b"rows") -> None:
        directory = self._folder / f"{task}-{offset}"
        (directory / "counts").mkdir(parents=True)
        (directory / "counts" / "1.sst").write_bytes(rows)
        stores = {"counts": StoredStore("app-counts-changelog", "0a" * 16, 0, offset)}
        taken = Manifest("app", task, 1, time.time_ns() // 1_000_000, "1.0", "hash", FACTS, stores)
        hashes = FileHashes(self._folder / "hashes.json")
        TaskCheckpoints(Bucket(self.uri, "app"), task).upload(taken, directory, hashes, 2, lambda: 0.0)

    def files(self, task: str) -> list[Path]:
        return sorted((self._folder / "bucket" / "app" / task / "files").glob("*"))

    def run(self, *arguments: str) -> Result:
        settings = ["-c", "application.id=app", "-c", "bootstrap.servers=b:9092", "-c"]
        return CliRunner().invoke(cli, ["checkpoint", *arguments, *settings, f"penstock.checkpoint.uri={self.uri}"])


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    made = Uploads(tmp_path)
    made.add("0_2", 5)
    made.add("0_10", 7, b"others")
    made.add("0_10", 9, b"others")
    return made


def test_list_shows_the_newest_of_each_task_first(uploads: Uploads) -> None:
    found = uploads.run("list", "--json")
    assert [(each["task"], each["offsets"], each["bytes"]) for each in json.loads(found.stdout)] == [
        ("0_2", {"counts": 5}, 4),
        ("0_10", {"counts": 9}, 6),
        ("0_10", {"counts": 7}, 6),
    ]
    lines = uploads.run("list").stdout.splitlines()
    assert lines[0].split() == ["task", "age", "MiB", "offsets", "checkpoint"]
    assert [line.split()[0] for line in lines[2:]] == ["0_2", "0_10", "0_10"]
    assert json.loads(uploads.run("list", "--json", "--task", "0_2").stdout)[0]["task"] == "0_2"


def test_verify_finds_damaged_files(uploads: Uploads) -> None:
    assert uploads.run("verify").stdout.count("whole") == 3
    (victim,) = uploads.files("0_2")
    victim.write_bytes(b"rowX")
    found = uploads.run("verify")
    assert found.exit_code == ExitCode.FAILED
    assert "1 checkpoint cannot be used" in found.output
    assert found.stdout.count("whole") == 2


def test_delete_shows_what_it_would_delete_and_deletes_with_execute(uploads: Uploads) -> None:
    assert "Would delete 2 checkpoints" in uploads.run("delete", "--task", "0_10").stdout
    assert len(uploads.files("0_10")) == 1
    assert "Deleted 2 checkpoints" in uploads.run("delete", "--task", "0_10", "--execute").stdout
    assert uploads.files("0_10") == []
    assert len(json.loads(uploads.run("list", "--json").stdout)) == 1


def test_delete_damaged_leaves_the_others(uploads: Uploads) -> None:
    (victim,) = uploads.files("0_2")
    victim.unlink()
    assert "Deleted 1 checkpoint." in uploads.run("delete", "--damaged", "--execute").stdout
    assert {each["task"] for each in json.loads(uploads.run("list", "--json").stdout)} == {"0_10"}


def test_without_a_uri_it_says_what_to_set() -> None:
    found = CliRunner().invoke(cli, ["checkpoint", "list", "-c", "application.id=app"])
    assert found.exit_code == ExitCode.USAGE
    assert "penstock.checkpoint.uri is not set" in found.output


def test_an_empty_bucket_has_no_checkpoints(tmp_path: Path) -> None:
    found = Uploads(tmp_path).run("list")
    assert (found.exit_code, "There are no checkpoints in file://" in found.stdout) == (0, True)
