"""Python's cyclic garbage collector, tuned for a loop that makes and drops many objects and keeps even more.

Messages are tracked by the collector, so with Python's defaults a batch of 10,000 starts more than ten collections of
the youngest generation, although reference counting frees all of them; and each full collection walks the record
caches, whose hundreds of thousands of entries are no garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Net new tracked objects between two collections of the youngest generation: several batches of messages.
YOUNG_THRESHOLD = 100_000
#: Young collections to one of the middle generation, middle ones to a full one. Real cycles (tracebacks, closures of
#: closed tasks) are few, so they may wait.
MIDDLE_THRESHOLD = 20
FULL_THRESHOLD = 50


@contextmanager
def tuned_garbage_collection() -> Iterator[None]:
    """Collect rarely, and never walk what exists already: modules, the topology, the clients."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, FULL_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
