"""What a query of a state store sees (KIP-892)."""

from __future__ import annotations

from enum import Enum


class IsolationLevel(Enum):
    """What a query sees: all processed records, or the rows of the last commit (KIP-892).

    The values are those of the key ``default.interactive.query.isolation.level``.
    """

    #: All processed records, those in the record cache included. They may be processed again after a failure.
    READ_UNCOMMITTED = "read_uncommitted"
    #: The rows of the last commit, and nothing that was processed since.
    READ_COMMITTED = "read_committed"


#: The key of the default for queries that name none.
DEFAULT_ISOLATION = "default.interactive.query.isolation.level"
