"""What a Python process of Spark needs around each function that it calls: its garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.workers.thread.garbage_collection import few_collections

from .record_batches import MapInArrow

_modules_when_frozen = 0


@contextmanager
def in_python_worker() -> Iterator[None]:
    """Run the function of a task of Spark in a process that Spark uses again for other tasks.

    PySpark makes a full collection after each task. With what Penstock and PySpark import that takes 0.1 s, two thirds
    of the CPU time of a small micro-batch. So it has to skip these objects. They are frozen again only after further
    imports, because the garbage of a task is frozen, too.
    """
    global _modules_when_frozen
    with few_collections():
        yield
    if len(sys.modules) != _modules_when_frozen:
        gc.collect()
        gc.freeze()
        _modules_when_frozen = len(sys.modules)


def worker_function(run: MapInArrow) -> MapInArrow:
    """Return a function for mapInArrow that runs ``run`` inside of in_python_worker()."""

    def wrapped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_python_worker():
            yield from run(batches)

    return wrapped
