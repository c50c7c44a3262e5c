"""The answers of interactive queries v2 (KIP-796; Kafka Streams: QueryResult, StateQueryResult, FailureReason)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Self, cast

from ..errors import StreamsError
from ..type_variables import R
from .position import Position, merged


class FailureReason(Enum):
    """Why the rows of a partition do not answer a query."""

    #: The store cannot answer a query of this type.
    UNKNOWN_QUERY_TYPE = "unknown query type"
    #: The query needs a running active task, and this one is a standby task or is being restored.
    NOT_ACTIVE = "not active"
    #: The rows have not reached the requested position, or a standby task does not know its position.
    NOT_UP_TO_BOUND = "not up to bound"
    #: The partition is not on this host now.
    NOT_PRESENT = "not present"
    #: The store has no such partition.
    DOES_NOT_EXIST = "does not exist"
    #: Reading the store failed.
    STORE_EXCEPTION = "store exception"


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[R]):
    """The answer of one partition: a result, or a failure.

    position: of the rows in the input; None if the task does not know. execution_info: which task has answered, and in
    which time, if the request enables it.
    """

    value: R | None = None
    failure_reason: FailureReason | None = None
    failure_message: str = ""
    position: Position | None = None
    execution_info: tuple[str, ...] = ()

    @classmethod
    def for_result(cls, value: R) -> Self:
        """Return a success."""
        return cls(value)

    @classmethod
    def for_failure(cls, reason: FailureReason, message: str) -> Self:
        """Return a failure."""
        return cls(None, reason, message)

    @classmethod
    def for_unknown_query_type(cls, query: object, store: str) -> Self:
        """Return the failure of a store that cannot answer a query of this type."""
        return cls.for_failure(FailureReason.UNKNOWN_QUERY_TYPE, f"{store} cannot answer a {type(query).__name__}")

    @property
    def is_success(self) -> bool:
        """Whether it has a result."""
        return self.failure_reason is None

    @property
    def is_failure(self) -> bool:
        """Whether it has a reason for a failure."""
        return self.failure_reason is not None

    @property
    def result(self) -> R:
        """The result; raises StreamsError for a failure."""
        if self.failure_reason is not None:
            raise StreamsError(f"The query has no result: {self.failure_reason.name}: {self.failure_message}")
        return cast("R", self.value)


@dataclass(frozen=True, slots=True)
class StateQueryResult(Generic[R]):
    """The answers to a StateQueryRequest, by partition; a global store has one answer, and no partitions."""

    partition_results: Mapping[int, QueryResult[R]] = field(default_factory=dict)
    global_result: QueryResult[R] | None = None

    @property
    def only_partition_result(self) -> QueryResult[R] | None:
        """The one answer that is a failure or has a result that is not None; None if there is none.

        Raises StreamsError if several partitions have one. For queries of one key.
        """
        found = [one for one in self.partition_results.values() if one.is_failure or one.value is not None]
        if len(found) > 1:
            raise StreamsError(f"{len(found)} partitions have a result or a failure: {self.partition_results}")
        return found[0] if found else None

    @property
    def position(self) -> Position | None:
        """The positions of all successful answers as one; None if one of them is not known."""
        if self.global_result is not None:
            return self.global_result.position
        return merged(one.position for one in self.partition_results.values() if one.is_success)
