"""Runs one of the benchmark's topologies in Penstock until SIGTERM: module and function, file with the properties."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from typing_extensions import override

from penstock import KafkaStreams, StandbyUpdateListener, StateRestoreListener, TaskId, TopicPartition


class RestoreLines(StateRestoreListener):
    """Prints when restores begin and end, for benchmarks/recovery.py."""

    @override
    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        print("RESTORE start", time.time_ns() // 1_000_000, flush=True)

    @override
    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        print("RESTORE end", time.time_ns() // 1_000_000, flush=True)


class StandbyLines(StandbyUpdateListener):
    """Prints the progress of standby tasks."""

    @override
    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        print("STANDBY", partition.partition, batch_end_offset, flush=True)


def main(topology: str, properties: Path) -> int:
    """Run a topology, ``module:function``; returns the exit code."""
    lines = properties.read_text("utf-8").splitlines()
    config = dict(line.split("=", 1) for line in lines if line)
    with KafkaStreams(topology, config) as streams:
        streams.set_global_state_restore_listener(RestoreLines())
        streams.set_standby_update_listener(StandbyLines())
        return streams.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
