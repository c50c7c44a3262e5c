"""A header with the time when a record was produced. Producers of clients/writing send it, readers do not see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

STAMP = "simulation"


class Stamp(SimpleNamespace):
    """When a record was produced. term: of its process in the group; served_ms: how long its process had run."""

    term: int
    served_ms: int


def stamped(headers: Any, term: int, served_ms: int) -> list[tuple[str, bytes | None]]:
    """Return a record's headers with a stamp."""
    return [*(headers or ()), (STAMP, b"%d %d" % (term, served_ms))]


def stamp_of(headers: Any) -> Stamp:
    """Return a record's stamp."""
    term, served_ms = next(value for name, value in headers if name == STAMP).split()
    return Stamp(term=int(term), served_ms=int(served_ms))


def without_stamp(headers: Any) -> list[tuple[str, bytes | None]] | None:
    """Return a record's headers without its stamp, None if there are no others."""
    return [(name, value) for name, value in headers if name != STAMP] or None
