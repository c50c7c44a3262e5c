"""The example's two programs are one application, and its README is correct."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.systems import compile_java
from tests.first_steps import Terminal
from tests.free_port import free_port
from tests.java.conftest import kafka_streams_jars
from tests.java.handover import kind_of, placed
from tests.markdown import blocks
from tests.waiting import PATIENCE_SECONDS, eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "moving"
PAGE = EXAMPLE / "README.md"
#: Names in the page's commands and settings, which the test replaces.
PORT, FOLDER = "9092", "/tmp/order-counts"
SETTINGS = ("order_counts.properties", "penstock.toml")
#: The exit code of a Java program after Ctrl-C.
INTERRUPTED = 130

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # its jars, and a compiler


def test_both_programs_describe_the_same_topology(tmp_path: Path) -> None:
    java, class_path = kafka_streams_jars()
    compile_java(java, EXAMPLE / "OrderCounts.java", tmp_path, class_path)
    command = [str(java), "-cp", f"{tmp_path}{os.pathsep}{class_path}", "OrderCounts", "describe"]
    described = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = [sys.executable, "-m", "penstock.cli", "describe", "order_counts:topology"]
    text = subprocess.run(ours, capture_output=True, text=True, check=True, cwd=EXAMPLE).stdout
    assert text.strip() == described.strip()


class Reader:
    """Types the page's blocks into terminals; with its own port and folder."""

    def __init__(self, folder: Path) -> None:
        java, class_path = kafka_streams_jars()
        self.port = str(free_port())
        self._replaced = {PORT: self.port, FOLDER: str(folder / "order-counts")}
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(java.parent), os.environ["PATH"]]),
            "CLASSPATH": class_path,
            "XDG_STATE_HOME": str(folder / "brokers"),
        }
        self._environment.pop("KAFKA_BOOTSTRAP_SERVERS", None)
        self._terminals: list[Terminal] = []
        shutil.copytree(EXAMPLE, folder / "moving")
        for name in SETTINGS:
            file = folder / "moving" / name
            file.write_text(self._mine(file.read_text()))
        self.broker, self.java, self.penstock, self.counts, self.more = (
            self._mine(block.text) for block in blocks(PAGE.read_text()) if block.language == "sh"
        )

    def _mine(self, text: str) -> str:
        for word, mine in self._replaced.items():
            text = text.replace(word, mine)
        return text

    def type(self, text: str) -> Terminal:
        """Open a terminal and type commands into it."""
        log = self._folder / f"terminal-{len(self._terminals) + 1}.log"
        self._terminals.append(Terminal(self._folder / "moving", self._environment, log))
        self._terminals[-1].type(text)
        return self._terminals[-1]

    def shared(self) -> bool:
        """True if programs of both kinds have tasks."""
        found = placed(f"127.0.0.1:{self.port}", "order-counts", kind_of)
        return bool(found) and all(tasks.active for tasks in found.values())

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()
        stop = ["penstock", "broker", "stop", "--delete-data"]
        subprocess.run(stop, env=self._environment, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    made = Reader(folder)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_is_correct(tmp_path: Path) -> None:
    with reader(tmp_path) as user:
        user.type(user.broker)
        java = user.type(user.java)
        counts = user.type(user.counts)

        def count_one_more(number: int) -> None:
            user.type(user.more)
            eventually(lambda: f"alice\t{number}\n" in counts.output, lambda: counts.output, PATIENCE_SECONDS)

        count_one_more(2)
        penstock = user.type(user.penstock)
        eventually(user.shared, lambda: penstock.output, PATIENCE_SECONDS)
        count_one_more(3)
        java.interrupt(INTERRUPTED)
        count_one_more(4)
        java = user.type(user.java)
        eventually(user.shared, lambda: java.output, PATIENCE_SECONDS)
        penstock.interrupt()
        count_one_more(5)
        java.interrupt(INTERRUPTED)
        counts.interrupt()
