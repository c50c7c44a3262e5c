"""A reader that does not read an application's output, or an encoding that lacks characters, does not affect its run
and end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.logs import output_stream
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
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
    """Return the command line for a module, without a broker; shell: a prefix of it."""
    (folder / "app.py").write_text(module)
    settings = {"application.id": "a", "bootstrap.servers": "127.0.0.1:1", "state.dir": str(folder / "state")}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    return [*shell, sys.executable, "-m", "penstock.cli", "run", "app:topology", *options]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


@pytest.fixture
def unread() -> Iterator[tuple[int, int]]:
    """A pipe that no process reads: its reading and its writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def is_full(writing: int) -> bool:
    """Return whether a write to a pipe would wait. How many bytes fit depends on the sizes of the writes before."""
    writable = select.poll()
    writable.register(writing, select.POLLOUT)
    return not writable.poll(0)


@pytest.mark.parametrize(
    ("stream", "write"),
    [("stdout", PRINTS.format(stream="stdout")), ("stderr", PRINTS.format(stream="stderr")), ("stderr", LOGS)],
)
def test_an_unread_pipe_does_not_delay_the_end(
    tmp_path: Path, unread: tuple[int, int], stream: str, write: str
) -> None:
    _, writing = unread
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writing}
    with subprocess.Popen(
        command(tmp_path, WRITES.format(write=write, turns="itertools.count()")),
        cwd=tmp_path,
        env=environment(),
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    ) as process:
        try:
            eventually(lambda: is_full(writing), "the pipe is full")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        finally:
            process.kill()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["plain", "json"])
def test_characters_outside_the_encoding_are_escaped(tmp_path: Path, encoding: str, form: str) -> None:
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
def test_closed_standard_streams_are_tolerated(tmp_path: Path, closed: str) -> None:
    shell = ("sh", "-c", f'exec "$@" {closed}', "sh")
    done = subprocess.run(
        command(tmp_path, FAILS.format(write="print('printed')"), *shell),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == ExitCode.TOPOLOGY, done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else "printed\n")
    if "2>&-" not in closed:
        assert done.stderr.splitlines()[-1].startswith("Error: TopologyLoadError: app:topology cannot be loaded")


def test_dropped_lines_are_counted(tmp_path: Path, unread: tuple[int, int]) -> None:
    """The reader comes late: it gets the waiting lines, complete, and the number of dropped ones."""
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


def test_output_during_finalization_does_not_delay_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", LATE], timeout=PATIENCE_SECONDS, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
