"""Checkpoints of the stores of a thread's tasks: taken at commits, uploaded, and loaded by tasks without state.

At a commit that stores the ends of all changelogs, RocksDB makes a checkpoint of hard links, which is the only work of
the stream thread; another process uploads it (statestore/checkpoints). Such a commit was accepted by the group or,
with exactly-once, in the transaction: so every checkpoint is a prefix of its changelogs, also one of a former owner.

A task without stores on disk first asks for the newest checkpoint that fits. Requests to brokers and the load run
beside the stream thread. When its files are checked, one rename moves them to their place, and the changelog is
replayed from their offset, as after any restart. If nothing fits, all of it is replayed, and the log says why.
"""

from __future__ import annotations

import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin, results
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.statestore.checkpoints.fitness import ChangelogNow, facts_of_stores
from penstock.statestore.checkpoints.manifest import InputPosition, Manifest, StoredStore
from penstock.statestore.checkpoints.task_checkpoints import Uploaded
from penstock.statestore.checkpoints.transfer_messages import LoadJob, LoadResult, Report, UploadJob
from penstock.statestore.checkpoints.transfer_process import TransferFailedError, TransferProcess
from penstock.statestore.directory.state_directory import STORES_DIRECTORY, TRANSFERS_DIRECTORY, has_stores
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.errors import LockError, StreamsError
from penstock.topology.records import TaskId, TopicPartition
from penstock_distribution import version

from ..control.messages import CheckpointStatus
from .topic_partition_metadata import TOPIC_MARK, TopicPartitionMetadata

#: Transfers of one stream thread that run at a time; others wait.
TRANSFERS_AT_ONCE = 2
#: Time limit of each request to the brokers before a load, in ms.
REQUEST_TIMEOUT_MS = 10_000
_UPLOAD, _LOAD, _HASHES = "upload", "load", "hashes.json"
MIB = 1 << 20


