"""Small files wherever Spark keeps a checkpoint, through Hadoop's file systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from .checkpoint import CheckpointError


class HadoopFiles:
    """Small files wherever Spark keeps a checkpoint: on a disk, HDFS, S3 … Raises CheckpointError, with Java's reason.

    spark: whose file systems and settings are used.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None if there is none."""
        with self._at(path) as (system, hadoop):
            if not system.exists(hadoop):
                return None
            stream = system.open(hadoop)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, none if it does not exist."""
        with self._at(path) as (system, hadoop):
            if not system.exists(hadoop):
                return []
            return [status.getPath().getName() for status in system.listStatus(hadoop)]

    def is_file(self, path: str) -> bool:
        """Return True if there is a file, not a folder."""
        with self._at(path) as (system, hadoop):
            return bool(system.exists(hadoop) and system.getFileStatus(hadoop).isFile())

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents; no effect if it does not exist."""
        with self._at(path) as (system, hadoop):
            system.delete(hadoop, True)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file as a whole or not at all, replacing an existing one."""
        fresh = f"{path}.new"
        self.write(fresh, data)
        fs = self._jvm.org.apache.hadoop.fs
        with self._at(path) as (_, hadoop):
            context = fs.FileContext.getFileContext(hadoop.toUri(), self._conf)
            options = self._gateway.new_array(getattr(fs, "Options$Rename"), 1)
            options[0] = getattr(fs, "Options$Rename").OVERWRITE
            context.rename(fs.Path(fresh), hadoop, options)

    def write(self, path: str, data: bytes) -> None:
        """Write a file, and create its folders; overwrites an existing one."""
        with self._at(path) as (system, hadoop):
            stream = system.create(hadoop, True)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[Any, Any]]:
        try:
            hadoop = self._jvm.org.apache.hadoop.fs.Path(path)
            yield hadoop.getFileSystem(self._conf), hadoop
        except Py4JJavaError as error:
            java = str(error.java_exception).splitlines()[0]
            raise CheckpointError(f"The checkpoint cannot be read or written at {path}: {java}") from error
