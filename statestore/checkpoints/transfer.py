"""Uploads and loads of checkpoints, each in its own process: a script that a stream thread's process starts.

The job is one line of JSON on stdin, the results are lines of JSON on stdout. The process ends when stdin ends: its
parent has died, or does not want the result any more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from typing_extensions import Unpack

from penstock.topology.errors import PenstockError

from .bucket import Bucket, BucketError
from .file_hashes import FileHashes
from .fitness import ChangelogNow, unfit
from .manifest import decode
from .task_checkpoints import TaskCheckpoints, UploadTooLateError
from .transfer_messages import LoadJob, Report, UploadJob

#: Uploads leave the processor to stream threads.
UPLOAD_NICENESS = 10
#: How often progress is reported, in seconds.
REPORT_SECONDS = 0.5
#: The exit code when the parent has gone.
ABANDONED = 3


class Reports:
    """Writes results to stdout."""

    def __init__(self) -> None:
        self._bytes = 0
        self._last = time.monotonic()

    def write(self, **result: Unpack[Report]) -> None:
        """Write a line."""
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()

    def count(self, count: int) -> None:
        """Count bytes that have arrived."""
        self._bytes += count
        if time.monotonic() - self._last >= REPORT_SECONDS:
            self._last = time.monotonic()
            self.write(bytes=self._bytes)


def upload(job: UploadJob, reports: Reports) -> None:
    """Upload the files of a RocksDB checkpoint."""
    os.nice(UPLOAD_NICENESS)
    began = time.monotonic()
    manifest, directory = decode(job["manifest"].encode()), Path(job["directory"])
    hashes = FileHashes(Path(job["hashes"]))
    checkpoints = TaskCheckpoints(Bucket(job["uri"], manifest.application_id), manifest.task)
    done = checkpoints.upload(manifest, directory, hashes, job["keep"], lambda: time.monotonic() - began, reports.count)
    hashes.save()
    reports.write(uploaded=asdict(done))


def load(job: LoadJob, reports: Reports) -> None:
    """Load the newest checkpoint that fits into a directory."""
    changelogs = {name: ChangelogNow(**values) for name, values in job["changelogs"].items()}
    checkpoints = TaskCheckpoints(Bucket(job["uri"], job["application_id"]), job["task"])
    for found in checkpoints.found():
        manifest = found.manifest
        if isinstance(manifest, str):
            reason: str | None = manifest
        elif found.name in job["tried"]:
            reason = "it was loaded before, and its stores could not be used"
        else:
            reason = unfit(
                manifest, changelogs, job["application_id"], job["facts"], found.modified, job["now_ms"] / 1000
            )
        if reason is None and not isinstance(manifest, str):
            reports.write(loading=found.name, bytes=0, total_bytes=manifest.total_bytes)
            target = Path(job["directory"], found.name)
            try:
                checkpoints.load(manifest, target, reports.count)
            except BucketError as error:
                reason = str(error)
            else:
                offsets = {name: store.offset for name, store in manifest.stores.items()}
                reports.write(
                    loaded={
                        "name": found.name,
                        "directory": str(target),
                        "offsets": offsets,
                        "total_bytes": manifest.total_bytes,
                        "time_ms": manifest.time_ms,
                    }
                )
                return
        reports.write(skipped=found.name, reason=reason)


def end_with_parent() -> None:
    """End this process when its stdin ends."""
    while os.read(sys.stdin.fileno(), 1):  # not by sys.stdin, whose lock would be held at a normal end
        pass
    os._exit(ABANDONED)


def main() -> None:
    """Carry out one job."""
    reports = Reports()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        {"upload": upload, "load": load}[job["kind"]](job, reports)
    except (BucketError, UploadTooLateError, PenstockError, OSError) as error:
        reports.write(error=str(error))


if __name__ == "__main__":
    main()
