"""Runs operators and stores without the compiled kernel."""

from __future__ import annotations

import pytest

from penstock.statestore.cache import thread_cache
from penstock.statestore.rows import rocksdb_store
from penstock.statestore.stores import values
from penstock.topology.operators import foreign_key_serdes, processor_operator
from penstock.topology.run import fusion


def leave_out_kernel(patch: pytest.MonkeyPatch) -> None:
    """Make objects that are created from now on use the Python code that the kernel must be equivalent to."""
    patch.setattr(thread_cache, "kernel_cells", None)
    patch.setattr(rocksdb_store, "kernel_rows", None)
    patch.setattr(values, "kernel_sinks", None)
    patch.setattr(fusion, "kernel_messages", None)
    patch.setattr(processor_operator, "kernel_processors", None)
    patch.setattr(foreign_key_serdes, "kernel_codecs", None)
