"""One memory budget for all stream threads of a host, shared among their stores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.statestore.rows.rocksdb_resources import RocksDBConfig
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.workers.metrics.host_memory import CGROUP_V1_FILE, CGROUPS, host_bytes
from penstock.workers.metrics.memory_budget import MIB, PROCESS_BYTES, stores_config

GIB = 1 << 30


def config(budget: int | None = None) -> StreamsConfig:
    return StreamsConfig({} if budget is None else {"penstock.memory.bytes": budget})


@pytest.mark.parametrize(
    "file",
    [CGROUP_V1_FILE, f"{CGROUPS}/memory.max", f"{CGROUPS}/system.slice/x.service/memory.max"],
    ids=["v1", "v2", "of a service"],
)
def test_the_limit_of_a_container_or_a_service_counts(tmp_path: Path, file: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:name=systemd:/other\n0::/system.slice/x.service\n")
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{256 * MIB}\n")
    assert host_bytes(tmp_path) == 256 * MIB
    path.write_text("max\n")
    assert host_bytes(tmp_path) == psutil.virtual_memory().total


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_shares_of_all_threads_stay_within_the_budget(threads: int) -> None:
    sizes = stores_config(config(8 * GIB), threads, host=64 * GIB)
    one = PROCESS_BYTES + sizes.block_cache_bytes + sizes.write_buffer_total_bytes + sizes.uncommitted_max_bytes
    whole = threads * one + config()["statestore.cache.max.bytes"]
    assert 6 * GIB < whole <= 8 * GIB
    assert sizes.write_buffer_bytes * 4 <= sizes.write_buffer_total_bytes


def test_without_a_budget_sizes_are_the_defaults_where_they_fit() -> None:
    assert stores_config(config(), 2, host=16 * GIB) == RocksDBConfig()
    small = stores_config(config(), 4, host=2 * GIB)
    assert small.block_cache_bytes < RocksDBConfig().block_cache_bytes
    assert 4 * (PROCESS_BYTES + small.block_cache_bytes + small.write_buffer_total_bytes) <= GIB


def test_too_small_a_budget_is_refused_if_configured_and_reported_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="too little for 4 stream threads") as raised:
        stores_config(config(300 * MIB), 4, host=16 * GIB)
    needed = int(str(raised.value).partition("so give ")[2].partition(" ")[0])
    assert stores_config(config(needed), 4, host=16 * GIB).block_cache_bytes > 0
    assert stores_config(config(), 4, host=256 * MIB).block_cache_bytes == 8 * MIB
    assert "stores get the least they can work with" in caplog.text


def test_the_stores_of_a_process_share_its_budget() -> None:
    """In a separate process, because the sizes apply to a whole process."""
    program = (
        "from penstock.statestore.rows.rocksdb_resources import RocksDBConfig, process_resources, set_process_config\n"
        "set_process_config(RocksDBConfig(block_cache_bytes=9 << 20))\n"
        "assert process_resources().config.block_cache_bytes == 9 << 20\n"
        "try:\n"
        "    set_process_config(RocksDBConfig())\n"
        "except RuntimeError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
