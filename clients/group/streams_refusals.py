"""The coordinator's errors for heartbeats (KIP-1071), with advice for the reader."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.topology.errors import StreamsError

from ..errors import BrokerError, ErrorCode
from .group_protocol import evicts
from .membership import FencedInstanceIdError
from .requests import GroupMemberConfig

#: How long a static member retries to take over its group.instance.id from the previous holder, in ms. It releases the
#: id on the holder's behalf; at the latest the id is free when the holder's session times out, after up to 60 s by the
#: broker's default (group.streams.max.session.timeout.ms).
_INSTANCE_RELEASE_PATIENCE_MS = 90_000
#: How long an unknown error is considered transient, in ms. Kafka 4.4 returns one instead of "missing source topics" if
#: the member has an application.server, and brokers learn of a new topic with a delay.
_UNKNOWN_ERROR_PATIENCE_MS = 5_000


def ends_membership(refusal: BrokerError, joining: bool) -> bool:
    """Return True if the membership has ended but the member can rejoin. joining: it was its first heartbeat."""
    if refusal.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return not joining  # the group was deleted
    return evicts(refusal)


def patience_ms(refusal: BrokerError) -> int:
    """Return how long to retry, in ms."""
    if refusal.code is ErrorCode.UNRELEASED_INSTANCE_ID:
        return _INSTANCE_RELEASE_PATIENCE_MS
    return _UNKNOWN_ERROR_PATIENCE_MS if refusal.code is ErrorCode.UNKNOWN_SERVER_ERROR else 0


_UNSUPPORTED = (
    "group.protocol=streams needs brokers of Kafka 4.2 or later, with the feature streams.version at 1 or higher "
    "(kafka-features.sh upgrade --feature streams.version=1) and with streams among "
    "group.coordinator.rebalance.protocols. Or set group.protocol=classic."
)
_OTHER_TOPOLOGY = (
    "The members of a streams group must all run the topology with which the group was created. Return to it, choose "
    "another application.id, or stop all members and delete the group with its committed offsets "
    "(kafka-streams-groups.sh --delete)."
)

#: Advice for the reader.
_ADVICE: Mapping[ErrorCode, str] = {
    ErrorCode.UNSUPPORTED_VERSION: _UNSUPPORTED,
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "A group of another protocol has members under this application.id. Stop them all, or choose another "
        "application.id; a classic group without members becomes a streams group by itself."
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "The broker's group.streams.max.size is reached: run fewer threads or raise it."
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "These are DESCRIBE on the source topics, and CREATE on the internal topics or on the cluster, because the "
        "broker creates them on its behalf."
    ),
    ErrorCode.UNKNOWN_SERVER_ERROR: "Check that all source topics exist. If they do, see the coordinator's log.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check sasl.mechanism, sasl.username and sasl.password.",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "Is this a broker of a later version? If not, this is an error in Penstock.",
}


def refuses_topology(refusal: BrokerError) -> bool:
    """Return True if the group runs another topology."""
    if refusal.code is ErrorCode.INVALID_REQUEST:
        return "opology" in refusal.message  # Kafka 4.4: "Topology updates are not supported yet."
    return refusal.code in (ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, ErrorCode.STREAMS_TOPOLOGY_FENCED)


def refusal_error(config: GroupMemberConfig, refusal: BrokerError) -> StreamsError:
    """Return the error that ends the membership."""
    group, instance = config.group_id, config.instance_id
    translated: StreamsError
    if refusal.code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
        translated = FencedInstanceIdError(
            f"Another process is a member of group {group} with group.instance.id={instance} ({refusal}). "
            f"{config.fenced_advice}"
        )
    else:
        translated = StreamsError(
            f"Membership in group {group} failed: {str(refusal).rstrip('.')}. {_advice(refusal)}".strip()
        )
    translated.__cause__ = refusal
    return translated


def _advice(refusal: BrokerError) -> str:
    if refuses_topology(refusal):
        return _OTHER_TOPOLOGY
    return _ADVICE.get(refusal.code, "")
