"""A reader of the documentation who types its commands into terminals, word for word, starting in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.markdown import Block, blocks
from tests.waiting import PATIENCE_SECONDS, eventually

from . import short_lived_jvms

ROOT = Path(__file__).resolve().parent.parent
#: The pages' placeholder for the repository's address, and the broker's address if its port is free.
REPOSITORY, ADDRESS = "…", "127.0.0.1:9092"
#: Commands that continue until Ctrl-C. Their terminal is busy; the next block is typed into another one.
LASTING = re.compile(r"^(penstock run |python main\.py|java |penstock topic consume .* --follow)", re.MULTILINE)
#: Those that run an application.
RUNS = ("penstock run ", "python main.py")
#: Addresses of a page, e.g. that of a port which may be taken, and the ones to type in their place.
Words = Mapping[str, str]
#: Until an installation must have ended.
INSTALL_SECONDS = 2 * PATIENCE_SECONDS
#: Uses less CPU time than a new user's shell: the kernel is compiled without optimization, packages when they are
#: imported.
QUICKLY = {"CFLAGS": "-O0", "PIP_NO_COMPILE": "1", "KAFKA_OPTS": " ".join(short_lived_jvms.OPTIONS)}
#: Settings of the developer's shell, which a new user does not have.
FOREIGN = ("PENSTOCK_", "KAFKA_", "PYTHON", "VIRTUAL_ENV", "COVERAGE")


class Terminal:
    """A shell that ends at the first failing command. It reads commands from a pipe, and writes its output to a
    file.
    """

    def __init__(self, folder: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._shell = subprocess.Popen(
                ["bash", "-e"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._mark = ""
        self.lasting = ""

    @property
    def output(self) -> str:
        """Return the output so far."""
        return self._log.read_text()

    def type(self, text: str) -> None:
        """Type commands, and wait until they end, except for the last one if it is LASTING."""
        if found := LASTING.search(text):
            if before := text[: found.start()]:
                self.type(before)
            text = text[found.start() :]
        self.lasting = found.group() if found else ""
        assert self._shell.stdin is not None
        self._mark = f"done-{uuid.uuid4().hex}"
        self._shell.stdin.write(f"{text}\necho {self._mark} $?\n")
        self._shell.stdin.flush()
        if not self.lasting:
            self._wait(text)

    def _wait(self, what: str) -> None:
        patience = INSTALL_SECONDS if "pip install" in what else PATIENCE_SECONDS
        eventually(
            lambda: self._mark in self.output or self._shell.poll() is not None,
            lambda: f"{what} continues:\n{self.output}",
            patience,
        )
        assert f"{self._mark} 0" in self.output, f"{what} has failed:\n{self.output}"

    def interrupt(self, exit_code: int = 0) -> None:
        """Press Ctrl-C, which must end the lasting command with this exit code; an exit code other than 0 ends the
        shell. An application has to run before: an interpreter that still imports ends otherwise.
        """
        if self.lasting in RUNS:
            eventually(
                lambda: self._has_stream_threads() or self._mark in self.output,
                lambda: f"{self.lasting} does not run:\n{self.output}",
            )
        os.killpg(self._shell.pid, signal.SIGINT)
        if exit_code == 0:
            self._wait(self.lasting)
        else:
            assert self._shell.wait(PATIENCE_SECONDS) == exit_code, self.output
        self.lasting = ""

    def _has_stream_threads(self) -> bool:
        for child in psutil.Process(self._shell.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "StreamThread" in " ".join(child.cmdline()):
                    return True
        return False

    def close(self) -> None:
        """Close the window: its processes end."""
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()


class Reader:
    """Follows pages in a folder: writes their files, types their commands, and compares the output with the pages."""

    def __init__(self, folder: Path, repository: Path, environment: dict[str, str], words: Words) -> None:
        self._folder = folder
        self._environment = environment
        self._words = {REPOSITORY: str(repository), **words}
        self._terminals: list[Terminal] = []

    def follow(self, page: Path) -> float:
        """Follow a page; return the seconds that took. Raises AssertionError where the page is wrong."""
        began = time.monotonic()
        for block in blocks(page.read_text()):
            if block.file_name is not None:
                (self._folder / block.file_name).write_text(self._replaced(block.text))
            elif block.language == "sh":
                self._type(block)
            elif block.language == "text" and block.follows == "sh":
                self._compare(block, page)
        return time.monotonic() - began

    def stop(self) -> None:
        """Press Ctrl-C in all terminals; every command must end with exit code 0."""
        for terminal in self._terminals:
            if terminal.lasting:
                terminal.interrupt()

    def close(self) -> None:
        """Close all terminals, and stop the broker."""
        for terminal in self._terminals:
            terminal.close()
        penstock = self._folder / ".venv" / "bin" / "penstock"
        if penstock.exists():
            command = [str(penstock), "broker", "stop", "--delete-data"]
            subprocess.run(command, env=self._environment, check=True, stdout=subprocess.DEVNULL)

    def _replaced(self, text: str) -> str:
        for word, real in self._words.items():
            text = text.replace(word, real)
        return text

    def _type(self, block: Block) -> None:
        text = self._replaced(block.text)
        if LASTING.search(text) and "topic consume" not in text:
            for terminal in self._terminals:  # one application at a time: the previous one is stopped
                if terminal.lasting and "topic consume" not in terminal.lasting:
                    terminal.interrupt()
        free = [terminal for terminal in self._terminals if not terminal.lasting]
        begins_anew = ". .venv/bin/activate" in text and "python3 -m venv" not in text
        terminal = free[-1] if free and not begins_anew else self._open()
        terminal.type(text)
        if found := re.search(r'"bootstrap\.servers" = "(.*)"', terminal.output):
            self._words[ADDRESS] = found.group(1)  # the port may be taken; the pages explain this case

    def _open(self) -> Terminal:
        log = self._folder.parent / f"terminal-{len(self._terminals) + 1}.log"
        self._terminals.append(Terminal(self._folder, self._environment, log))
        return self._terminals[-1]

    def _compare(self, block: Block, page: Path) -> None:
        """Wait until the lines of a block have appeared in the terminal that follows a topic."""
        follower = next(terminal for terminal in reversed(self._terminals) if "topic consume" in terminal.lasting)
        lines = set(block.text.splitlines())
        eventually(
            lambda: lines <= set(follower.output.splitlines()),
            lambda: "\n".join(
                [f"{page.name}:{block.line}: {lines}", *(f"-- {t.lasting}\n{t.output}" for t in self._terminals)]
            ),
        )


@contextmanager
def reader(folder: Path, python: Path, words: Words = MappingProxyType({})) -> Iterator[Reader]:
    """Yield a reader with an empty folder below this one, whose ``python3`` is this interpreter."""
    empty, programs, repository = folder / "empty", folder / "bin", folder / "repository"
    for each in (empty, programs, folder / "tmp"):
        each.mkdir()
    (programs / "python3").symlink_to(python)
    _snapshot(repository)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environment |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(folder / "tmp"),
        "XDG_STATE_HOME": str(folder / "brokers"),
        **QUICKLY,
    }
    found = Reader(empty, repository, environment, words)
    try:
        yield found
    finally:
        found.close()


def _snapshot(repository: Path) -> None:
    """Commit all files of the working tree, committed or not, to a new repository."""
    copy_tree(repository)
    git = ["git", "-c", "user.name=reader", "-c", "user.email=reader@localhost"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*git, *arguments], cwd=repository, check=True)


def copy_tree(to: Path) -> None:
    """Copy all files of the working tree, committed or not, but those that git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
