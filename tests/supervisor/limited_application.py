"""An application of puppets in a process with few file descriptors; run as a program, it is that process."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import worker_targets
from http_client import HttpClient
from stage import Conductor, until

from penstock import KafkaStreams, StreamsBuilder
from penstock.cli.running_application import RunningApplication
from penstock.supervisor.logs.formats import set_up_logging
from penstock.topology.config.streams_config import StreamsConfig
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTORS = 256
#: More connections than the application has descriptors.
CROWD = 1_000


class LimitedApplication:
    """The test's side of the process."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, log_file: Path) -> None:
        self.process = process
        self.directory = directory
        self._log_file = log_file
        self.port = int(self.say())
        self.http = HttpClient(self.port)

    def say(self) -> str:
        """Return the next line that the program prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        return line

    def order(self, what: str) -> None:
        """Have the program take all remaining descriptors, or release them; returns when it has done so."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.say() == f"{what}\n"

    def log(self) -> str:
        return self._log_file.read_text()

    def ask(self, command: str) -> Any:
        with RunningApplication(self.directory) as application:
            return application.ask(command)

    def crowd(self, stack: ExitStack, count: int = CROWD, first: bytes = b"") -> list[socket.socket]:
        """Return many connections, which the stack closes; those in the kernel's queue may not be accepted yet."""
        lines = []
        for _ in range(count):
            line = stack.enter_context(socket.socket())
            line.settimeout(PATIENCE_SECONDS)
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", self.port))
            lines.append(line)
        for line in lines if first else ():
            until(lambda line=line: sent(line, first))  # type: ignore[misc]
        return lines

    def measured(self) -> None:
        """Wait until the supervisor has measured its processes once more."""
        before = time.monotonic()
        while (
            time.monotonic() - before < 2.5
        ):  # twice the lifetime of a measurement, and one interval of the memory guard
            assert self.ask("status")["state"] == "RUNNING"
            assert self.process.poll() is None, self.log()


def sent(line: socket.socket, data: bytes) -> bool:
    try:
        line.sendall(data)
    except BlockingIOError:  # not connected yet
        return False
    except OSError:  # refused, or closed already
        return True
    return True


@contextmanager
def limited_application(tmp_path: Path, conductor: Conductor, **environment: str) -> Iterator[LimitedApplication]:
    """Yield an application with a running stream thread. environment: additional variables."""
    config = {
        "application.id": "app",
        "client.id": "me",
        "bootstrap.servers": "unused:9092",
        "state.dir": str(tmp_path / "state"),
        "penstock.worker.beat.interval.ms": 20,
        "penstock.http.port": 0,
        worker_targets.CONDUCTOR: str(conductor.path),
    }
    paths = os.pathsep.join((str(Path(__file__).parent), str(ROOT)))
    log_file = tmp_path / "log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(
            [sys.executable, __file__, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": paths},
        ) as process,
    ):
        try:
            application = LimitedApplication(process, tmp_path / "state" / "app", log_file)
            conductor.running(1)
            until(lambda: application.ask("status")["state"] == "RUNNING")
            yield application
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0, application.log()
        finally:
            process.kill()


def take_all() -> list[int]:
    """Open files until no descriptors are left."""
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return taken


def obey_orders() -> None:
    """Carry out the test's orders, in a thread of a user's program that leaks files."""
    taken: list[int] = []
    for order in sys.stdin:
        if order == "take\n":
            taken = take_all()
        else:
            for descriptor in taken:
                os.close(descriptor)
        print(order, end="", flush=True)


def main() -> int:
    import threading

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    config = StreamsConfig.of(json.loads(sys.argv[1]))
    set_up_logging(config)
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    streams = KafkaStreams(builder.build(), config, worker_target=worker_targets.puppet)
    streams.start()
    print(streams.http_port, flush=True)
    threading.Thread(target=obey_orders, daemon=True).start()
    return streams.run()


if __name__ == "__main__":
    sys.exit(main())
