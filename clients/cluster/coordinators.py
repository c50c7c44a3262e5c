"""Questions to coordinators: of a group, or of a transactional id."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, Protocol

from ..protocol.schema import Request


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates, by Kafka's key types."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators(Protocol):
    """What a transaction asks of the cluster."""

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Request, on_done: Callable[[], None]
    ) -> Future[Any]:
        """Ask the coordinator of a key; on_done is called when the future is done, on another thread.

        The future has the answer, whose error codes are the caller's; a BrokerError for what asking again does not
        change; or a RetriableError. Which broker coordinates is looked up again after an answer that says that it is
        another.
        """
