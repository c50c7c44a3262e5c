"""Creates and checks internal topics, and counts the partitions of all topics (Kafka Streams: InternalTopicManager).

Each member does this before it joins, so the group's leader has a fresh snapshot and need not request it while the
group waits. Members may do it at the same time: an existing topic is as good as a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin, NewTopic, TopicSetting, answered
from penstock.clients.cluster.topics import ClusterDescription
from penstock.clients.connection.listener_probe import security_mismatch
from penstock.clients.errors import BrokerError, ClientError, ErrorCode, RetriableError, TlsError, UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition

from .assignment.repartition_topics import repartition_topic_counts
from .assignment.topics_info import TopicsInfo, partition_groups

T = TypeVar("T")

#: Settings of internal topics, as in Kafka Streams.
_REPARTITION = {
    "message.timestamp.type": "CreateTime",
    "cleanup.policy": "delete",
    "segment.bytes": "52428800",  # 50 MB: small, because consumed records are deleted segment by segment
    "retention.ms": "-1",  # the runtime deletes records once they are consumed
}
_CHANGELOG = {"message.timestamp.type": "CreateTime", "cleanup.policy": "compact"}
_WINDOWED_CHANGELOG = {**_CHANGELOG, "cleanup.policy": "compact,delete"}
#: Added to a versioned store's history retention, for clock drift (VersionedChangelogTopicConfig).
_VERSIONED_ADDITIONAL_COMPACTION_LAG_MS = 24 * 60 * 60 * 1000
_LONG_MAX = 2**63 - 1

#: Brokers learn of a new topic with a delay, so a missing one is searched for this long.
_MISSING_TOPIC_GRACE_MS = 3_000
#: Time limit of a request to create topics, in ms.
_CREATE_MS = 30_000
#: Time limit of a request to list all topics, in ms.
_LIST_MS = 60_000
#: Time limit of a request to describe topics, in ms; after it a warning is logged, and the request repeated.
_DESCRIBE_MS = 5_000
#: Interval of log lines about topics that are not ready.
_LOG_INTERVAL_MS = 5_000


#: A setting of internal topics that is checked.
POLICY = "cleanup.policy"
#: Settings of internal topics that accept every timestamp. Since Kafka 4.0, brokers refuse records that are more than
#: an hour in the future, but the input topics may accept them. Unknown before Kafka 3.6, where nothing is refused. Not
#: part of the topology, which members of a streams group must agree on, those in Java included.
TIMESTAMP_LIMITS = dict.fromkeys(("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str(_LONG_MAX))
#: Time limit of a request, in ms; without a response nothing is logged until the next check.
REQUEST_MS = 10_000


def repartition_topic_config(config: StreamsConfig) -> dict[str, str]:
    """Return the settings of a repartition topic; config: a StreamsConfig, for ``topic.`` overrides."""
    return {**_REPARTITION, **_overrides(config)}


def changelog_topic_config(store: StoreBuilder, config: StreamsConfig) -> dict[str, str]:
    """Return the settings of a store's changelog; config as for repartition_topic_config.

    ``topic.`` overrides win over Kafka Streams' settings, the store's own ``log_config`` over both.
    """
    own = {name: str(value) for name, value in store.log_config.items()}
    if store.kind is StoreKind.VERSIONED_KEY_VALUE:
        lag = min((store.history_retention_ms or 0) + _VERSIONED_ADDITIONAL_COMPACTION_LAG_MS, _LONG_MAX)
        return {**_CHANGELOG, **_overrides(config), "min.compaction.lag.ms": str(lag), **own}
    if store.windowed:
        additional = config["windowstore.changelog.additional.retention.ms"]
        retention = min((store.retention_ms or 0) + additional, _LONG_MAX)
        return {**_WINDOWED_CHANGELOG, **_overrides(config), "retention.ms": str(retention), **own}
    return {**_CHANGELOG, **_overrides(config), **own}


def _overrides(config: StreamsConfig) -> dict[str, str]:
    given = config.with_prefix("topic.").items()
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given}


def _racks(found: ClusterDescription) -> dict[TopicPartition, frozenset[str]]:
    """Return the racks of each partition's replicas, if all these brokers have a rack."""
    racks = {
        TopicPartition(name, number): [found.racks.get(node) for node in partition.replicas]
        for name, topic in found.topics.items()
        for number, partition in topic.partitions.items()
    }
    return {partition: frozenset(filter(None, each)) for partition, each in racks.items() if each and all(each)}


