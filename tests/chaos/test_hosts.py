"""Which processes of a host are hit: mostly stream threads; the event's line names them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.hosts import THREADS_TO_SPARE, Host, is_stream_thread

SHOWN = """\
from types import SimpleNamespace
from penstock.supervisor.processes.worker_process import show_in_ps
show_in_ps(SimpleNamespace(slot={slot}, config={{"application.id": "app"}}))"""


@contextmanager
def running(code: str) -> Iterator[psutil.Process]:
    """Run a process that has executed this code and waits."""
    command = [sys.executable, "-c", f"{code}; print('ready', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_a_spare_process_is_hit_rarely_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("host-1", tmp_path, {}, {}, "no:topology")
    with running(SHOWN.format(slot=1)) as thread, running(SHOWN.format(slot=None)) as spare:
        assert is_stream_thread(thread)
        assert not is_stream_thread(spare)
        monkeypatch.setattr(host, "workers", lambda: [thread, spare])
        shares = [number / 100 for number in range(100)]
        hit = [victim for share in shares if (victim := host.victim(share)) is not None]
    assert sum(process == thread for process, _ in hit) == 100 * THREADS_TO_SPARE / (THREADS_TO_SPARE + 1)
    assert hit[0] == (thread, f"host-1 worker 1 of 2, pid {thread.pid}")
    assert hit[-1] == (spare, f"host-1 spare process (or one that starts), 2 of 2, pid {spare.pid}")
    monkeypatch.setattr(host, "workers", list)
    assert host.victim(0.5) is None


def test_the_last_error_is_the_last_line_of_that_level(tmp_path: Path) -> None:
    host = Host("host-1", tmp_path, {}, {}, "no:topology")
    assert host.last_error() == ""
    state = "2026-11-25 21:40:15,132 INFO    State transition from PENDING_ERROR to ERROR (penstock)"
    host.log.write_text(f"{state}\n")
    assert host.last_error() == state, "without an error the last line has to do"
    error = "2026-11-25 21:40:15,130 ERROR   the disk is broken"
    host.log.write_text(f"{error}\n{state}\n")
    assert host.last_error() == error
