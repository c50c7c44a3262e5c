"""The main function of a stream thread's process."""

from __future__ import annotations

from penstock.topology.shadowing import NamingShadows
from penstock.workers.control.messages import ThreadControl

from ..logs.worker_logging import adopt_libraries
from ..source.topology_gate import admit
from .worker_process import WorkerSpec


def run_stream_thread(spec: WorkerSpec, control: ThreadControl) -> None:
    """Build the topology and run a StreamThread until a shutdown request."""
    with NamingShadows():  # Kafka clients and RocksDB: only in this process
        from penstock.statestore.rows.rocksdb_resources import set_process_config
        from penstock.workers.metrics.host_memory import host_bytes
        from penstock.workers.metrics.memory_budget import stores_config
        from penstock.workers.restore.reporting_listeners import ReportingRestoreListener, ReportingUpdateListener
        from penstock.workers.thread.stream_thread import StreamThread

    topology = spec.topology.load(spec.config, adopt_libraries)
    adopt_libraries()  # the function that builds it may have configured them
    admit(topology, spec.config)
    set_process_config(stores_config(spec.config, spec.num_threads, host_bytes()))
    restore = ReportingRestoreListener(control) if "restore" in spec.listeners else None
    standby = ReportingUpdateListener(control) if "standby" in spec.listeners else None
    StreamThread.create(topology, spec, control, state_restore_listener=restore, standby_update_listener=standby).run()


def prepare_stream_thread(spec: WorkerSpec) -> None:
    """Import the dependencies of run_stream_thread, including the user's module, without calling anything yet."""
    with NamingShadows():
        from penstock.workers.metrics import memory_budget  # noqa: F401  as above
        from penstock.workers.restore import reporting_listeners  # noqa: F401
        from penstock.workers.thread import stream_thread  # noqa: F401

    spec.topology.prepare()
    adopt_libraries()
