"""Drivers that start with one checkpoint at the same moment, and one that is gone, with Spark's own file writer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.checkpoint.checkpoint import IDENTITY_FILE, CheckpointError
from penstock.pipeline.checkpoint.checkpoint_lease import LEASE_FILE, CheckpointLease
from penstock.pipeline.checkpoint.hadoop_files import HadoopFiles
from penstock.topology.errors import LockError, StreamsError
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.slow
DRIVERS = 3


class Meeting(HadoopFiles):
    """Lets the first read of each driver return once all have read: none sees another's lease."""

    def __init__(self, spark: Any, all_have_read: threading.Barrier) -> None:
        super().__init__(spark)
        self._all_have_read = all_have_read
        self._has_met = False

    def read(self, path: str) -> bytes | None:
        found = super().read(path)
        if not self._has_met:
            self._has_met = True
            self._all_have_read.wait()
        return found


def loss(lease: CheckpointLease) -> StreamsError | None:
    try:
        lease.check()
    except StreamsError as error:
        return error
    return None


def has_lost(lease: CheckpointLease) -> bool:
    found = loss(lease)
    return isinstance(found, LockError) and "was taken over by another driver" in str(found)


def test_only_one_of_several_concurrent_drivers_keeps_the_lease(spark: Any, tmp_path: Path) -> None:
    barrier = threading.Barrier(DRIVERS, timeout=PATIENCE_SECONDS)
    leases = [CheckpointLease(Meeting(spark, barrier), str(tmp_path)) for _ in range(DRIVERS)]
    try:
        with ThreadPoolExecutor(DRIVERS) as drivers:
            list(drivers.map(lambda number: leases[number].acquire(f"driver-{number}"), range(DRIVERS)))
        eventually(lambda: sum(map(has_lost, leases)) == DRIVERS - 1, "one has the lease")
        for lease in filter(has_lost, leases):
            lease.release()
        assert (tmp_path / LEASE_FILE).exists(), "a driver without the lease does not delete it"
    finally:
        for lease in leases:
            lease.release()
    assert not (tmp_path / LEASE_FILE).exists()


def test_a_checkpoint_that_is_gone_is_not_taken_over(spark: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / IDENTITY_FILE).write_text("{}")
    lease = CheckpointLease(HadoopFiles(spark), str(checkpoint))
    lease.acquire("driver")
    try:
        checkpoint.rename(tmp_path / "elsewhere")
        eventually(lambda: loss(lease) is not None, "it has seen that")
        assert isinstance(loss(lease), CheckpointError)
        assert f"The checkpoint {checkpoint} is gone" in str(loss(lease))
    finally:
        lease.release()


def test_another_driver_that_has_ended_has_taken_the_lease(spark: Any, tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).write_text("{}")
    lease = CheckpointLease(HadoopFiles(spark), str(tmp_path))
    lease.acquire("driver")
    try:
        (tmp_path / LEASE_FILE).unlink()
        eventually(lambda: has_lost(lease), "it has seen that")
    finally:
        lease.release()
