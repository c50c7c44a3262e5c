"""All requests of a stream thread to the cluster other than reading, writing and group membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition

from ..errors import BrokerError, ErrorCode, RetriableError, UnreachableError, broker_error
from ..network_settings import NetworkSettings
from ..protocol.admin_messages import CREATE_TOPICS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from ..protocol.messages import METADATA
from .cluster import Cluster
from .leader_questions import LeaderQuestion, LeaderQuestions
from .offsets import deletions, newest_timestamps, offsets_at
from .retrying import retried, try_ms
from .topics import NO_ID, ClusterDescription, described

K = TypeVar("K")
T = TypeVar("T")

#: DescribeConfigs' type of resource, its source of a setting of this topic, and IncrementalAlterConfigs' operation.
_TOPIC, _OF_TOPIC, _SET = 2, 1, 0
#: The connection for slow requests; separate because a broker answers the requests of a connection in order.
ADMINISTRATION = "administration"
#: How long after its timeout the IO thread may still return a response, in ms, before it is considered stuck.
_GRACE_MS = 1_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. replication_factor: -1 for the brokers' default; config: by Kafka's names."""

    name: str
    num_partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


class TopicSetting(NamedTuple):
    """The value of a topic's setting, and whether it was set for this topic; otherwise it is the brokers' default."""

    value: str
    is_own: bool


class Admin(Protocol):
    """Admin requests. timeout_ms: for all attempts together; retriable errors are retried until then.

    Methods that return futures do not block; each partition's future completes when its leader has answered. All
    others block. Raised, or set on the futures: UnreachableError or RetriableBrokerError after the timeout, BrokerError
    if a broker rejects the request; ``answered`` translates them.
    """

    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:
        """Describe these topics, None for all; missing topics are left out."""

    def topic_ids(self, topics: Collection[str], timeout_ms: int) -> dict[str, bytes]:
        """Return the ids of topics; missing topics are left out, and all of brokers before Kafka 2.8."""
        found = self.describe(topics, timeout_ms).topics
        return {name: topic.id for name, topic in found.items() if topic.id != NO_ID}

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int, committed_only: bool = False
    ) -> Mapping[TopicPartition, Future[int]]:
        """Look up the first offset at or after a timestamp (ms), or EARLIEST, or LATEST; see offsets.py."""

    def newest_timestamps(
        self, partitions: Collection[TopicPartition], timeout_ms: int, committed_only: bool = False
    ) -> Mapping[TopicPartition, Future[int]]:
        """Look up the highest timestamps (ms) of partitions, -1 for one without records."""

    def topic_config(
        self, topics: Collection[str], keys: Collection[str], timeout_ms: int
    ) -> Mapping[str, Mapping[str, TopicSetting] | BrokerError]:
        """Return these settings of each topic, without those that the broker does not know, or the lookup's error."""

    def alter_topic_config(
        self, topics: Mapping[str, Mapping[str, str]], timeout_ms: int
    ) -> Mapping[str, BrokerError | None]:
        """Change settings of topics. Returns by topic the error, or None if its settings were changed."""

    def create_topics(self, topics: Collection[NewTopic], timeout_ms: int) -> Mapping[str, BrokerError | None]:
        """Create topics. Returns by name the error, or None if the topic was created."""

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> Mapping[TopicPartition, Future[int]]:
        """Delete the records before these offsets; the futures return the partitions' new first offsets."""

    def waits(self) -> tuple[str, ...]:
        """Return a line for each request that has been retried for long."""
        return ()

    def wait(self, asked: Collection[Future[Any]], seconds: float) -> None:
        """Wait until all these futures are complete, up to a timeout. In a simulation that is simulated time."""

    def close(self) -> None:
        """Close the client; requests in progress fail."""


