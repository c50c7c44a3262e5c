"""Kafka's error codes, in one table with the client's reaction to each (Kafka: Errors.java).

``ErrorCode`` is the table, ``BrokerError`` the exception for a code in a broker's response. Clients report every error
as a ``ClientError``, whose kind determines the reaction.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Kind(Enum):
    """How a client reacts to an error.

    MOVED: look up the current leader or coordinator, then retry there. AGAIN: retry at the same broker after a
    backoff. MISSING: the requested resource does not exist, or not yet. FENCED: a newer producer has replaced this one.
    EVICTED: the group continues without this member. ABORTABLE: the transaction, or the work since the last commit, has
    to be aborted and repeated. FORBIDDEN: not authenticated or not authorized. SUCCESS: no error, or the request
    had already been executed. FATAL: any other error; a retry does not help.
    """

    SUCCESS = "SUCCESS"
    MOVED = "MOVED"
    AGAIN = "AGAIN"
    MISSING = "MISSING"
    FENCED = "FENCED"
    EVICTED = "EVICTED"
    ABORTABLE = "ABORTABLE"
    FORBIDDEN = "FORBIDDEN"
    FATAL = "FATAL"


class ErrorCode(IntEnum):
    """One code. retriable: clients may resend the request (Kafka: RetriableException). kind: see Kind.

    A code that is not in the table is FATAL and named after its number: the broker may be newer than this client.
    """

    retriable: bool
    kind: Kind

    def __new__(cls, code: int, kind: Kind = Kind.FATAL, retriable: bool | None = None) -> ErrorCode:
        """Return a row; retriable defaults to True for MOVED and AGAIN."""
        row = int.__new__(cls, code)
        row._value_ = code
        row.kind = kind
        row.retriable = kind in (Kind.MOVED, Kind.AGAIN) if retriable is None else retriable
        return row

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_ = f"ERROR_{value}"
        unknown._value_ = value
        unknown.kind, unknown.retriable = Kind.FATAL, False
        return unknown

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0, Kind.SUCCESS
    OFFSET_OUT_OF_RANGE = 1, Kind.MISSING
    CORRUPT_MESSAGE = 2, Kind.AGAIN
    UNKNOWN_TOPIC_OR_PARTITION = 3, Kind.MISSING, True
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, Kind.MOVED
    NOT_LEADER_OR_FOLLOWER = 6, Kind.MOVED
    REQUEST_TIMED_OUT = 7, Kind.AGAIN
    BROKER_NOT_AVAILABLE = 8, Kind.MOVED, False
    REPLICA_NOT_AVAILABLE = 9, Kind.MOVED
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, Kind.AGAIN
    COORDINATOR_LOAD_IN_PROGRESS = 14, Kind.AGAIN
    COORDINATOR_NOT_AVAILABLE = 15, Kind.MOVED
    NOT_COORDINATOR = 16, Kind.MOVED
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, Kind.AGAIN
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, Kind.AGAIN
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22, Kind.EVICTED
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25, Kind.EVICTED
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27, Kind.AGAIN, False
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29, Kind.FORBIDDEN
    GROUP_AUTHORIZATION_FAILED = 30, Kind.FORBIDDEN
    CLUSTER_AUTHORIZATION_FAILED = 31, Kind.FORBIDDEN
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33, Kind.FORBIDDEN
    ILLEGAL_SASL_STATE = 34, Kind.FORBIDDEN
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, Kind.MOVED
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, Kind.ABORTABLE
    DUPLICATE_SEQUENCE_NUMBER = 46, Kind.SUCCESS
    INVALID_PRODUCER_EPOCH = 47, Kind.FENCED
    INVALID_TXN_STATE = 48, Kind.ABORTABLE
    INVALID_PRODUCER_ID_MAPPING = 49, Kind.FENCED
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, Kind.AGAIN
    TRANSACTION_COORDINATOR_FENCED = 52, Kind.FENCED
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, Kind.FORBIDDEN
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, Kind.MOVED
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58, Kind.FORBIDDEN
    UNKNOWN_PRODUCER_ID = 59, Kind.ABORTABLE
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, Kind.FORBIDDEN
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69, Kind.MISSING
    FETCH_SESSION_ID_NOT_FOUND = 70, Kind.AGAIN
    INVALID_FETCH_SESSION_EPOCH = 71, Kind.AGAIN
    LISTENER_NOT_FOUND = 72, Kind.MOVED
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74, Kind.MOVED
    UNKNOWN_LEADER_EPOCH = 75, Kind.MOVED
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, Kind.AGAIN
    MEMBER_ID_REQUIRED = 79, Kind.AGAIN, False
    PREFERRED_LEADER_NOT_AVAILABLE = 80, Kind.MOVED
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82, Kind.EVICTED
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, Kind.MOVED
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, Kind.AGAIN
    THROTTLING_QUOTA_EXCEEDED = 89, Kind.AGAIN
    PRODUCER_FENCED = 90, Kind.FENCED
    RESOURCE_NOT_FOUND = 91, Kind.MISSING
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, Kind.MISSING, True
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, Kind.MISSING, True
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105, Kind.MISSING
    FETCH_SESSION_TOPIC_ID_ERROR = 106, Kind.AGAIN
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110, Kind.EVICTED
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113, Kind.EVICTED
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120, Kind.ABORTABLE
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, Kind.AGAIN
    INVALID_SHARE_SESSION_EPOCH = 123, Kind.AGAIN
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129, Kind.MOVED
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133, Kind.AGAIN
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135


class ClientError(Exception):
    """An error of a request, of a record, or of the client itself. kind: how to react."""

    kind = Kind.FATAL


class RetriableError(ClientError):
    """The same request may succeed later, or at another broker."""

    kind = Kind.AGAIN


class UnreachableError(RetriableError):
    """No response: connecting failed, or the connection broke or timed out. The request may have been executed."""


class TlsError(UnreachableError):
    """The broker was reached, but one side has refused the other's TLS: a retry helps only after that is changed."""


