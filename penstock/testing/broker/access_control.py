"""Access control lists: which principals may do what to which topics, groups and transactional ids.

Kafka: StandardAuthorizer, AclEntry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from .errors import ErrorCode

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER_NAME = "kafka-cluster"
#: Matches every name of a resource, principal or host.
WILDCARD = "*"
_ALL_USERS = f"User:{WILDCARD}"


class Resource(IntEnum):
    """The protected resources (Kafka: ResourceType)."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    """How a list names resources (Kafka: PatternType). MATCH: in filters, all entries that apply to a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka: AclOperation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Kafka: AclPermissionType."""

    ANY = 1
    DENY = 2
    ALLOW = 3


REFUSALS: Mapping[Resource, ErrorCode] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: A permission for one of these implies DESCRIBE.
_IMPLYING: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    """One entry. In a filter, None and ANY match all values."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def concerns(self, resource: Resource, name: str) -> bool:
        """Return True if the entry applies to a resource."""
        if self.resource != resource:
            return False
        if self.pattern == Pattern.PREFIXED:
            return name.startswith(self.name or "")
        return self.name in (name, WILDCARD)

    def covers(self, operation: Operation) -> bool:
        """Return True if the entry applies to an operation."""
        implied = _IMPLYING.get(operation, frozenset()) if self.permission == Permission.ALLOW else frozenset()
        return self.operation in (Operation.ALL, operation) or self.operation in implied

    def fits(self, entry: Acl) -> bool:
        """Return True if this entry, as a filter, matches another one."""
        kinds = (
            (self.resource, entry.resource),
            (self.operation, entry.operation),
            (self.permission, entry.permission),
        )
        texts = ((self.principal, entry.principal), (self.host, entry.host))
        return (
            all(mine in (Resource.ANY, its) for mine, its in kinds)
            and all(mine in (None, its) for mine, its in texts)
            and self._fits_name(entry)
        )

    def _fits_name(self, entry: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, entry.pattern):
            return False
        if self.name is None or self.pattern != Pattern.MATCH:
            return self.name in (None, entry.name)
        return entry.concerns(Resource(entry.resource), self.name)


class AccessControl:
    """The entries of a cluster. config: its settings; without an authorizer every operation is allowed."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.is_on = bool(config["authorizer.class.name"])
        if self.is_on and config["authorizer.class.name"] != AUTHORIZER:
            raise ValueError(f"the only authorizer here is {AUTHORIZER}")
        self._open = config["allow.everyone.if.no.acl.found"] == "true"
        self._super_users = frozenset(name.strip() for name in config["super.users"].split(";"))
        self.entries: dict[Acl, None] = {}

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Return True if a principal may do something to a resource; a prohibition overrides all permissions."""
        if not self.is_on or principal in self._super_users:
            return True
        about = [entry for entry in self.entries if entry.concerns(resource, name)]
        if not about:
            return self._open
        mine = [
            entry
            for entry in about
            if entry.principal in (principal, _ALL_USERS) and entry.host in (host, WILDCARD) and entry.covers(operation)
        ]
        return bool(mine) and all(entry.permission == Permission.ALLOW for entry in mine)

    def matching(self, wanted: Acl) -> list[Acl]:
        """Return the entries that match a filter."""
        return [entry for entry in self.entries if wanted.fits(entry)]

    def delete(self, entries: Iterable[Acl]) -> None:
        """Delete entries."""
        for entry in entries:
            self.entries.pop(entry, None)
