"""The compiled kernel: the work per record, in C. Optional; docs/kernel.md says when it is used.

codecs: serializers that check what they write. avro: Avro records as dicts, and back. cells: cells of record caches.
rows: rows of stores between two commits. messages: iteration over a batch. processors: the records of user-written
processors. record_batches: responses to Fetch requests. sinks: from objects to a producer's records.
record_accumulator: batches for Produce requests. buffers: memory that is reused for the next record.

All modules are None unless all are built, and with ``PENSTOCK_KERNEL=off``. Only speed depends on them: their users
have the same code in Python, or use librdkafka instead.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

if __name__ != "penstock.kernel":
    raise ImportError("import penstock.kernel, not kernel: run `pip install -e .` first")

#: ``off``: do not use the compiled code.
VARIABLE = "PENSTOCK_KERNEL"
MODULES = (
    "codecs",
    "avro",
    "buffers",
    "cells",
    "rows",
    "messages",
    "processors",
    "record_batches",
    "sinks",
    "record_accumulator",
)


def __getattr__(name: str) -> Any:
    """Import a module on first access."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if os.environ.get(VARIABLE) == "off" or not _is_built():
        return None
    return importlib.import_module(f"{__name__}.{name}")


@cache
def _is_built() -> bool:
    return all(find_spec(f"{__name__}.{name}") is not None for name in MODULES)