class LoadingError(LockError):
    """The checkpoint of a task is being loaded; try again in the next loop, as for a lock."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """uri: empty for none. facts: of the topology (topology_facts.facts_of); topology: their hash."""

    uri: str
    interval_ms: int
    keep: int
    application_id: str
    facts: Mapping[str, Any]
    topology: str
    committed_only: bool


@dataclass(frozen=True, slots=True)
class Restorable:
    """A task whose state may be checkpointed. stores: the changelogs of those on disk, by name."""

    task_id: TaskId
    directory: Path
    stores: Mapping[str, TopicPartition]


@dataclass(slots=True)
class CheckpointFigures:
    """Figures of a task. last_ms: monotonic time of the last upload, or of the start; bytes, seconds: of the last."""

    last_ms: int
    total_bytes: int = 0
    sent_bytes: int = 0
    upload_ms: int = 0
    uploads: int = 0
    failures: int = 0
    loaded_bytes: int = 0
    load_ms: int = 0


@dataclass(slots=True)
class _Transfer:
    """A pending transfer. asked: completed with it; process: once it runs; loaded, uploaded: its result."""

    began_ms: int
    asked: Future[None] | None = None
    process: TransferProcess | None = None
    cancelled: bool = False
    loaded: LoadResult | None = None
    uploaded: Uploaded | None = None
    arrived_bytes: int = 0
    total_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """End it, or never begin."""
        with self.lock:
            self.cancelled = True
            if self.process is not None:
                self.process.kill()


def on_disk(stores: Mapping[str, StoreBuilder], changelogs: Mapping[TopicPartition, str]) -> dict[str, TopicPartition]:
    """Return the changelogs of the stores that checkpoints contain: those with RocksDB and a changelog."""
    return {
        name: partition
        for partition, name in changelogs.items()
        if stores[name].backend is StoreBackend.ROCKSDB
        and stores[name].kind not in (StoreKind.SUPPRESS_BUFFER, StoreKind.CUSTOM)
    }


class Checkpoints:
    """generation: returns the member's generation in the group. Only the stream thread calls it."""

    def __init__(
        self,
        settings: CheckpointSettings,
        admin: Admin,
        clock: Clock,
        generation: Callable[[], int],
        log: PrefixedLogger,
    ) -> None:
        self.settings = settings
        self._admin, self._clock, self._generation, self._log = admin, clock, generation, log
        self._pool = ThreadPoolExecutor(TRANSFERS_AT_ONCE, "checkpoints")
        self._uploads: dict[TaskId, _Transfer] = {}
        self._loads: dict[TaskId, _Transfer] = {}
        #: Checkpoints that were loaded for a task that has not run since: their stores may be unusable.
        self._tried: dict[TaskId, set[str]] = {}
        self._next_ms: dict[TaskId, int] = {}
        #: How much the task had done at its last checkpoint that was uploaded.
        self._uploaded_work: dict[TaskId, int] = {}
        self.figures: dict[TaskId, CheckpointFigures] = {}

    @property
    def enabled(self) -> bool:
        """Whether penstock.checkpoint.uri is set."""
        return bool(self.settings.uri)

    # -- uploads

    def proved(self, task_id: TaskId) -> None:
        """Note that a task runs: the stores that were loaded for it are usable."""
        self._tried.pop(task_id, None)

    def started(self, task_id: TaskId) -> None:
        """Note that an active task with stores runs: its next checkpoint is due within an interval.

        The tasks of an application are spread over the interval. Does nothing without a URI.
        """
        if not self.enabled:
            return
        now_ms = self._clock.monotonic_ms()
        self.proved(task_id)
        self._uploaded_work.pop(task_id, None)
        part = zlib.crc32(f"{self.settings.application_id} {task_id}".encode()) / 2**32
        self._next_ms[task_id] = now_ms + int(self.settings.interval_ms * part)
        figures = self.figures.setdefault(task_id, CheckpointFigures(now_ms))
        figures.last_ms = now_ms

    def is_due(self, task_id: TaskId, work: int) -> bool:
        """Whether a commit with the ends of all changelogs should take a checkpoint now.

        work: the amount of work that the task has done. If there was none since its last checkpoint, that one is up to
        date, and none is due.
        """
        now_ms = self._clock.monotonic_ms()
        next_ms = self._next_ms.get(task_id)
        if next_ms is None or now_ms < next_ms:
            return False
        running = self._uploads.get(task_id)
        if running is not None and running.asked is not None and not running.asked.done():
            return False
        if self._uploaded_work.get(task_id) == work:
            self._next_ms[task_id] = now_ms + self.settings.interval_ms
            self.figures[task_id].last_ms = now_ms
            return False
        return True

    def take(
        self,
        of: Restorable,
        stores: Mapping[str, StateStore],
        inputs: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, bytes],
        work: int,
    ) -> None:
        """Make hard links of the stores' files as of the commit that was just made, and start to upload them.

        inputs: the committed offsets of the task's inputs. work: see is_due. Failures are logged: processing continues.
        """
        self._next_ms[of.task_id] = self._clock.monotonic_ms() + self.settings.interval_ms
        directory = of.directory / TRANSFERS_DIRECTORY / _UPLOAD
        try:
            manifest = self._manifest(of, stores, inputs, topic_ids)
            shutil.rmtree(directory, ignore_errors=True)  # left by a killed process
            for name in of.stores:
                stores[name].rows.checkpoint(directory / name)
        except (StreamsError, OSError) as error:
            self._failed(of.task_id, str(error))
            return
        job: UploadJob = {
            "kind": "upload",
            "uri": self.settings.uri,
            "manifest": manifest.encode().decode(),
            "directory": str(directory),
            "hashes": str(of.directory / TRANSFERS_DIRECTORY / _HASHES),
            "keep": self.settings.keep,
        }
        transfer = self._uploads[of.task_id] = _Transfer(self._clock.monotonic_ms())
        transfer.asked = self._pool.submit(self._upload, of.task_id, transfer, job, work)

    def _manifest(
        self,
        of: Restorable,
        stores: Mapping[str, StateStore],
        inputs: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, bytes],
    ) -> Manifest:
        nameless = sorted({partition.topic for partition in of.stores.values() if partition.topic not in topic_ids})
        if nameless:
            raise StreamsError(f"the brokers report no topic id of {', '.join(nameless)}: Kafka 2.8 or newer is needed")
        taken = {}
        for name, partition in of.stores.items():
            offset = stores[name].committed_offset()
            if offset is None:
                raise StreamsError(f"the store {name} has no changelog offset")
            topic = partition.topic
            taken[name] = StoredStore(topic, topic_ids[topic].hex(), partition.partition, offset)
        positions: list[InputPosition] = []
        times: dict[str, int] = {}
        for partition, at in sorted(inputs.items()):
            metadata = TopicPartitionMetadata.decode(at.metadata)
            found = topic_ids.get(partition.topic)
            topic_id = None if found is None else found.hex()
            positions.append(
                InputPosition(partition.topic, topic_id, partition.partition, at.offset, metadata.partition_time)
            )
            times.update(metadata.processor_metadata)
        return Manifest(
            application_id=self.settings.application_id,
            task=str(of.task_id),
            generation=max(self._generation(), 0),
            time_ms=self._clock.wall_clock_ms(),
            penstock_version=version(),
            topology=self.settings.topology,
            facts=facts_of_stores(self.settings.facts, of.stores),
            stores=taken,
            inputs=tuple(positions),
            processor_metadata={key: value for key, value in times.items() if not key.startswith(TOPIC_MARK)},
        )

    def _upload(self, task_id: TaskId, transfer: _Transfer, job: UploadJob, work: int) -> None:
        def note(report: Report) -> None:
            transfer.arrived_bytes = report.get("bytes", transfer.arrived_bytes)
            if "uploaded" in report:
                transfer.uploaded = Uploaded(**report["uploaded"])

        try:
            self._run(transfer, job, note)
            done = transfer.uploaded
            if done is None:
                raise TransferFailedError("its process ended without a result")
        except (TransferFailedError, OSError) as error:
            if not transfer.cancelled:
                self._failed(task_id, str(error))
            return
        finally:
            shutil.rmtree(job["directory"], ignore_errors=True)  # hard links: else deleted files would take space
        self._uploaded_work[task_id] = work
        figures, now_ms = self.figures[task_id], self._clock.monotonic_ms()
        figures.last_ms, figures.upload_ms = now_ms, now_ms - transfer.began_ms
        figures.total_bytes, figures.uploads = done.total_bytes, figures.uploads + 1
        figures.sent_bytes += done.sent_bytes
        self._log.info(
            "Uploaded checkpoint %s of task %s: %.1f MiB, %.1f MiB of them new, in %.1f s",
            done.name,
            task_id,
            done.total_bytes / MIB,
            done.sent_bytes / MIB,
            figures.upload_ms / 1000,
        )

    def _failed(self, task_id: TaskId, reason: str) -> None:
        self.figures[task_id].failures += 1
        self._log.warning(
            "No checkpoint of task %s was uploaded: %s. The next attempt is in %d s (penstock.checkpoint.interval.ms)",
            task_id,
            reason,
            self.settings.interval_ms // 1000,
        )

    def _run(self, transfer: _Transfer, job: Mapping[str, object], on_report: Callable[[Report], None]) -> None:
        with transfer.lock:
            if transfer.cancelled:
                raise TransferFailedError("it was cancelled")
            transfer.process = TransferProcess(job)
        transfer.process.run(on_report)

    # -- loads

    def load(self, of: Restorable) -> dict[str, int]:
        """Load the newest checkpoint that fits, for a task without state on disk, whose directory is locked.

        Returns the changelog offsets of the stores that are in place now; {} if the changelog has to be replayed, or
        the task has state. Raises LoadingError while it is being loaded: call it again.
        """
        if not of.stores or (of.task_id not in self._loads and has_stores(of.directory)):
            return {}
        transfer = self._loads.get(of.task_id)
        if transfer is None:
            transfer = self._loads[of.task_id] = _Transfer(self._clock.monotonic_ms())
            transfer.asked = self._pool.submit(self._load, of, transfer)
        if transfer.asked is None or not transfer.asked.done():
            raise LoadingError(f"Task {of.task_id} loads its checkpoint")
        del self._loads[of.task_id]
        transfer.asked.result()
        return {} if transfer.loaded is None else self._put_in_place(of, transfer, transfer.loaded)

    def _put_in_place(self, of: Restorable, transfer: _Transfer, loaded: LoadResult) -> dict[str, int]:
        self._tried.setdefault(of.task_id, set()).add(loaded["name"])
        target = of.directory / STORES_DIRECTORY
        try:
            if target.exists():
                target.rmdir()  # has_stores: it is empty
            found = Path(loaded["directory"])
            found.rename(target)
            found.parent.rmdir()
        except OSError as error:
            self._log.warning(
                "Restoring task %s from its changelog: its checkpoint cannot be moved to %s: %s",
                of.task_id,
                target,
                error,
            )
            return {}
        now_ms = self._clock.monotonic_ms()
        figures = self.figures.setdefault(of.task_id, CheckpointFigures(now_ms))
        figures.loaded_bytes, figures.load_ms = loaded["total_bytes"], now_ms - transfer.began_ms
        self._log.info(
            "Loaded checkpoint %s of task %s: %.1f MiB in %.1f s, taken %d s ago; its changelogs are replayed "
            "from there",
            loaded["name"],
            of.task_id,
            figures.loaded_bytes / MIB,
            figures.load_ms / 1000,
            (self._clock.wall_clock_ms() - loaded["time_ms"]) // 1000,
        )
        return loaded["offsets"]

    def _load(self, of: Restorable, transfer: _Transfer) -> None:
        """Ask the brokers about the changelogs, and load a checkpoint; the reason of a failure is logged."""
        directory = of.directory / TRANSFERS_DIRECTORY / _LOAD
        seen = False

        def note(report: Report) -> None:
            nonlocal seen
            transfer.arrived_bytes = report.get("bytes", transfer.arrived_bytes)
            if "loading" in report:
                seen = True
                transfer.total_bytes = report["total_bytes"]
                size = report["total_bytes"] / MIB
                self._log.info("Loading checkpoint %s of task %s: %.1f MiB", report["loading"], of.task_id, size)
            elif "skipped" in report:
                seen = True
                name, reason = report["skipped"], report["reason"]
                self._log.warning("Checkpoint %s of task %s is not used: %s", name, of.task_id, reason)
            elif "loaded" in report:
                transfer.loaded = report["loaded"]

        reason = "no checkpoint fits"
        try:
            shutil.rmtree(directory, ignore_errors=True)  # left by a killed process
            directory.mkdir(parents=True)
            self._run(transfer, self._load_job(of, directory), note)
            if not seen:
                reason = "there is no checkpoint"
        except (TransferFailedError, OSError, RetriableError, BrokerError, StreamsError) as error:
            reason = str(error)
        if transfer.loaded is None:
            shutil.rmtree(directory, ignore_errors=True)
        if transfer.loaded is None and not transfer.cancelled:
            self._log.info("Restoring task %s from its changelog: %s", of.task_id, reason)

    def _load_job(self, of: Restorable, directory: Path) -> LoadJob:
        return {
            "kind": "load",
            "uri": self.settings.uri,
            "application_id": self.settings.application_id,
            "task": str(of.task_id),
            "directory": str(directory),
            "changelogs": {name: asdict(now) for name, now in self._changelogs_now(of.stores).items()},
            "facts": facts_of_stores(self.settings.facts, of.stores),
            "tried": sorted(self._tried.get(of.task_id, ())),
            "now_ms": self._clock.wall_clock_ms(),
        }

    def _changelogs_now(self, stores: Mapping[str, TopicPartition]) -> dict[str, ChangelogNow]:
        """Ask the brokers; raises as Admin does, and StreamsError for what they do not say."""
        topics = {partition.topic for partition in stores.values()}
        ids = self._admin.topic_ids(topics, REQUEST_TIMEOUT_MS)
        firsts = results(
            self._admin.offsets(dict.fromkeys(stores.values(), EARLIEST), REQUEST_TIMEOUT_MS), REQUEST_TIMEOUT_MS
        )
        ends = results(
            self._admin.offsets(
                dict.fromkeys(stores.values(), LATEST), REQUEST_TIMEOUT_MS, self.settings.committed_only
            ),
            REQUEST_TIMEOUT_MS,
        )
        keys = ("cleanup.policy", "delete.retention.ms")
        configs = self._admin.topic_config(topics, keys, REQUEST_TIMEOUT_MS)
        found = {}
        for name, partition in stores.items():
            config = configs.get(partition.topic)
            if partition.topic not in ids:
                raise StreamsError(f"the brokers report no topic id of {partition.topic}")
            if config is None or isinstance(config, BrokerError):
                raise StreamsError(f"the settings of {partition.topic} cannot be read: {config}")
            compacted = "compact" in config["cleanup.policy"].value
            found[name] = ChangelogNow(
                partition.topic,
                ids[partition.topic].hex(),
                partition.partition,
                firsts[partition],
                ends[partition],
                int(config["delete.retention.ms"].value) if compacted else None,
            )
        return found

    def status(self, task_id: TaskId) -> CheckpointStatus | None:
        """Return the status of a task's checkpoints, None if none is taken or loaded here."""
        figures, load = self.figures.get(task_id), self._loads.get(task_id)
        if figures is None and load is None:
            return None
        figures = figures or CheckpointFigures(0)
        return CheckpointStatus(
            (self._clock.monotonic_ms() - figures.last_ms) / 1000 if task_id in self._next_ms else None,
            figures.uploads,
            figures.total_bytes,
            figures.upload_ms / 1000,
            figures.failures,
            None if load is None else load.arrived_bytes,
            0 if load is None else load.total_bytes,
        )

    def waits(self) -> tuple[str, ...]:
        """Return the loads in progress, as texts for the status."""
        return tuple(
            f"loading the checkpoint of task {task_id}, {of.arrived_bytes / MIB:.0f} of {of.total_bytes / MIB:.0f} MiB"
            for task_id, of in sorted(self._loads.items())
        )

    def values(self, task_id: TaskId) -> dict[str, float]:
        """Return the metrics of a task, without those of uploads if it does not run here as an active one."""
        found = self.figures.get(task_id)
        if found is None:
            return {}
        loads = {"loaded-bytes": float(found.loaded_bytes), "load-seconds": found.load_ms / 1000}
        if task_id not in self._next_ms:
            return loads
        age_ms = self._clock.monotonic_ms() - found.last_ms
        return {
            **loads,
            "age-seconds": age_ms / 1000,
            "intervals-missed": float(age_ms // self.settings.interval_ms),
            "bytes": float(found.total_bytes),
            "uploaded-bytes-total": float(found.sent_bytes),
            "upload-seconds": found.upload_ms / 1000,
            "uploads-total": float(found.uploads),
            "failed-uploads-total": float(found.failures),
        }

    # -- ends

    def stop(self, task_id: TaskId) -> None:
        """End the transfers of a task that is being closed."""
        self._next_ms.pop(task_id, None)
        for transfers in (self._loads, self._uploads):
            transfer = transfers.pop(task_id, None)
            if transfer is not None and transfer.asked is not None:
                transfer.cancel()
                if not transfer.asked.cancel():
                    transfer.asked.exception()  # waits: it uses the directory, which is about to be unlocked

    def close(self) -> None:
        """End all transfers."""
        for task_id in [*self._loads, *self._uploads]:
            self.stop(task_id)
        self._pool.shutdown()
