"""Runs operators and stores without the compiled kernel."""

from __future__ import annotations

import pytest

from penstock.statestore.cache import thread_cache
from penstock.statestore.rows import rocksdb_store
from penstock.topology.operators import foreign_key_serdes
from penstock.topology.run import fusion


def leave_out_kernel(patch: pytest.MonkeyPatch) -> None:
    """Make objects that are created from now on use the Python code that the kernel must be equivalent to."""
    for user in (thread_cache, rocksdb_store, fusion, foreign_key_serdes):
        patch.setattr(user, "compiled", None)
