"""The memory that all RocksDB stores of a process share, and the options of their databases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    Options,
    WriteBufferManager,
)

#: Room for the offsets of several thousand commits; when it is full, both column families are flushed.
OFFSETS_WRITE_BUFFER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class RocksDBConfig:
    """The memory shared by the stores of one process. Sizes in bytes.

    Kafka Streams gives each store a 50 MB block cache and three 16 MB write buffers; a process with many tasks then
    needs gigabytes. Here all stores of a process share one cache and one budget for memtables.
    """

    block_cache_bytes: int = 128 << 20
    write_buffer_total_bytes: int = 128 << 20
    write_buffer_bytes: int = 16 << 20  # one memtable: Kafka Streams' size
    #: KIP-892: a store with more uncommitted bytes requests a commit.
    uncommitted_max_bytes: int = 64 << 20
    #: Committed rows kept as Python objects for reads, of all stores.
    recent_bytes: int = 64 << 20


class RocksDBResources:
    """The block cache and memtable budget shared by the RocksDB instances of one process."""

    def __init__(self, config: RocksDBConfig) -> None:
        self.config = config
        self._cache = Cache(config.block_cache_bytes)
        self._write_buffers = WriteBufferManager(config.write_buffer_total_bytes, False)
        self.open_stores = 0
        #: Bytes of committed rows that all stores keep in memory.
        self.recent_bytes = 0

    def recent_room(self, kept: int) -> int:
        """Return how many bytes of committed rows a store may keep in memory. kept: the bytes that it keeps now.

        Each store has an equal share, plus the unused shares of the others.
        """
        total = self.config.recent_bytes
        return max(total // max(1, self.open_stores), total - self.recent_bytes + kept)

    def options(self) -> Options:
        """Return the options of one database, as in Kafka Streams (universal compaction, 4 KB blocks, bloom filter)."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(4096)
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # Universal compaction makes one large file. Its filter as one block (12 MB for ten million keys) does not fit
        # into a shard of the cache and would be read again for each get: a millisecond.
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_metadata_block_size(4096)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_atomic_flush(True)
        options.set_block_based_table_factory(table)
        options.set_compaction_style(DBCompactionStyle.universal())
        options.set_write_buffer_size(self.config.write_buffer_bytes)
        options.set_max_write_buffer_number(3)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options

    def rows_options(self) -> Options:
        """Return the options of the column family with the rows."""
        options = self.options()
        options.set_memtable_prefix_bloom_ratio(0.02)  # a new key's get costs 0.2 us instead of 3
        options.set_memtable_whole_key_filtering(True)
        return options

    def offsets_options(self) -> Options:
        """Return the options of the column family with the offset: small, because each store has one."""
        options = self.options()
        options.set_write_buffer_size(OFFSETS_WRITE_BUFFER_BYTES)
        return options


_process_config = RocksDBConfig()


def set_process_config(config: RocksDBConfig) -> None:
    """Set the memory that all stores of this process share; raises RuntimeError if one was opened before."""
    global _process_config  # per process, like the resources
    if process_resources.cache_info().currsize:
        raise RuntimeError("stores were opened before their share of the memory was known")
    _process_config = config


@cache
def process_resources() -> RocksDBResources:
    """Return the resources that all stores of this process share by default."""
    return RocksDBResources(_process_config)