class DeliveryTimeoutError(RetriableError):
    """A record was not acknowledged within ``delivery.timeout.ms``."""


class UnusableClientError(ClientError):
    """The client has failed permanently and must be replaced."""


#: Operations to grant to the principal if the broker's ACLs refuse a request (Kafka: "Operations and Resources").
_GRANTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "READ on the topic to read it, WRITE to write to it, DESCRIBE to look it up, CREATE (or CREATE on the cluster) "
        "to create it, DELETE to delete its records, ALTER_CONFIGS to change its settings"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "READ on the group application.id, DELETE to delete it",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "WRITE and DESCRIBE on the transactional ids that begin with application.id"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "CREATE on the cluster to create topics, IDEMPOTENT_WRITE to write to it with a broker before Kafka 2.8, "
        "DESCRIBE to describe it, ALTER to change it"
    ),
}


class BrokerError(ClientError):
    """A broker has rejected a request. code: the reason; message: the broker's message, or details for the reader.

    If the reason is a missing permission, its text also names the operation to grant to the principal.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        self.kind = self.code.kind
        self.message = message or ""
        text = f"{self.code.name}: {message}" if message else self.code.name
        if grants := _GRANTS.get(self.code):
            text = f"{text.rstrip('.')}; the principal needs {grants}"
        super().__init__(text)

    def __repr__(self) -> str:
        return f"{self} ({self.code.value})"


class RetriableBrokerError(BrokerError, RetriableError):
    """A BrokerError whose code is retriable."""


class MissingPartitionError(RetriableBrokerError):
    """The topic exists without this partition: it was recreated with fewer, or is about to get more."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        self.kind = Kind.AGAIN


class TransactionError(ClientError):
    """A transactional call has failed. cause: the underlying error.

    can_abort: True if the producer can abort the transaction and begin another; False if it must be replaced.
    """

    def __init__(self, cause: ClientError, *, can_abort: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.kind = cause.kind
        self.can_abort = can_abort


def broker_error(code: int, message: str | None = None) -> BrokerError:
    """Return the exception of an error code."""
    return (RetriableBrokerError if ErrorCode(code).retriable else BrokerError)(code, message)


def raise_for_code(code: int, message: str | None = None) -> None:
    """Raise the BrokerError of an error code (RetriableBrokerError if retriable); do nothing for 0."""
    if code:
        raise broker_error(code, message)
