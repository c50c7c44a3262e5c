"""A bad machine: the clock, the disk and the memory of a real process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.machine import Control, Field, MemoryGroup, compile_shim, compiler, why_no_memory_group

with_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
MIB = 1 << 20
#: More than a microsecond, to which a datetime is rounded, and less than any offset.
ROUNDING_SECONDS = 0.001


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


class Victim:
    """A process that evaluates lines and prints the results."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def evaluate(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


LOOP = """
import os, sys, time, datetime, setproctitle
setproctitle.setproctitle("a title as long as the environment " * 20)
for line in sys.stdin:
    try: print(eval(line), flush=True)
    except OSError as error: print(error.errno, flush=True)
"""


@contextmanager
def victim(environment: dict[str, str]) -> Iterator[Victim]:
    command = [sys.executable, "-c", LOOP]
    with subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Victim(process)
        finally:
            process.kill()


def is_shifted(process: Victim, reading: str, offset_ms: int) -> bool:
    """Return whether a process reads the time with this offset: one between the readings before and after it."""
    begin = time.time()
    read = float(process.evaluate(reading)) - offset_ms / 1000
    return begin - ROUNDING_SECONDS <= read <= time.time() + ROUNDING_SECONDS


@with_compiler
def test_a_clock_is_shifted_and_jumps_while_the_process_runs(shim: Path, tmp_path: Path) -> None:
    control = Control(shim, tmp_path, tmp_path / "disk")
    with victim(control.environment) as process:
        assert is_shifted(process, "time.time()", 0)
        assert control[Field.CLOCK_READINGS] == 0
        for offset_ms in (600_000, -300_000):
            control[Field.CLOCK_OFFSET_MS] = offset_ms
            for reading in ("time.time()", "datetime.datetime.now().timestamp()", "time.time_ns() / 1e9"):
                assert is_shifted(process, reading, offset_ms)
        begin = time.monotonic()
        assert begin <= float(process.evaluate("time.monotonic()")) <= time.monotonic()
        assert control[Field.CLOCK_READINGS] >= 6


@with_compiler
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_writes_fail_on_the_faulty_disk_only(shim: Path, tmp_path: Path, error: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    control = Control(shim, tmp_path, disk)
    with victim(control.environment) as process:
        file = process.evaluate(f"os.open({str(disk / 'a')!r}, os.O_CREAT | os.O_RDWR)")
        control[Field.DISK_ERRNO] = error
        writes = (f"os.write({file}, b'x')", f"os.pwrite({file}, b'x', 0)", f"os.writev({file}, [b'x'])")
        for call in (*writes, f"os.fsync({file})", f"os.fdatasync({file})", f"open({str(disk / 'b')!r}, 'w')"):
            assert process.evaluate(call) == str(error), call
        assert process.evaluate(f"open({str(tmp_path / 'c')!r}, 'w').write('c')") == "1"
        assert process.evaluate(f"os.read({file}, 1)") == "b''"
        assert control[Field.DISK_FAILURES] == 6
        control[Field.DISK_ERRNO] = 0
        assert process.evaluate(f"os.write({file}, b'x')") == "1"


@with_compiler
def test_each_write_of_a_slow_disk_takes_longer(shim: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    control = Control(shim, tmp_path, disk)
    with victim(control.environment) as process:
        file = process.evaluate(f"os.open({str(disk / 'a')!r}, os.O_CREAT | os.O_RDWR)")
        control[Field.DISK_DELAY_US] = 300_000
        start = time.monotonic()
        assert process.evaluate(f"os.write({file}, b'x')") == "1"
        assert time.monotonic() - start >= 0.3
        assert control[Field.DISK_DELAYS] == 1


@pytest.mark.skipif((REASON := why_no_memory_group()) is not None, reason=f"no control group can be made: {REASON}")
def test_a_process_that_takes_more_memory_than_its_limit_is_killed() -> None:
    group = MemoryGroup(f"penstock-test-{os.getpid()}")
    try:
        with victim({}) as process:
            group.adopt(process.pid)
            assert process.evaluate(f"len(bytearray(b'x') * {32 * MIB})") == str(32 * MIB), "there is no limit yet"
            assert group.hits() == group.kills() == 0
            limit = group.squeeze()
            assert process.evaluate(f"len(bytearray(b'x') * {limit + 64 * MIB})") == "", "it is dead"
            assert group.kills() == 1
            assert group.hits() > 0
    finally:
        group.close()
