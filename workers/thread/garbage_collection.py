"""Python's cyclic garbage collector, tuned for a loop that makes and drops many objects and keeps even more.

Messages are tracked by the collector, so with Python's defaults a batch of 5,000 starts several collections of the
youngest generation, although reference counting frees all of them; and each full collection walks the record caches,
whose hundreds of thousands of entries are no garbage. Measured with a cached count of 1 M records, 100,000 keys, on a
busy machine: 12.4 us of CPU for a record with Python's defaults, 6.6 with these settings (at 100,000), 5.8 without a
collector.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Net new tracked objects between two collections of the youngest generation. What survives is walked once in each
#: generation, so fewer collections walk less. Cycles that a user's function leaves wait until then: some 50 MB at most.
YOUNG_THRESHOLD = 300_000
#: Young collections to one of the middle generation, middle ones to a full one. Penstock's own cycles (tracebacks,
#: closures of closed tasks) are few, so they may wait.
MIDDLE_THRESHOLD = 50
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
