"""Internal topics of real topologies: partition counts and settings; created and checked on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.admin import Admin, KafkaAdmin
from penstock.clients.cluster.topics import ClusterDescription
from penstock.clients.errors import UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError, TopologyError
from penstock.topology.records import TaskId, TopicPartition
from penstock.topology.stores.windows import TimeWindows
from penstock.workers.group.assignment.changelog_offsets import ChangelogOffsets
from penstock.workers.group.assignment.repartition_topics import repartition_topic_counts
from penstock.workers.group.assignment.topics_info import TopicsInfo, partition_groups, topics_infos
from penstock.workers.group.internal_topic_manager import (
    InternalTopicManager,
    changelog_topic_config,
    repartition_topic_config,
)
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.topics import add_partitions
from tests.waiting import PATIENCE_SECONDS
from tests.workers.direct_io import DirectAdmin

MakeTopic = Callable[..., str]


def config(application_id: str = "app", **values: Any) -> StreamsConfig:
    dotted = {name.replace("__", "."): value for name, value in values.items()}
    return StreamsConfig({"application.id": application_id, "bootstrap.servers": "localhost:1", **dotted})


def infos(builder: StreamsBuilder, settings: StreamsConfig | None = None) -> dict[int, TopicsInfo]:
    settings = settings or config()
    topology = builder.build(settings)
    return topics_infos(settings["application.id"], topology.internal_builder.build_subtopologies(settings))


def test_a_repartition_topic_has_as_many_partitions_as_the_largest_source_of_its_writers() -> None:
    builder = StreamsBuilder()
    merged = builder.stream("a").merge(builder.stream("b"))
    merged.group_by(lambda key, value: value).count(store="counts")
    topics = infos(builder)
    assert repartition_topic_counts(topics, {"a": 3, "b": 7}) == {"app-counts-repartition": 7}


def test_a_chain_of_repartition_topics_passes_the_count_on() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("a").group_by(lambda key, value: value).count(store="first")
    counts.to_stream().group_by(lambda key, value: value).count(store="second")
    assert repartition_topic_counts(infos(builder), {"a": 5}) == {
        "app-first-repartition": 5,
        "app-second-repartition": 5,
    }


def test_a_joined_repartition_topic_takes_the_count_of_the_other_side() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", store="table-store")
    builder.stream("a").select_key(lambda key, value: value).join(table, lambda left, right: left, name="joined")
    assert set(repartition_topic_counts(infos(builder), {"a": 8, "table": 3}).values()) == {3}


def test_two_joined_repartition_topics_take_the_larger_count() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name).select_key(lambda key, value: value) for name in ("a", "b"))
    left.to_table().join(right.to_table(), lambda one, other: one)
    assert set(repartition_topic_counts(infos(builder), {"a": 2, "b": 6}).values()) == {6}


def repartitioned(count: int | None = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("a").repartition(name="wide", number_of_partitions=count)
    stream.join(builder.table("table"), lambda left, right: left)
    return builder


def test_a_declared_count_that_fits_its_join_is_kept() -> None:
    assert repartition_topic_counts(infos(repartitioned(3)), {"a": 8, "table": 3}) == {"app-wide-repartition": 3}


def test_a_declared_count_that_does_not_fit_its_join_is_refused() -> None:
    with pytest.raises(
        TopologyError, match=r"Number of partitions \[5\] of repartition topic \[app-wide-repartition\]"
    ):
        repartition_topic_counts(infos(repartitioned(5)), {"a": 8, "table": 3})


def test_joined_user_topics_need_the_same_number_of_partitions() -> None:
    builder = StreamsBuilder()
    builder.stream("a").join(builder.table("b"), lambda left, right: left)
    with pytest.raises(TopologyError, match=r"Topics not co-partitioned: a has 2, b has 3\. Joined topics need"):
        repartition_topic_counts(infos(builder), {"a": 2, "b": 3})


def test_a_subtopology_has_as_many_tasks_as_its_largest_source_has_partitions() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).group_by(lambda key, value: value).count(store="counts")
    topics = infos(builder)
    tasks = partition_groups(topics, {"a": 3, "b": 1, "app-counts-repartition": 2})
    assert tasks.keys() == {TaskId(0, 0), TaskId(0, 1), TaskId(0, 2), TaskId(1, 0), TaskId(1, 1)}
    assert tasks[TaskId(0, 0)] == {TopicPartition("a", 0), TopicPartition("b", 0)}
    assert tasks[TaskId(0, 2)] == {TopicPartition("a", 2)}


def test_a_source_topic_that_serves_as_changelog_belongs_to_the_user() -> None:
    changelogs = []
    for optimization in ("all", "none"):
        builder = StreamsBuilder()
        builder.table("a", store="kept")
        (info,) = infos(builder, config(topology__optimization=optimization)).values()
        changelogs.append((set(info.changelog_topics), set(info.source_changelog_topics)))
    assert changelogs == [({"a"}, {"a"}), ({"app-kept-changelog"}, set())]


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (StoreBuilder("s", StoreKind.TIMESTAMPED_KEY_VALUE), {"cleanup.policy": "compact"}),
        (
            StoreBuilder("s", StoreKind.TIMESTAMPED_WINDOW, retention_ms=1_000),
            {"cleanup.policy": "compact,delete", "retention.ms": "86401000"},
        ),
        (
            StoreBuilder("s", StoreKind.SESSION, retention_ms=2**63 - 1),
            {"cleanup.policy": "compact,delete", "retention.ms": "9223372036854775807"},
        ),
        (
            StoreBuilder("s", StoreKind.VERSIONED_KEY_VALUE, history_retention_ms=1_000),
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "86401000"},
        ),
        (
            StoreBuilder("s", StoreKind.WINDOW, retention_ms=1_000, log_config={"retention.ms": "7"}),
            {"cleanup.policy": "compact,delete", "retention.ms": "7"},
        ),
    ],
)
def test_changelogs_have_kafka_streams_settings(store: StoreBuilder, expected: dict[str, str]) -> None:
    assert changelog_topic_config(store, config()) == {"message.timestamp.type": "CreateTime", **expected}


def test_repartition_topics_have_kafka_streams_settings() -> None:
    assert repartition_topic_config(config()) == {
        "cleanup.policy": "delete",
        "segment.bytes": "52428800",
        "retention.ms": "-1",
        "message.timestamp.type": "CreateTime",
    }


def test_topic_overrides_take_precedence_over_defaults_and_a_stores_own_over_both() -> None:
    settings = config(topic__segment__bytes=1000, topic__cleanup__policy="delete")
    store = StoreBuilder("s", StoreKind.KEY_VALUE, log_config={"cleanup.policy": "compact"})
    assert repartition_topic_config(settings)["segment.bytes"] == "1000"
    assert changelog_topic_config(store, settings)["cleanup.policy"] == "compact"
    assert changelog_topic_config(store, settings)["segment.bytes"] == "1000"


class StepClock:
    """A clock that advances by 100 ms each time it is read."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        self.now_ms += 100
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return self.now_ms


