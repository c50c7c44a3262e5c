"""A request in the broker, and its result: a response now, or later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.clients.protocol.schema import SchemaApi

from .access_control import REFUSALS, Operation, Resource
from .errors import ApiError

if TYPE_CHECKING:
    from .cluster import Cluster, Connection
    from .topics import Topic

#: The fields of a response by name.
Response: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Waiting:
    """A response that is not ready yet. ready: returns it once it is; late: returns it after until_ms."""

    ready: Callable[[], Response | None]
    until_ms: float = math.inf
    late: Callable[[], Response] = dict


@dataclass(frozen=True)
class Call:
    """One request. body: its fields; fields that its version lacks have their defaults."""

    cluster: Cluster
    connection: Connection
    version: int
    body: SimpleNamespace
    client_id: str

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Return True if the client may do something to a resource."""
        return self.cluster.access.allows(
            f"User:{self.user}", self.connection.peer.lstrip("/"), operation, resource, name
        )

    def check(self, operation: Operation, resource: Resource, name: str, message: str | None = None) -> None:
        """Raise ApiError unless the client may do something to a resource. message: for the response."""
        if not self.may(operation, resource, name):
            raise ApiError(REFUSALS[resource], message)

    @property
    def user(self) -> str:
        """The name of the authenticated user."""
        return self.connection.principal or "ANONYMOUS"

    def throttle(self, key: str, size: int) -> int:
        """Count bytes of the client, and return its throttle time in ms."""
        cluster = self.cluster
        wait_ms = cluster.quotas.wait_ms(key, self.user, self.client_id, size, cluster.now_ms)
        if wait_ms:
            self.connection.muted_until = cluster.now_ms + wait_ms
        return wait_ms

    def topic(self, name: str, operation: Operation) -> Topic:
        """Return a topic on which the client may perform this operation; raises ApiError."""
        self.check(operation, Resource.TOPIC, name)
        return self.cluster.topic(name)

    def topic_by_id(self, id_: bytes, operation: Operation) -> Topic:
        """Return a topic on which the client may perform this operation; raises ApiError."""
        topic = self.cluster.topic_by_id(id_)
        self.check(operation, Resource.TOPIC, topic.name)
        return topic


@dataclass(frozen=True)
class Served:
    """An API of the broker. lowest: the lowest supported version, which may be older than that of Penstock's clients.

    answer: returns the response, a Waiting, or None for a request without a response. before_login: whether it is
    allowed on a connection that still has to authenticate.
    """

    api: SchemaApi
    answer: Callable[[Call], Response | Waiting | None]
    lowest: int
    before_login: bool = False
