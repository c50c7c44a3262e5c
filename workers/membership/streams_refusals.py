"""What it means when the coordinator refuses a heartbeat (KIP-1071), and what a reader can do about it."""

from __future__ import annotations

from collections.abc import Mapping

import kafka.errors as kafka_errors

from penstock.topology.errors import StreamsError

from .membership import FencedInstanceIdError
from .requests import GroupMemberConfig

# Kafka's codes that this version of kafka-python has no class for.
STREAMS_INVALID_TOPOLOGY = 130
STREAMS_INVALID_TOPOLOGY_EPOCH = 131
STREAMS_TOPOLOGY_FENCED = 132

_NAMES = {
    STREAMS_INVALID_TOPOLOGY: "STREAMS_INVALID_TOPOLOGY",
    STREAMS_INVALID_TOPOLOGY_EPOCH: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    STREAMS_TOPOLOGY_FENCED: "STREAMS_TOPOLOGY_FENCED",
}


#: How long a static member tries to get its group.instance.id from the one that had it before, in ms. It asks for it;
#: at the latest it is free when that one's session ends, which a broker allows to last 60 s
#: (group.streams.max.session.timeout.ms).
_INSTANCE_RELEASE_PATIENCE_MS = 90_000
#: How long an error without a reason is taken for a passing one. Kafka 4.4 makes one where it should say that source
#: topics are missing, if the member has an application.server; a broker hears of a new topic with a delay.
_UNKNOWN_ERROR_PATIENCE_MS = 5_000


class Refusal:
    """An error and what the broker says about it."""

    def __init__(self, error: kafka_errors.KafkaError, message: str | None = None) -> None:
        self.error = error
        self.message = message or " ".join(map(str, error.args))

    def lost(self, joining: bool) -> bool:
        """Return True if the membership is over, but not the member. joining: it was its first heartbeat."""
        if isinstance(self.error, kafka_errors.GroupIdNotFoundError):
            return not joining  # the group was deleted
        return isinstance(self.error, kafka_errors.UnknownMemberIdError | kafka_errors.FencedMemberEpochError)

    @property
    def patience_ms(self) -> int:
        """For how long trying again may help."""
        if isinstance(self.error, kafka_errors.UnreleasedInstanceIdError):
            return _INSTANCE_RELEASE_PATIENCE_MS
        return _UNKNOWN_ERROR_PATIENCE_MS if self._code == kafka_errors.UnknownError.errno else 0

    @property
    def _code(self) -> int:
        return getattr(self.error, "errno", None) or 0

    def __str__(self) -> str:
        code = self._code
        known = _NAMES.get(code) or (self.error.message if code in kafka_errors.kafka_errors else None)
        name = known or f"{type(self.error).__name__} {code}"
        return f"{name}: {self.message}" if self.message else name


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

#: What a reader can do.
_ADVICE: Mapping[int, str] = {
    kafka_errors.UnsupportedVersionError.errno: _UNSUPPORTED,
    kafka_errors.GroupIdNotFoundError.errno: (
        "A group of another protocol has members under this application.id. Stop them all, or choose another "
        "application.id; a classic group without members becomes a streams group by itself."
    ),
    kafka_errors.GroupMaxSizeReachedError.errno: (
        "The broker's group.streams.max.size is reached: run fewer threads or raise it."
    ),
    kafka_errors.GroupAuthorizationFailedError.errno: "The principal needs READ on the group.",
    kafka_errors.TopicAuthorizationFailedError.errno: (
        "The principal needs DESCRIBE on the source topics, and CREATE on the internal topics or on the cluster, since "
        "the broker makes them in its name."
    ),
    kafka_errors.UnknownError.errno: "Do all source topics exist? Else the coordinator's log says what is wrong.",
    kafka_errors.SaslAuthenticationFailedError.errno: "Check sasl.mechanism, sasl.username and sasl.password.",
    STREAMS_INVALID_TOPOLOGY: "Is this a broker of a later version? If not, this is an error in Penstock.",
    STREAMS_INVALID_TOPOLOGY_EPOCH: _OTHER_TOPOLOGY,
    STREAMS_TOPOLOGY_FENCED: _OTHER_TOPOLOGY,
}


def refusal_error(config: GroupMemberConfig, refusal: Refusal) -> StreamsError:
    """Return the error that ends the membership."""
    group, instance, error = config.group_id, config.instance_id, refusal.error
    translated: StreamsError
    if isinstance(error, kafka_errors.FencedInstanceIdError | kafka_errors.UnreleasedInstanceIdError):
        translated = FencedInstanceIdError(
            f"Another process is a member of group {group} with group.instance.id={instance} ({refusal}). "
            f"{config.fenced_advice}"
        )
    else:
        translated = StreamsError(f"Membership in group {group} failed: {refusal}. {_advice(refusal)}".strip())
    translated.__cause__ = error
    return translated


def _advice(refusal: Refusal) -> str:
    if isinstance(refusal.error, kafka_errors.InvalidRequestError) and "opology" in refusal.message:
        return _OTHER_TOPOLOGY  # Kafka 4.4: "Topology updates are not supported yet."
    return _ADVICE.get(getattr(refusal.error, "errno", 0), "")