class Away(DirectAdmin):
    """An Admin whose brokers do not respond."""

    def __init__(self) -> None:
        super().__init__(DirectKafka(ManualClock()))

    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:
        raise UnreachableError("localhost:1: connection refused")


def test_unreachable_brokers_are_retried_and_then_reported(caplog: pytest.LogCaptureFixture) -> None:
    waited: list[float] = []
    settings = config(max__poll__interval__ms=24_000)
    manager = InternalTopicManager(Away(), settings, StepClock(), PrefixedLogger("test", ""), waited.append)
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    with pytest.raises(
        BrokerUnavailableError, match=r"Topics could not be made ready within 12000 ms.*cluster at localhost:1 does not"
    ):
        manager.make_ready(infos(builder))
    assert len(waited) > 100
    assert set(waited) == {0.1}
    assert len([record for record in caplog.records if "trying on" in record.message]) == 2


def test_the_broker_of_a_streams_group_creates_the_topics_itself() -> None:
    kafka = DirectKafka(ManualClock())
    kafka.create_topic("a", 3)
    builder = StreamsBuilder()
    builder.stream("a").group_by(lambda key, value: value).count(store="counts")
    for protocol, created in (("streams", set()), ("classic", {"app-counts-repartition", "app-counts-changelog"})):
        settings = config(group__protocol=protocol)
        manager = InternalTopicManager(DirectAdmin(kafka), settings, StepClock(), PrefixedLogger("test", ""))
        assert manager.make_ready(infos(builder, settings)).keys() == {"a"} | created


