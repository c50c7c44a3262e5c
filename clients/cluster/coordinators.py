"""Requests to the coordinator of a group or a transactional id."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, Protocol

from ..protocol.schema import Request


class CoordinatorKind(IntEnum):
    """The kind of a coordinator, with Kafka's key types as values."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators(Protocol):
    """The cluster as a transaction uses it."""

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Request, on_done: Callable[[], None]
    ) -> Future[Any]:
        """Send a request to the coordinator of a key; on_done is called on another thread when the future is done.

        The future returns the response, whose error codes the caller handles, or raises a BrokerError that a retry does
        not change, or a RetriableError. After a response that says the coordinator has moved, the next request looks
        it up again.
        """
