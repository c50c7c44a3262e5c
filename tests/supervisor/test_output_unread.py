"""Who does not read an application's output, or cannot take its letters, has no say in whether it runs and ends."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.logs import output_stream
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 30.0
#: What a pipe takes before a write to it waits, pages that are not full aside.
FULL_BYTES = 50_000
PRINTS = "print('x' * 99, file=sys.{stream})"
LOGS = "logging.getLogger('user').warning('x' * 99)"
#: A module that writes more than a pipe holds: `turns` of it, in a thread.
WRITES = """
import itertools, logging, sys, threading, time
from penstock import StreamsBuilder
topology = StreamsBuilder()
topology.stream("in").to("out")
def write():
    for _ in {turns}:
        {write}
        time.sleep(0.0001)
threading.Thread(target=write, daemon=True).start()
"""
FAILS = "import sys\n{write}\nraise KeyError('no such thing')\n"


def command(folder: Path, module: str, *shell: str) -> list[str]:
    """Return what runs a module that no broker is there for; shell: what the command is started by."""
    (folder / "app.py").write_text(module)
    settings = {"application.id": "a", "bootstrap.servers": "127.0.0.1:1", "state.dir": str(folder / "state")}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    return [*shell, sys.executable, "-m", "penstock.cli", "run", "app:topology", *options]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


@pytest.fixture
def unread() -> Iterator[tuple[int, int]]:
    """A pipe that nothing reads: its reading and its writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def waiting_bytes(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])


@pytest.mark.parametrize(
    ("stream", "write"),
    [("stdout", PRINTS.format(stream="stdout")), ("stderr", PRINTS.format(stream="stderr")), ("stderr", LOGS)],
)
def test_a_pipe_that_nothing_reads_does_not_hold_up_the_end(
    tmp_path: Path, unread: tuple[int, int], stream: str, write: str
) -> None:
    reading, writing = unread
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writing}
    with subprocess.Popen(
        command(tmp_path, WRITES.format(write=write, turns="itertools.count()")),
        cwd=tmp_path,
        env=environment(),
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    ) as process:
        try:
            eventually(lambda: waiting_bytes(reading) > FULL_BYTES, "the pipe is full")
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == ExitCode.OK
        finally:
            process.kill()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["plain", "json"])
def test_what_the_encoding_cannot_take_is_written_escaped(tmp_path: Path, encoding: str, form: str) -> None:
    write = "print('gr\\xfc\\xdfe \\u2192 \\U0001f600 \\udcff', flush=True)"
    done = subprocess.run(
        [*command(tmp_path, FAILS.format(write=write)), "-c", f"penstock.log.format={form}"],
        cwd=tmp_path,
        env=environment(PYTHONIOENCODING=encoding),
        capture_output=True,
        check=False,
    )
    assert done.returncode == ExitCode.TOPOLOGY, done.stderr
    expected = "grüße → \N{GRINNING FACE} \udcff".encode(encoding, "backslashreplace")
    if encoding == "utf-8":
        expected = "grüße → \N{GRINNING FACE} ".encode() + b"\\udcff"
    assert done.stdout.splitlines() == [expected]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_none_that_is_needed(tmp_path: Path, closed: str) -> None:
    shell = ("sh", "-c", f'exec "$@" {closed}', "sh")
    done = subprocess.run(
        command(tmp_path, FAILS.format(write="print('printed')"), *shell),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=STOP_SECONDS,
    )
    assert done.returncode == ExitCode.TOPOLOGY, done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else "printed\n")
    if "2>&-" not in closed:
        assert done.stderr.splitlines()[-1].startswith("Error: TopologyLoadError: app:topology cannot be loaded")


def test_lines_that_did_not_fit_are_counted(tmp_path: Path, unread: tuple[int, int]) -> None:
    """The reader comes late: it gets what has waited, whole lines, and how many have not."""
    reading, writing = unread
    os.set_blocking(reading, False)
    count = 2 * (output_stream.BUFFER_CHARS >> 16)
    log, read = tmp_path / "log", bytearray()

    def all_are_accounted_for() -> bool:
        with suppress(BlockingIOError):
            while True:
                read.extend(os.read(reading, 1 << 20))
        dropped = sum(map(int, re.findall(r"(\d+) lines that stream threads printed were dropped", log.read_text())))
        return dropped > 0 and read.count(b"\n") + dropped == count

    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command(tmp_path, WRITES.format(write=f"print('x' * {1 << 16})", turns=f"range({count})")),
            cwd=tmp_path,
            env=environment(),
            stdout=writing,
            stderr=stderr,
        ) as process,
    ):
        try:
            eventually(lambda: "stdout is not read" in log.read_text(), "that is said")
            eventually(all_are_accounted_for, lambda: f"{read.count(10)} lines of {count} were read; {log.read_text()}")
            assert set(bytes(read).splitlines()) == {b"x" * (1 << 16)}
        finally:
            process.kill()


LATE = """
import sys
from penstock.supervisor.logs.output_stream import OutputStream


class Late:
    stream = OutputStream(lambda: sys.stderr)

    def __del__(self):
        self.stream.write("late")


late = Late()
"""


def test_what_is_written_while_the_interpreter_is_finalized_does_not_hold_it_up() -> None:
    ended = subprocess.run([sys.executable, "-c", LATE], timeout=60, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
