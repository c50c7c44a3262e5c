"""State that moves: many small stores and a large one restored, a process added, a backlog after a standstill."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from hashlib import shake_128

from benchmarks.checks import CountsCheck, LatestCheck, check_topic
from benchmarks.data import FIRST_TIMESTAMP_MS, PARTITIONS, SEED, Workload, append, recreate_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import TAIL_RECORDS, Recovered, RecoveryScenario, Restore, Run, running
from benchmarks.systems import THREADS

VALUE_BYTES = 1_000
#: Of the records; a gigabyte of values by default.
LARGE_SHARE = 1 / 6


class LargeState(RecoveryScenario):
    """One task keeps a value of a kilobyte for each key.

    It restores all of them on an empty disk, and answers records of random keys with them.
    """

    name, title, unit, more_is_better = "restore-large", f"restore one store, {VALUE_BYTES:,} bytes a row", "MB/s", True

    def run(self, run: Run, workload: Workload) -> Recovered:
        """See RecoveryScenario.run."""
        keys = int(workload.records * LARGE_SHARE)
        run.partitions, run.topology, run.store = 1, "keep_first", "first"
        run.write_changelog(((key, _value(key), FIRST_TIMESTAMP_MS) for key in map(_key, range(keys))), keys)
        recreate_topic(run.bootstrap_servers, run.input, run.partitions)
        with running(run), run.committed() as committed:
            found = self.measure(run, keys, lambda: sum(committed().values()))
        return found
