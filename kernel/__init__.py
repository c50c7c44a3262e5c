"""The compiled kernel: what is done for each record, in C. Optional; docs/kernel.md says when it is there.

codecs: serializers that look at what they write. cells: of record caches. rows: of stores, between two commits.
messages: a loop's way through a batch. record_batches: what brokers answer to Fetch requests. sinks: from objects to a
producer's records. record_accumulator: batches for Produce requests. buffers: memory that is kept for the next record.
Each is None where it is not built, or with ``PENSTOCK_KERNEL=off``. Nothing depends on them but speed: what they do
stands in Python too, where they are used, or in librdkafka.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

if __name__ != "penstock.kernel":
    raise ImportError("import penstock.kernel, not kernel: run `pip install -e .` first")

#: ``off``: do without the compiled code.
VARIABLE = "PENSTOCK_KERNEL"
MODULES = ("codecs", "buffers", "cells", "rows", "messages", "record_batches", "sinks", "record_accumulator")


def __getattr__(name: str) -> Any:
    """Return a module when it is first asked for."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if os.environ.get(VARIABLE) == "off":
        return None
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:  # not built here
        return None
