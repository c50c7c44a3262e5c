"""Real processes on two brokers in two racks: who gets which tasks, and a leader that is lost during a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import KafkaStreams, Serdes, StateRestoreListener, StreamsBuilder
from penstock import TopicPartition as Partition
from tests import waiting
from tests.brokers import SECOND
from tests.two_racks import FIRST, RACKS, TwoRacks, two_racks

pytestmark = [pytest.mark.broker, pytest.mark.slow]

STORE = "counts"
RECORDS = 60_000
PATIENCE_SECONDS = 120.0
eventually = partial(waiting.eventually, patience_seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRacks]:
    with two_racks(tmp_path_factory.mktemp("racks")) as made:
        yield made


class Restores(StateRestoreListener):
    """How many records were restored, by partition."""

    def __init__(self) -> None:
        self.restored: dict[int, int] = {}

    def on_batch_restored(self, partition: Partition, store: str, batch_end_offset: int, restored: int) -> None:
        self.restored[partition.partition] = self.restored.get(partition.partition, 0) + restored


def create(brokers: TwoRacks, topic: str, replicas: list[list[int]], **config: str) -> None:
    """replicas: of each partition, the first one leads."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=config)
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)


def count(source: str) -> Any:
    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key().count(store=STORE)
    return builder.build()


def running_tasks(streams: KafkaStreams) -> set[str]:
    tasks = [task for thread in streams.status() for task in thread.tasks]
    return {task.task_id for task in tasks if task.kind == "active" and task.state == "RUNNING"}


def test_each_host_gets_the_tasks_whose_partitions_are_in_its_rack(
    brokers: TwoRacks, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Without racks the tasks are dealt out in turn: 0_0 and 0_2 to one host, 0_1 and 0_3 to the other."""
    create(brokers, "in", [[FIRST], [FIRST], [SECOND], [SECOND]])
    wanted = dict(zip(RACKS, ({"0_0", "0_1"}, {"0_2", "0_3"}), strict=True))
    application_id = unique_name("app")
    with ExitStack() as running:
        hosts: dict[str, KafkaStreams] = {}
        for rack in RACKS:
            config = {
                "application.id": application_id,
                "bootstrap.servers": brokers.bootstrap_servers,
                "state.dir": str(tmp_path / rack),
                "client.rack": rack,
                "rack.aware.assignment.strategy": "min_traffic",
                "num.stream.threads": 1,
            }
            hosts[rack] = running.enter_context(KafkaStreams(count("in"), config))
            hosts[rack].start()

        def owned() -> dict[str, set[str]]:
            return {rack: running_tasks(host) for rack, host in hosts.items()}

        eventually(lambda: owned() == wanted, owned)


def test_a_restore_goes_on_when_it_loses_a_leader_in_the_middle(
    brokers: TwoRacks, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Both partitions are led by the broker that is killed, and kept by the other one too."""
    application_id = unique_name("app")
    replicas = [[SECOND, FIRST], [SECOND, FIRST]]
    changelog = f"{application_id}-{STORE}-changelog"
    create(brokers, "restored", replicas)
    create(brokers, changelog, replicas, **{"cleanup.policy": "compact"})
    # Small batches, and one in each answer to a fetch: so that the restore takes seconds and there is a middle.
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap_servers, "batch.num.messages": 10, "enable.idempotence": True}
    )
    for number in range(RECORDS):
        producer.produce(changelog, (1).to_bytes(8, "big"), b"k%d" % number, number % 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    restores = Restores()
    config = {
        "application.id": application_id,
        "bootstrap.servers": brokers.bootstrap_servers,
        "state.dir": str(tmp_path),
        "restore.consumer.max.partition.fetch.bytes": 100,
    }
    with KafkaStreams(count("restored"), config) as streams:
        streams.set_global_state_restore_listener(restores)
        streams.start()
        eventually(lambda: len(restores.restored) == 2, lambda: restores.restored)
        brokers.second.kill()
        assert max(restores.restored.values()) < RECORDS / 2, "nothing was left to restore"
        eventually(lambda: running_tasks(streams) == {"0_0", "0_1"}, lambda: restores.restored)
    assert restores.restored == {0: RECORDS / 2, 1: RECORDS / 2}, "each record once"
