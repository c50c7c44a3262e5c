"""What runs in the process of a stream thread."""

from __future__ import annotations

from penstock.workers.control import ThreadControl

from .worker_process import WorkerSpec


def run_stream_thread(spec: WorkerSpec, control: ThreadControl) -> None:
    """Build the topology and run a StreamThread until it is told to shut down."""
    from penstock.workers.reporting_listeners import ReportingRestoreListener, ReportingStandbyListener
    from penstock.workers.stream_thread import StreamThread  # Kafka clients and RocksDB: only in this process

    topology = spec.topology.load(spec.config)
    restore = ReportingRestoreListener(control) if "restore" in spec.listeners else None
    standby = ReportingStandbyListener(control) if "standby" in spec.listeners else None
    StreamThread.create(topology, spec, control, state_restore_listener=restore, standby_update_listener=standby).run()
