"""The hosts, each one `penstock run` with its stream threads, and faults of their processes and disks."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import psutil

from penstock.dev.dev_broker import DIE_WITH_PARENT

ROOT = Path(__file__).resolve().parents[2]
#: Seconds for a process to end.
END_SECONDS = 90.0
#: Stream threads of a host: at the start, and at most.
THREADS, THREADS_MAX = 2, 3
#: How much more often faults hit a stream thread's process than the spare one.
THREADS_TO_SPARE = 3
#: Process titles of a stream thread: while it starts, and later.
WORKER_COMMANDS = ("spawn_main", "penstock: ")
#: Process title of a stream thread, not of the spare process (supervisor/processes/worker_process.py).
STREAM_THREAD = re.compile(r"penstock: .* StreamThread-\d+")
#: The module of the processes that upload and load checkpoints.
TRANSFER = "penstock.statestore.checkpoints.transfer"
#: An error line of a host's log; other lines may contain the word, e.g. as the name of a state.
ERROR_LINE = re.compile(r"\S+ \S+ (ERROR|CRITICAL) ")


class Host:
    """One `penstock run`.

    directory: the parent of its own one. topology: the argument of `penstock run`. on: enters the host's network; born:
    called with the id of each new supervisor.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        config: Mapping[str, object],
        environment: Mapping[str, str],
        topology: str,
        *,
        on: Callable[[], AbstractContextManager[None]] = nullcontext,
        born: Callable[[int], None] | None = None,
    ) -> None:
        self.name = name
        #: The location of its Penstock, and its settings: both take effect at the next start.
        self.root, self.config = ROOT, dict(config)
        #: troubled: its disk fails or its memory is too small. excused: this has happened to its processes. They may
        #: die of it later too, because a store reports a failed write only at its next write.
        self.troubled = self.excused = False
        self.threads = THREADS
        self.directory = directory / name
        self.state = self.directory / "state"
        self.log = self.directory / "log"
        self._environment = environment
        self._topology = topology
        self._on, self._born = on, born
        self._process: psutil.Popen | None = None
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def runs(self) -> bool:
        """True if its supervisor is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the supervisor, None while it is alive."""
        return None if self._process is None else self._process.poll()

    @property
    def may_end(self) -> bool:
        """True if faults of its machine explain an exit code other than 0."""
        return self.troubled or self.excused

    def start(self) -> None:
        """Start the supervisor; it always ends with this process."""
        self.threads, self.excused = THREADS, False
        lines = [f'"{key}" = {value!r}\n' for key, value in self.config.items()]
        (self.directory / "penstock.toml").write_text("".join([*lines, f'"state.dir" = {str(self.state)!r}\n']))
        command = [sys.executable, "-m", "penstock.cli", "run", self._topology]
        command += ["--config", "penstock.toml", "--threads", str(THREADS)]
        with self.log.open("ab") as log, self._on():
            self._process = psutil.Popen(
                [sys.executable, "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
                cwd=self.directory,
                env=os.environ | self._environment | {"PYTHONPATH": str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self._born is not None:
            self._born(self._process.pid)

    def pids(self) -> list[int]:
        """Return the pids of all its processes, the supervisor's first."""
        supervisor = [self._process.pid] if self._process is not None and self.runs else []
        return [*supervisor, *(process.pid for process in self._children())]

    def workers(self) -> list[psutil.Process]:
        """Return the processes of the stream threads and the spare one, in the order of their start."""
        commands = [(process, " ".join(_command(process))) for process in self._children()]
        return [process for process, command in commands if any(part in command for part in WORKER_COMMANDS)]

    def transfers(self, kind: str) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return the processes that carry checkpoints, each behind its stream thread's. kind: "upload" or "load"."""
        pairs = ((worker, child) for worker in self.workers() for child in _children_of(worker))
        return [(worker, child) for worker, child in pairs if _command(child)[-2:] == [TRANSFER, kind]]

    def victim(self, share: float) -> tuple[psutil.Process, str] | None:
        """Return the process to hit and its name, None if there is none. share: selects the process, in 0…1."""
        workers = self.workers()
        threads = [worker for worker in workers if is_stream_thread(worker)]
        spare = [worker for worker in workers if worker not in threads]
        candidates = threads * THREADS_TO_SPARE + spare
        if not candidates:
            return None
        worker = candidates[int(share * len(candidates))]
        what = "worker" if worker in threads else "spare process (or one that starts),"
        return worker, f"{self.name} {what} {workers.index(worker) + 1} of {len(workers)}, pid {worker.pid}"

    def _children(self) -> list[psutil.Process]:
        return [] if self._process is None else _children_of(self._process)

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor, if it is alive."""
        if self.runs and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> int:
        """Kill supervisor and workers at once, as a power failure would; return the number of killed processes."""
        processes = [*self._children(), *([self._process] if self.runs and self._process is not None else [])]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return len(psutil.wait_procs(processes, END_SECONDS)[0])

    def kill_supervisor(self) -> bool:
        """Kill only the supervisor; return whether its workers ended soon after."""
        workers = self._children()
        self.signal_supervisor(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_SECONDS)
        return not psutil.wait_procs(workers, END_SECONDS)[1]

    def stop(self) -> int:
        """Stop cleanly; return the exit code, SIGKILL's if it took too long.

        The signal ends a supervisor that is still importing modules. No thread runs yet, so that counts as clean too.
        """
        if self._process is None:
            return 0
        importing = not _catches(self._process.pid, signal.SIGTERM)
        self.signal_supervisor(signal.SIGTERM)
        try:
            code = int(self._process.wait(END_SECONDS))
            return 0 if importing and code == -signal.SIGTERM else code
        except psutil.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def last_error(self) -> str:
        """Return the last line of the log with an error."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return next(filter(ERROR_LINE.match, reversed(lines)), lines[-1] if lines else "")

    # -- the disk of a stopped host

    def task_directories(self) -> list[Path]:
        """Return the directories of tasks."""
        return sorted(path for path in self.state.glob("*/*_*") if path.is_dir())

    def delete_state(self, rng: random.Random) -> list[str]:
        """Delete one task's directory, all of them, or the whole state directory; return a description."""
        tasks = self.task_directories()
        choice = rng.randrange(3)
        if choice == 0 and tasks:
            gone = [rng.choice(tasks)]
        elif choice == 1:
            gone = tasks
        else:
            gone = [self.state] if self.state.exists() else []
        for path in gone:
            shutil.rmtree(path)
        return [str(path.relative_to(self.directory)) for path in gone]

    def corrupt_state(self, rng: random.Random) -> list[str]:
        """Damage one or two files in the directories of at least one task; return a description."""
        tasks = [
            sorted(path for path in task.rglob("*") if path.is_file() and path.stat().st_size)
            for task in self.task_directories()
        ]
        chosen = [path for files in tasks for path in rng.sample(files, min(len(files), rng.randint(0, 2)))]
        chosen = chosen or [rng.choice(files) for files in tasks if files][:1]
        return [f"{path.relative_to(self.state)} {_damage(path, rng)}" for path in chosen]


def _damage(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    match rng.randrange(4):
        case 0:
            path.unlink()
            return "deleted"
        case 1:
            path.write_bytes(content[: rng.randrange(len(content))])
            return "cut short"
        case 2:
            path.write_bytes(b"")
            return "emptied"
        case _:
            begin = rng.randrange(len(content))
            for at in range(begin, min(begin + 16, len(content))):
                content[at] ^= rng.randint(1, 255)
            path.write_bytes(content)
            return "overwritten"


def _catches(pid: int, number: signal.Signals) -> bool:
    """Return True if a process has a handler for a signal, or does not exist."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(mask >> (number - 1) & 1)


def is_stream_thread(process: psutil.Process) -> bool:
    """Return whether a process is a stream thread by its title; the spare one changes its title when it becomes one."""
    return STREAM_THREAD.match(" ".join(_command(process))) is not None


def _children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return sorted(process.children(), key=lambda child: child.pid)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return command
