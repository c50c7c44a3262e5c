"""Leaves out the compiled kernel where operators and stores use it."""

from __future__ import annotations

import pytest

from penstock.statestore.cache import thread_cache
from penstock.statestore.rows import rocksdb_store
from penstock.topology.operators import foreign_key_serdes
from penstock.topology.run import fusion


def leave_out_kernel(patch: pytest.MonkeyPatch) -> None:
    """Have what is made from now on do in Python what the kernel does: what it is held to."""
    for user in (thread_cache, rocksdb_store, fusion, foreign_key_serdes):
        patch.setattr(user, "compiled", None)
