"""Keeps a second driver out of a checkpoint, on all hosts.

The lock in state.dir guards one host only. Spark notices two drivers only when both write the log of one query; by then
the second has processed a micro-batch and written stale results.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

import orjson
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from penstock.topology.errors import LockError, StreamsError

from .checkpoint import IDENTITY_FILE, CheckpointError
from .hadoop_files import HadoopFiles

log = logging.getLogger(__name__)

LEASE_FILE = "penstock-lease.json"
RENEW_SECONDS = 3.0
#: A lease that is not renewed for this time has expired: its driver was killed. Several renewals may fail before.
LEASE_SECONDS = 15.0
LOOK_SECONDS = 0.5


class CheckpointLease:
    """The right of one driver to a checkpoint: a file in it that the driver renews every RENEW_SECONDS.

    directory: the checkpoint. A starting driver that finds another driver's lease watches the file: a renewal means
    that the owner runs, none for LEASE_SECONDS that it was killed. Clocks of different hosts are never compared.
    Of drivers that start at the same moment, the last one to write the file has the lease; the others stop at their
    next renewal, before Spark has finished a micro-batch.
    """

    def __init__(self, files: HadoopFiles, directory: str) -> None:
        self.directory = directory.rstrip("/")
        self._files = files
        self._path = f"{self.directory}/{LEASE_FILE}"
        self._owner = ""
        self._lost: StreamsError | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, owner: str) -> None:
        """Take the lease, or wait until that of a killed driver expires. No effect if this driver has it.

        owner: the id of a state directory whose lock the caller has. An earlier lease of the same id has expired,
        because its driver had that lock. Raises LockError if another driver renews its lease.
        """
        if self._thread is not None:
            return
        self._owner, self._lost = owner, None
        found = self._read()
        if found is not None and _content(found).get("owner") != owner:
            self._outlast(found)
        self._renew()
        self._ended.clear()
        self._thread = threading.Thread(target=self._keep, name="checkpoint-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise LockError if this driver has lost the lease, CheckpointError if the checkpoint is gone."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Delete the lease: the next driver starts without waiting."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        try:
            if self._lost is None and self._loss() is None:
                self._files.delete(self._path)
        except (CheckpointError, Py4JError, OSError) as error:  # Spark's Java may have ended before
            log.info("The lease %s was not deleted, and expires in %.0f s: %s", self._path, LEASE_SECONDS, error)

    def _outlast(self, found: bytes) -> None:
        log.warning("The checkpoint %s has a lease of %s. Waiting until it expires", self.directory, _holder(found))
        deadline = time.monotonic() + LEASE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise LockError(
                    f"The checkpoint {self.directory} is in use by {_holder(now or found)}. Stop the application "
                    "there, or use another --checkpoint."
                )
        log.warning("The lease of %s has expired: it was not renewed for %.0f s", _holder(found), LEASE_SECONDS)

    def _keep(self) -> None:
        renewed = time.monotonic()
        while self._lost is None and not self._ended.wait(RENEW_SECONDS):
            try:
                self._lost = self._loss()
                if self._lost is None:
                    self._renew()
                    renewed = time.monotonic()
            except (CheckpointError, Py4JError, OSError) as error:
                log.warning("The lease of the checkpoint %s was not renewed: %s", self.directory, error)
                if time.monotonic() - renewed > LEASE_SECONDS:
                    self._lost = self._lock_error(
                        f"could not be written for {LEASE_SECONDS:.0f} s, and its lease has expired"
                    )

    def _loss(self) -> StreamsError | None:
        """Return why this driver has the lease no longer; None if it has it."""
        found = self._read()
        if found == b"" or (found is not None and _content(found).get("owner") == self._owner):
            return None
        if found is None and IDENTITY_FILE not in self._files.names(self.directory):
            return CheckpointError(
                f"The checkpoint {self.directory} is gone: it was deleted, moved or unmounted while the application "
                "ran. Put it back, and start the application again."
            )
        return self._lock_error("was taken over by another driver")  # which may have ended and deleted its lease

    def _lock_error(self, what: str) -> LockError:
        return LockError(f"The checkpoint {self.directory} {what}; this driver stops.")

    def _read(self) -> bytes | None:
        """Return the lease, None if there is none, b"" while it is being written, or if its writer was killed
        meanwhile.
        """
        try:
            return self._files.read(self._path)
        except CheckpointError as error:
            log.info("%s", error)
            return b""

    def _renew(self) -> None:
        """Write the file; its time only makes the content of each renewal differ.

        In place: Hadoop replaces a file on a local disk by deleting it first, and without a file the lease is free.
        """
        content = {"owner": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "renewed_ns": time.time_ns()}
        self._files.write(self._path, orjson.dumps(content))


def _content(data: bytes) -> dict[str, object]:
    """Return the content of a lease; a file that cannot be read has no owner, but may still be renewed."""
    try:
        content: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _holder(data: bytes) -> str:
    """Return a description of the owner of a lease."""
    content = _content(data)
    return f"the driver with process id {content.get('pid')} on host {content.get('host')}"