@dataclass(eq=False)
class InternalTopicManager:
    """Prepares the topics of one application.

    config: a StreamsConfig. sleep: waits (s) between two attempts.
    """

    admin: Admin
    config: StreamsConfig
    clock: Clock
    log: PrefixedLogger
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._settings = InternalTopicSettings(self.admin, self.config["bootstrap.servers"], self.log)
        self._obstacle = "the brokers are not done with them yet"
        self._with_racks: bool = self.config["rack.aware.assignment.strategy"] != "none"
        #: The racks of the replicas of all partitions, as of the last make_ready. Only with a
        #: rack.aware.assignment.strategy, and without partitions with a replica on a broker that has no rack.
        self.partition_racks: dict[TopicPartition, frozenset[str]] = {}
        #: The ids of the topics of the tasks, as of the last look.
        self.ids: dict[str, bytes] = {}
        self._broker_assigns = self.config["group.protocol"] == "streams"
        # As in Kafka Streams: the member must poll in time.
        self._retry_timeout_ms: int = self.config["max.poll.interval.ms"] // 2
        self._patience_ms: int | None = None
        #: Settings of new topics beside those of the topology.
        self._more_settings: Mapping[str, str] = TIMESTAMP_LIMITS

    def make_ready(self, topics: Mapping[int, TopicsInfo], patience_ms: int | None = None) -> dict[str, int]:
        """Create missing internal topics; return the partition counts of all topics.

        The broker of a streams group creates them itself. The result covers all source, internal and existing sink
        topics. patience_ms: how long to wait for the brokers before a BrokerUnavailableError, after which the caller
        retries; None: half of ``max.poll.interval.ms``, after which retrying is pointless.
        Raises MissingSourceTopicError, TopologyError for joined topics that are not co-partitioned, StreamsError for an
        internal topic with a wrong number of partitions, BrokerUnavailableError.
        """
        if self._broker_assigns:
            return self.topic_counts(patience_ms)
        self._patience_ms = patience_ms
        counts = self._until_ready(lambda waited_ms: self._describe_user_topics(topics, waited_ms))
        needed = self._needed(topics, counts)
        internal = self._until_ready(lambda waited_ms: self._make(needed))
        self._check_settings(topics)
        return {**counts, **internal}

    def topic_counts(self, patience_ms: int | None = None) -> dict[str, int]:
        """Return the partition counts of all topics of the cluster. patience_ms: time limit.

        Raises BrokerUnavailableError.
        """
        with answered("The topics of the cluster could not be listed"):
            return self.admin.describe(None, _LIST_MS if patience_ms is None else patience_ms).partition_counts

    def look(self, topics: Mapping[int, TopicsInfo]) -> None:
        """Check the internal topics that the broker of a streams group has made, and note the ids of all topics of
        tasks.

        Without an answer, and without ids (before Kafka 2.8), there is none. See InternalTopicSettings.
        """
        self._check_settings(topics)
        names = {name for info in topics.values() for name in info.source_topics | info.changelog_topics.keys()}
        self.ids |= self._asked("Could not describe topics", lambda: self.admin.topic_ids(names, _DESCRIBE_MS)) or {}

    def _check_settings(self, topics: Mapping[int, TopicsInfo]) -> None:
        policies: dict[str, str] = {}
        for info in topics.values():
            policies |= dict.fromkeys(info.repartition_source_topics, repartition_topic_config(self.config)[POLICY])
            for name in info.changelog_topics.keys() - info.source_changelog_topics:
                policies[name] = changelog_topic_config(info.changelog_topics[name], self.config)[POLICY]
        self._settings.check(policies)

    def _describe_user_topics(self, topics: Mapping[int, TopicsInfo], waited_ms: int) -> dict[str, int] | None:
        sources = {topic for info in topics.values() for topic in info.user_source_topics}
        sinks = {topic for info in topics.values() for topic in info.sink_topics}
        counts = self._describe(sources | sinks)
        if counts is None or sources <= counts.keys():
            return counts
        if waited_ms < _MISSING_TOPIC_GRACE_MS:
            return None
        missing = sorted(sources - counts.keys())
        raise MissingSourceTopicError(
            f"Missing source topics: {', '.join(missing)}. Create them before the application starts, with as many "
            f"partitions as you want tasks: `penstock topic create {' '.join(missing)} --partitions N`."
        )

    def _needed(self, topics: Mapping[int, TopicsInfo], counts: Mapping[str, int]) -> dict[str, NewTopic]:
        """Return the required internal topics."""
        repartition = repartition_topic_counts(topics, counts)
        tasks = partition_groups(topics, {**counts, **repartition})
        factor = self.config["replication.factor"]
        settings = repartition_topic_config(self.config)
        needed = {name: NewTopic(name, count, factor, config=settings) for name, count in repartition.items()}
        for info in topics.values():
            count = sum(task.subtopology == info.subtopology for task in tasks)
            for name in sorted(info.changelog_topics.keys() - info.source_changelog_topics):
                settings = changelog_topic_config(info.changelog_topics[name], self.config)
                needed[name] = NewTopic(name, count, factor, config=settings)
        return needed

    def _make(self, needed: Mapping[str, NewTopic]) -> dict[str, int] | None:
        """Return the partition counts of the internal topics, None if some were missing and have been requested."""
        existing = self._describe(needed.keys())
        if existing is None:
            return None
        for name, count in existing.items():
            self._check_count(name, count, needed[name].num_partitions)
        new = [topic for name, topic in needed.items() if name not in existing]
        if not new:
            return existing
        self.log.info("Creating internal topics %s", ", ".join(f"{t.name} ({t.num_partitions})" for t in new))
        new = [replace(topic, config={**self._more_settings, **topic.config}) for topic in new]
        made = self._asked("Could not create topics", lambda: self.admin.create_topics(new, self._limit(_CREATE_MS)))
        refusals = {name: refusal for name, refusal in (made or {}).items() if refusal is not None}
        if self._more_settings and any(each.code == ErrorCode.INVALID_CONFIG for each in refusals.values()):
            self._more_settings, refusals = {}, {}  # an older broker does not know them
        for name, refusal in refusals.items():
            self._note(f"Could not create topic {name}", refusal)
        return None  # described again, until the brokers know them

    def _check_count(self, name: str, actual: int, expected: int) -> None:
        if actual != expected:
            raise StreamsError(
                f"Existing internal topic {name} has invalid partitions: expected: {expected}; actual: {actual}. The "
                "input topics have got more partitions, or the application.id is that of another topology. Stop the "
                "application on all hosts; then `penstock reset MODULE:TOPOLOGY --execute` starts it over: input is "
                "read again from the beginning, and internal topics get as many partitions as it has"
            )

    def _describe(self, names: Collection[str]) -> dict[str, int] | None:
        """Return the partition counts of existing topics, None if the brokers do not answer now. Creates nothing."""
        if not names:
            return {}
        found = self._asked("Could not describe topics", lambda: self.admin.describe(names, self._limit(_DESCRIBE_MS)))
        if found is None:
            return None
        if self._with_racks:
            self.partition_racks = {**self.partition_racks, **_racks(found)}
        return found.partition_counts

    def _limit(self, ms: int) -> int:
        return ms if self._patience_ms is None else min(ms, self._patience_ms)

    def _asked(self, what: str, ask: Callable[[], T]) -> T | None:
        """Return the response, None if a retry may help."""
        try:
            return ask()
        except (RetriableError, BrokerError) as error:
            self._note(what, error)
            return None

    def _note(self, what: str, error: Exception) -> None:
        """Remember why an operation failed; raises StreamsError if a retry does not help.

        An existing topic was created by another member, or its deletion has not finished.
        """
        exists = isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        if not exists and not isinstance(error, RetriableError):
            raise StreamsError(f"{what}: {error}.") from error
        self.log.debug("%s: %s", what, error)
        said = f"{what}: {error}"
        is_silent = isinstance(error, UnreachableError) and not isinstance(error, TlsError)
        self._obstacle = f"{self._silence()}: {said}" if is_silent else said

    def _silence(self) -> str:
        """Return a message that no broker answers; at the start, when no task waits, also probe the listener for the
        cause.
        """
        servers, wrong = self.config["bootstrap.servers"], None
        if self._patience_ms is None:
            wrong = security_mismatch(servers, self.config["security.protocol"])
        return f"the Kafka cluster at {servers} does not answer" + ("" if wrong is None else f" ({wrong})")

    def _until_ready(self, attempt: Callable[[int], dict[str, int] | None]) -> dict[str, int]:
        """Retry until there is a result; raises BrokerUnavailableError after half of ``max.poll.interval.ms``.

        attempt: takes the ms since the first attempt.
        """
        started = last_logged = now = self.clock.monotonic_ms()
        while (result := attempt(now - started)) is None:
            now = self.clock.monotonic_ms()
            if self._patience_ms is not None and now - started >= self._patience_ms:
                raise BrokerUnavailableError(f"Topics could not be made ready yet: {self._obstacle}.")
            if now - started >= self._retry_timeout_ms:
                raise BrokerUnavailableError(
                    f"Topics could not be made ready within {self._retry_timeout_ms} ms, half of max.poll.interval.ms: "
                    f"{self._obstacle}. Check bootstrap.servers and whether the brokers run, then start again."
                )
            if now - last_logged >= _LOG_INTERVAL_MS:
                last_logged = now
                self.log.warning(
                    "Topics could not be made ready for %d ms: %s; trying on, for %d ms in all "
                    "(half of max.poll.interval.ms). Check bootstrap.servers (%s) and whether the brokers run",
                    now - started,
                    self._obstacle,
                    self._retry_timeout_ms,
                    self.config["bootstrap.servers"],
                )
            self.sleep(self.config.of_client("retry.backoff.ms", "admin.") / 1000)
        return result


