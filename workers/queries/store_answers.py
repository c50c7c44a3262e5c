"""What comes back of a read of a state store: plain values, for the supervisor too, which opens no store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Row(NamedTuple):
    """One row: its place in the order of keys (bytes), its JSON object, and whose it is."""

    order: bytes
    json: bytes
    task: str = ""


class Reply(Enum):
    """What came of a read in one process."""

    OK = "ok"
    #: The topology has no such store.
    UNKNOWN_STORE = "unknown store"
    #: The key, or what is requested, does not fit the store.
    BAD_REQUEST = "bad request"
    #: The tasks that could answer are not in this process.
    ELSEWHERE = "elsewhere"
    #: A task is here, but is being restored, or a standby task is too far behind.
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class StoreRead:
    """The answer. rows: at most limit + 1 of each task. partition, topics: where the key is. lag: of a standby task.
    after: how the next page begins, None behind the last one.

    partitions: how many tasks have a part of the store, on all hosts; 0 where that was not asked for.
    restore_remaining: records; eta_seconds: None if not known.
    """

    reply: Reply
    detail: str = ""
    rows: tuple[Row, ...] = ()
    tasks: tuple[str, ...] = ()
    partition: int | None = None
    topics: tuple[str, ...] = ()
    lag: int | None = None
    partitions: int = 0
    restore_remaining: int = 0
    eta_seconds: float | None = None
    after: str | None = None
