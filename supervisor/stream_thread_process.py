"""What runs in the process of a stream thread."""

from __future__ import annotations

from penstock.workers.control import ThreadControl

from .worker_process import WorkerSpec


def run_stream_thread(spec: WorkerSpec, control: ThreadControl) -> None:
    """Build the topology and run a StreamThread until it is told to shut down."""
    from penstock.workers.stream_thread import StreamThread  # Kafka clients and RocksDB: only in this process

    topology = spec.topology.load(spec.config)
    StreamThread.create(topology, spec, control).run()
