"""Spark's settings for the queries of a topology; docs/spark.md lists them, with those that differ for each query."""

from __future__ import annotations

from pyspark.sql import SparkSession

_STREAMING = "spark.sql.streaming"
#: transformWithState needs it.
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: With the changelog a micro-batch writes its changes to the checkpoint, and RocksDB's tables only from time to time:
#: half the bytes, if rows have a kilobyte.
_DEFAULTS = {
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STREAMING}.metricsEnabled": "true",
}


def set_for_queries(spark: SparkSession) -> None:
    """Let a session keep state in RocksDB and report metrics. What the user has set stays, but for the provider."""
    spark.conf.set(f"{_STREAMING}.stateStore.providerClass", _PROVIDER)
    for key, value in _DEFAULTS.items():
        if spark.conf.get(key, None) is None:
            spark.conf.set(key, value)