class KafkaAdmin(Admin):
    """Asks and changes topics over Penstock's own connections; any thread may use it."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._cluster = Cluster(settings)
        self._pause_ms = settings.retry_backoff_ms
        self._leaders = LeaderQuestions(self._cluster, settings.retry_backoff_ms)

    @override
    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:

        async def attempt(deadline: float) -> ClusterDescription:
            return described(await self._cluster.metadata(topics, timeout_ms=try_ms(deadline)), topics)

        return self._retried(attempt, timeout_ms, METADATA.name)

    def _retried(self, attempt: Callable[[float], Awaitable[T]], timeout_ms: int, what: str) -> T:
        asked: Future[T] = self._cluster.submit(
            retried, attempt, timeout_ms, self._pause_ms, self._cluster.retries, what
        )
        return result(asked, timeout_ms)

    @override
    def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int, committed_only: bool = False
    ) -> Mapping[TopicPartition, Future[int]]:
        return self._ask_leaders(offsets_at(timestamps, committed_only), timestamps, timeout_ms)

    @override
    def newest_timestamps(
        self, partitions: Collection[TopicPartition], timeout_ms: int, committed_only: bool = False
    ) -> Mapping[TopicPartition, Future[int]]:
        return self._ask_leaders(newest_timestamps(partitions, committed_only), partitions, timeout_ms)

    @override
    def topic_config(
        self, topics: Collection[str], keys: Collection[str], timeout_ms: int
    ) -> Mapping[str, Mapping[str, TopicSetting] | BrokerError]:
        wanted = sorted(keys)
        resources = [
            {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": wanted} for topic in sorted(topics)
        ]

        async def attempt(deadline: float) -> dict[str, Mapping[str, TopicSetting] | BrokerError]:
            response = await self._cluster.ask_any(DESCRIBE_CONFIGS(resources=resources), try_ms(deadline))
            return {
                each.resource_name: broker_error(each.error_code, each.error_message)
                if each.error_code
                else {one.name: TopicSetting(one.value or "", one.config_source == _OF_TOPIC) for one in each.configs}
                for each in response.results
            }

        return self._retried(attempt, timeout_ms, DESCRIBE_CONFIGS.name)

    @override
    def alter_topic_config(
        self, topics: Mapping[str, Mapping[str, str]], timeout_ms: int
    ) -> Mapping[str, BrokerError | None]:
        resources = [
            {
                "resource_type": _TOPIC,
                "resource_name": topic,
                "configs": [{"name": key, "config_operation": _SET, "value": value} for key, value in config.items()],
            }
            for topic, config in topics.items()
        ]

        async def attempt(deadline: float) -> dict[str, BrokerError | None]:
            response = await self._cluster.ask_any(INCREMENTAL_ALTER_CONFIGS(resources=resources), try_ms(deadline))
            return {
                each.resource_name: broker_error(each.error_code, each.error_message) if each.error_code else None
                for each in response.responses
            }

        return self._retried(attempt, timeout_ms, INCREMENTAL_ALTER_CONFIGS.name)

    @override
    def create_topics(self, topics: Collection[NewTopic], timeout_ms: int) -> Mapping[str, BrokerError | None]:
        asked = [
            {
                "name": topic.name,
                "num_partitions": topic.num_partitions,
                "replication_factor": topic.replication_factor,
                "configs": [{"name": name, "value": value} for name, value in topic.config.items()],
            }
            for topic in topics
        ]

        async def attempt(deadline: float) -> dict[str, BrokerError | None]:
            controller = (await self._cluster.metadata((), timeout_ms=try_ms(deadline))).controller_id
            limit_ms = try_ms(deadline)
            request = CREATE_TOPICS(topics=asked, timeout_ms=int(limit_ms / 2))
            response = await self._cluster.ask_broker(controller, request, limit_ms, ADMINISTRATION)
            if any(each.error_code == ErrorCode.NOT_CONTROLLER for each in response.topics):
                raise broker_error(ErrorCode.NOT_CONTROLLER)
            return {
                each.name: broker_error(each.error_code, each.error_message) if each.error_code else None
                for each in response.topics
            }

        return self._retried(attempt, timeout_ms, CREATE_TOPICS.name)

    @override
    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> Mapping[TopicPartition, Future[int]]:
        return self._ask_leaders(deletions(before, ADMINISTRATION), before, timeout_ms)

    def _ask_leaders(
        self, question: LeaderQuestion, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, Future[int]]:
        asked: dict[TopicPartition, Future[int]] = {partition: Future() for partition in partitions}
        for future in asked.values():
            future.set_running_or_notify_cancel()  # cannot be canceled: the IO thread completes it

        def end(asking: Future[None]) -> None:
            """Complete all futures, however the request ended."""
            failure = UnreachableError("the client was closed") if asking.cancelled() else asking.exception()
            for future in asked.values():
                if not future.done():
                    future.set_exception(failure)

        if asked:
            self._cluster.submit(self._leaders.ask, question, asked, timeout_ms).add_done_callback(end)
        return asked

    @override
    def waits(self) -> tuple[str, ...]:
        return self._cluster.waits()

    @override
    def wait(self, asked: Collection[Future[Any]], seconds: float) -> None:
        wait(asked, seconds)

    @override
    def close(self) -> None:
        self._cluster.close()


def result(asked: Future[T], timeout_ms: int) -> T:
    """Wait for a response up to timeout_ms (plus a grace period); raises as documented in Admin."""
    try:
        return asked.result((timeout_ms + _GRACE_MS) / 1000)
    except (CancelledError, FutureTimeoutError) as error:
        raise UnreachableError(f"no response within {timeout_ms} ms") from error


def results(asked: Mapping[K, Future[T]], timeout_ms: int) -> dict[K, T]:
    """Wait for all responses; raises the first error."""
    return {key: result(future, timeout_ms) for key, future in asked.items()}


@contextmanager
def answered(what: str) -> Iterator[None]:
    """Raise BrokerUnavailableError if no response comes in time, StreamsError for a rejection. what: text for both."""
    try:
        yield
    except RetriableError as error:
        raise BrokerUnavailableError(f"{what}: {error}.") from error
    except BrokerError as error:
        raise StreamsError(f"{what}: {error}.") from error
