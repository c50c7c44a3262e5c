"""Processes of transfers: a silent bucket, a parent that dies, a process that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.statestore.checkpoints.transfer_process import TransferFailedError, TransferProcess
from tests.s3_server import S3Server
from tests.waiting import eventually, has_ended

PARENT = """
import json, sys
from penstock.statestore.checkpoints.transfer_process import TransferProcess
transfer = TransferProcess(json.loads(sys.argv[1]))
print(transfer._process.pid, flush=True)
transfer.run(print)
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """A load from a bucket that accepts connections and never answers."""
    place = {"uri": S3Server(0).uri, "application_id": "app", "task": "0_0", "directory": str(tmp_path)}
    return {"kind": "load", **place, "changelogs": {}, "facts": {}, "tried": [], "now_ms": 0}


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name, value in S3Server(listener.getsockname()[1]).environment().items():
            monkeypatch.setenv(name, value)
        yield listener


def test_a_silent_bucket_ends_a_transfer(job: dict[str, Any]) -> None:
    with pytest.raises(TransferFailedError, match="the bucket has not answered for 1 s"):
        TransferProcess(job, silence_seconds=1).run(lambda _: None)


def test_a_killed_process_is_an_error(job: dict[str, Any], silent: socket.socket) -> None:
    transfer = TransferProcess(job)

    def kill_once_connected() -> None:
        connection, _ = silent.accept()
        with connection:
            transfer.kill()

    killer = threading.Thread(target=kill_once_connected)
    killer.start()
    with pytest.raises(TransferFailedError, match="its process ended with code -9"):
        transfer.run(lambda _: None)
    killer.join()


def test_a_transfer_ends_with_its_parent(job: dict[str, Any], silent: socket.socket) -> None:
    command = [sys.executable, "-c", PARENT, json.dumps(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        connection, _ = silent.accept()  # the transfer is at work
        os.kill(parent.pid, signal.SIGKILL)
        with connection:
            eventually(lambda: has_ended(child), "it has ended")


def test_an_unknown_bucket_is_an_error_with_its_reason(job: dict[str, Any]) -> None:
    with pytest.raises(TransferFailedError, match=r"ftp://bucket .*it must be s3://bucket/prefix"):
        TransferProcess({**job, "uri": "ftp://bucket"}).run(lambda _: None)
