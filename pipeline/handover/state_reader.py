"""Reads the rows of a topology's stores out of a Spark checkpoint, through Spark's state data source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from ..tasks.paged_rows import DIRECTORY, unpack_rows
from ..tasks.spark_task import OWN_STORE
from ..tasks.task_processor import STATE_VARIABLE


def read_stores(spark: SparkSession, checkpoint: str, subtopologies: Iterable[int]) -> dict[str, dict[bytes, bytes]]:
    """Return the rows of all stores by name, as they were after the last finished micro-batch of each query.

    All of them at once in the driver's memory. subtopologies: the numbers of those that have state. Rows of different
    tasks have different keys, but for windows and sessions of keys that are equal in two partitions.
    """
    stores: dict[str, dict[bytes, bytes]] = {}
    for number in subtopologies:
        for blob in blobs(spark, f"{checkpoint}/subtopology-{number}").collect():
            if blob.store != OWN_STORE and blob.number != DIRECTORY:
                stores.setdefault(blob.store, {}).update(unpack_rows(bytes(blob.data)))
    return stores


def blobs(spark: SparkSession, query_checkpoint: str) -> Any:
    """Return a frame of task, store, number and data: the state after the last finished micro-batch of a query."""
    # Reading a snapshot reports to the coordinator of state stores, which Spark makes with its manager of queries. A
    # session that has started no query has none: "Cannot find endpoint".
    _ = spark.streams
    state = spark.read.format("statestore").option("path", query_checkpoint).option("stateVarName", STATE_VARIABLE)
    return state.load().selectExpr(
        "key.task AS task",
        "user_map_key.store AS store",
        "user_map_key.number AS number",
        "user_map_value.data AS data",
    )