class Application:
    """An application that counts: by key, and by key and window."""

    def __init__(self, application_id: str, source: str, sink: str, admin: AdminClient, asking: Admin) -> None:
        self.id = application_id
        self.admin, self.asking = admin, asking
        self.config = config(application_id, replication__factor=1)
        builder = StreamsBuilder()
        grouped = builder.stream(source).group_by(lambda key, value: value)
        grouped.count(store="counts").to_stream().to(sink)
        grouped.windowed_by(TimeWindows(timedelta(minutes=1), grace=timedelta(0))).count(store="windows")
        self.topics = infos(builder, self.config)

    def make_ready(self) -> dict[str, int]:
        return self.manager().make_ready(self.topics)

    def manager(self) -> InternalTopicManager:
        return InternalTopicManager(self.asking, self.config, SystemClock(), PrefixedLogger("test", ""))

    def settings_of(self, name: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, f"{self.id}-{name}")
        (future,) = self.admin.describe_configs([resource]).values()
        return {key: entry.value for key, entry in future.result(PATIENCE_SECONDS).items()}


@pytest.fixture
def asking(bootstrap_servers: str) -> Iterator[Admin]:
    admin = KafkaAdmin(network_settings({"bootstrap.servers": bootstrap_servers}))
    yield admin
    admin.close()


@pytest.fixture
def application(application_id: str, make_topic: MakeTopic, admin: AdminClient, asking: Admin) -> Application:
    names = make_topic("in", partitions=3), make_topic("out", partitions=2)
    return Application(application_id, *names, admin, asking)


@pytest.mark.broker
def test_internal_topics_are_created_and_all_counts_returned(application: Application) -> None:
    counts = application.make_ready()
    internal = {name.removeprefix(f"{application.id}-"): n for name, n in counts.items() if application.id in name}
    names = ("counts-repartition", "counts-changelog", "windows-repartition", "windows-changelog")
    assert internal == dict.fromkeys(names, 3)
    assert sorted(n for name, n in counts.items() if application.id not in name) == [2, 3]
    described = application.settings_of("windows-changelog")
    assert described["cleanup.policy"] == "compact,delete"
    assert described["retention.ms"] == str(60_000 + 86_400_000)
    assert application.settings_of("counts-changelog")["cleanup.policy"] == "compact"
    assert application.make_ready() == counts


@pytest.mark.broker
def test_members_that_create_them_at_the_same_time_all_succeed(application: Application) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(application.make_ready) for _ in range(4)]]
    assert all(result == results[0] for result in results)


@pytest.mark.broker
def test_a_topic_that_another_member_has_just_created_is_accepted(application: Application) -> None:
    counts = application.make_ready()
    manager = application.manager()
    describe, looks = manager._describe, iter(range(10))
    manager._describe = lambda names: {} if next(looks) == 1 else describe(names)  # type: ignore[method-assign]
    assert manager.make_ready(application.topics) == counts
    assert next(looks) == 3


@pytest.mark.broker
def test_the_error_names_a_missing_source_topic_which_is_not_created(
    application_id: str, unique_name: Callable[[str], str], admin: AdminClient, asking: Admin
) -> None:
    missing = unique_name("missing")
    with pytest.raises(MissingSourceTopicError, match=f"Missing source topics: {missing}"):
        Application(application_id, missing, missing, admin, asking).make_ready()
    assert missing not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


@pytest.mark.broker
def test_the_error_for_an_internal_topic_with_a_wrong_partition_count_says_what_to_do(application: Application) -> None:
    application.make_ready()
    name = f"{application.id}-counts-changelog"
    add_partitions(application.admin, name, 5)
    with pytest.raises(StreamsError, match=rf"{name} has invalid partitions: expected: 3; actual: 5.*`penstock reset"):
        application.make_ready()


@pytest.mark.broker
def test_the_error_for_a_refused_setting_names_the_topic(application: Application) -> None:
    application.config = application.config.with_overrides({"topic.cleanup.policy": "nonsense"})
    with pytest.raises(StreamsError, match=rf"Could not create topic {application.id}-.*nonsense"):
        application.make_ready()


@pytest.mark.broker
def test_changelog_offsets_come_from_the_brokers(application: Application, bootstrap_servers: str) -> None:
    application.make_ready()
    supplier = KafkaClientSupplier(config(application.id, bootstrap__servers=bootstrap_servers))
    reader = supplier.get_offsets_reader("offsets", 2_000)
    offsets = ChangelogOffsets(application.asking, reader, 2_000)
    changelog = TopicPartition(f"{application.id}-counts-changelog", 0)
    assert offsets.end_offsets([changelog]) == {changelog: 0}
    assert offsets.committed_offsets([changelog]) == {changelog: 0}
    assert offsets.end_offsets([]) == offsets.committed_offsets([]) == {}
    with pytest.raises(StreamsError, match="end offsets of 1 changelog partitions are not known"):
        offsets.end_offsets([TopicPartition("no-such-topic", 0)])
    reader.close()
