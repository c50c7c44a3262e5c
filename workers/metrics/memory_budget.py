"""The memory of the state stores of one stream thread's process: its share of the host's budget."""

from __future__ import annotations

import logging

from penstock.statestore.rows.rocksdb_resources import RocksDBConfig
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

from .host_memory import budget_bytes

log = logging.getLogger(__name__)

MIB = 1 << 20
#: Memory of a process without any state: interpreter, modules, Kafka clients with full queues. In bytes.
PROCESS_BYTES = 160 * MIB
#: With less memory stores still work, but read every block from disk. In bytes.
STORES_BYTES_MIN = 16 * MIB


def stores_config(config: StreamsConfig, num_threads: int, host: int) -> RocksDBConfig:
    """Return the configuration shared by the RocksDBs of one of num_threads processes. host: the host's memory, in
    bytes.

    With ``penstock.memory.bytes`` the whole share is distributed: half to the block cache, a quarter to the memtables,
    an eighth to the most recently committed rows; at an eighth, a store with uncommitted updates requests a commit.
    Without it, RocksDBConfig's sizes apply, limited to half of the host's memory. Raises ConfigError if the configured
    budget is too small.
    """
    given: int | None = config["penstock.memory.bytes"]
    threads = max(num_threads, 1)
    budget = budget_bytes(config, host)
    left = (budget - config["statestore.cache.max.bytes"]) // threads - PROCESS_BYTES
    if left < STORES_BYTES_MIN:
        needed = threads * (PROCESS_BYTES + STORES_BYTES_MIN) + config["statestore.cache.max.bytes"]
        if given is not None:
            raise ConfigError(
                f"penstock.memory.bytes={given} is too little for {threads} stream threads: each takes "
                f"{PROCESS_BYTES // MIB} MiB before its first store, so give {needed} at least, or fewer threads."
            )
        log.warning(
            "%d stream threads want %d MiB, half of the memory here is %d MiB: stores get the least they can work with",
            threads,
            needed // MIB,
            budget // MIB,
        )
        left = STORES_BYTES_MIN
    memtable = min(RocksDBConfig().write_buffer_bytes, left // 16)
    sized = RocksDBConfig(left // 2, left // 4, memtable, left // 8, left // 8)
    return sized if given is not None else _at_most(sized, RocksDBConfig())


def _at_most(one: RocksDBConfig, other: RocksDBConfig) -> RocksDBConfig:
    return RocksDBConfig(
        min(one.block_cache_bytes, other.block_cache_bytes),
        min(one.write_buffer_total_bytes, other.write_buffer_total_bytes),
        min(one.write_buffer_bytes, other.write_buffer_bytes),
        min(one.uncommitted_max_bytes, other.uncommitted_max_bytes),
        min(one.recent_bytes, other.recent_bytes),
    )
