"""What an application keeps on this host in ``state.dir/<application.id>``: who it is, and that it runs once."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from pathlib import Path

from penstock.topology.errors import ConfigError, StreamsError

#: Kafka Streams' name and content for it (StateDirectory.PROCESS_FILE_NAME).
PROCESS_FILE = "kafka-streams-process-metadata"
LOCK_FILE = ".supervisor.lock"


class ApplicationLockedError(StreamsError):
    """Another process on this host runs this application with this state directory."""


class InstanceDirectory:
    """The application's folder. Raises ConfigError if it cannot be made or written."""

    def __init__(self, state_dir: str, application_id: str) -> None:
        self.path = Path(state_dir) / application_id
        self._application_id = application_id
        self._lock: int | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.process_id = self._process_id()
        except OSError as error:
            raise ConfigError(
                f"state.dir={state_dir} cannot be used: {error}. Choose a folder that this user may write."
            ) from error

    def _process_id(self) -> str:
        """Return the id (a UUID) under which the assignor knows this host's tasks; made at the first start."""
        file = self.path / PROCESS_FILE
        if not file.exists():
            made = self.path / f"{PROCESS_FILE}.{os.getpid()}"
            made.write_text(json.dumps({"processId": str(uuid.uuid4())}))
            try:
                os.link(made, file)  # unlike rename, keeps the id of another process that was faster
            except FileExistsError:
                pass
            finally:
                made.unlink()
        try:
            return str(uuid.UUID(json.loads(file.read_text())["processId"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} is damaged: delete it, then this host gets a new process id.") from error

    def lock(self) -> None:
        """Take the application's lock, which ends with the process at the latest.

        Raises ApplicationLockedError, which names the process that has it.
        """
        file = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode(errors="replace").strip() or "unknown"
            os.close(file)
            raise ApplicationLockedError(
                f"Process {owner} on this host already runs application.id={self._application_id} with its state in "
                f"{self.path.parent}. Stop it, or give this one another state.dir; more stream threads are added with "
                "num.stream.threads, not with a second supervisor."
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._lock = file

    def unlock(self) -> None:
        """Give the lock back, if it is held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