class InternalTopicSettings:
    """Checks the settings of each internal topic until the brokers have answered once.

    With a wrong cleanup policy the broker silently deletes state or input. It is only logged: it may be intended, and a
    restart would not fix it (Kafka Streams: InternalTopicManager.validate). Limits of timestamps that are the brokers'
    defaults are removed; Kafka Streams leaves them, and ends at a record beyond them. servers: for the commands in the
    log.
    """

    def __init__(self, admin: Admin, servers: str, log: PrefixedLogger) -> None:
        self._admin = admin
        self._servers = servers
        self._log = log
        self._checked: set[str] = set()

    def check(self, needed: Mapping[str, str]) -> None:
        """Log wrong policies, and remove limits. needed: by topic, the policy that a new topic would get."""
        new = [name for name in needed if name not in self._checked]
        if not new:
            return
        try:
            found = self._admin.topic_config(new, (POLICY, *TIMESTAMP_LIMITS), REQUEST_MS)
        except (RetriableError, BrokerError) as error:
            self._log.debug("The settings of internal topics could not be read: %s", error)
            return
        limited = []
        for name, actual in found.items():
            if isinstance(actual, BrokerError):  # not allowed, or not known there yet
                self._log.debug("The settings of %s could not be read: %s", name, actual)
                continue
            self._checked.add(name)
            self._judge(name, actual[POLICY].value, needed[name])
            if any(key in actual and _is_limit(actual[key]) for key in TIMESTAMP_LIMITS):
                limited.append(name)
        if limited:
            self._remove_limits(limited)

    def _judge(self, name: str, actual: str, needed: str) -> None:
        consequence = _consequence(set(actual.replace(" ", "").split(",")), needed)
        if consequence is not None:
            self._log.error(
                "Internal topic %s has cleanup.policy=%s instead of %s: %s. Fix it with: %s cleanup.policy=[%s]",
                name,
                actual,
                needed,
                consequence,
                self._command(name),
                needed,
            )

    def _command(self, name: str) -> str:
        alter = f"kafka-configs --bootstrap-server {self._servers} --alter"
        return f"{alter} --entity-type topics --entity-name {name} --add-config"

    def _remove_limits(self, names: Collection[str]) -> None:
        refusals: Mapping[str, ClientError | None]
        try:
            refusals = self._admin.alter_topic_config(dict.fromkeys(names, TIMESTAMP_LIMITS), REQUEST_MS)
        except (RetriableError, BrokerError) as error:
            refusals = dict.fromkeys(names, error)
        for name, refusal in refusals.items():
            if refusal is None:
                self._log.info("Removed the limits of timestamps of internal topic %s", name)
                continue
            self._log.warning(
                "Internal topic %s does not accept records whose timestamps are too far from the present, and this "
                "cannot be changed (%s). The application stops at such a record. Let an administrator run: %s %s",
                name,
                refusal,
                self._command(name),
                ",".join(f"{key}={value}" for key, value in TIMESTAMP_LIMITS.items()),
            )


def _is_limit(setting: TopicSetting) -> bool:
    """Return whether timestamps are limited, by a default of the brokers."""
    return not setting.is_own and int(setting.value) < _LONG_MAX


def _consequence(actual: set[str], needed: str) -> str | None:
    """Return the consequence, None if there is none: a windowed changelog that is only compacted just grows."""
    if needed == "delete":
        return "records are lost before they are read" if "compact" in actual else None
    if "compact" not in actual:
        return "the state that is older than the topic's retention is lost with the next restore"
    if "delete" in actual and "delete" not in needed:
        return "the state that has not changed within the topic's retention is lost with the next restore"
    return None
