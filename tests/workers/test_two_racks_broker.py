"""Real processes on two brokers in two racks: the placement of tasks, and the loss of a leader during a restore."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import KafkaStreams, Serdes, StateRestoreListener, StreamsBuilder
from penstock import TopicPartition as Partition
from tests.brokers import FIRST, RACKS, SECOND, ThreeBrokers
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

STORE = "counts"
RECORDS = 60_000


class Restores(StateRestoreListener):
    """Counts the restored records by partition."""

    def __init__(self) -> None:
        self.restored: dict[int, int] = {}

    def on_batch_restored(self, partition: Partition, store: str, batch_end_offset: int, restored: int) -> None:
        self.restored[partition.partition] = self.restored.get(partition.partition, 0) + restored


def create(three_brokers: ThreeBrokers, topic: str, replicas: list[list[int]], **config: str) -> None:
    """replicas: of each partition; the first one is the leader."""
    admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    create_topics(admin, NewTopic(topic, len(replicas), replica_assignment=replicas, config=config))


def count(source: str) -> Any:
    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key().count(store=STORE)
    return builder.build()


def running_tasks(streams: KafkaStreams) -> set[str]:
    tasks = [task for thread in streams.status() for task in thread.tasks]
    return {task.task_id for task in tasks if task.kind == "active" and task.state == "RUNNING"}


def test_each_host_gets_the_tasks_whose_partitions_are_in_its_rack(
    three_brokers: ThreeBrokers, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Without racks, tasks are assigned in turn: 0_0 and 0_2 to one host, 0_1 and 0_3 to the other."""
    wanted = dict(zip(RACKS, ({"0_0", "0_1"}, {"0_2", "0_3"}), strict=True))
    application_id, source = unique_name("app"), unique_name("in")
    create(three_brokers, source, [[FIRST], [FIRST], [SECOND], [SECOND]])
    with ExitStack() as running:
        hosts: dict[str, KafkaStreams] = {}
        for rack in RACKS:
            config = {
                "application.id": application_id,
                "bootstrap.servers": three_brokers.bootstrap_servers,
                "state.dir": str(tmp_path / rack),
                "client.rack": rack,
                "rack.aware.assignment.strategy": "min_traffic",
                "num.stream.threads": 1,
            }
            hosts[rack] = running.enter_context(KafkaStreams(count(source), config))
            hosts[rack].start()

        def owned() -> dict[str, set[str]]:
            return {rack: running_tasks(host) for rack, host in hosts.items()}

        eventually(lambda: owned() == wanted, owned)


@pytest.mark.long
def test_a_restore_continues_when_it_loses_a_leader(
    three_brokers: ThreeBrokers, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """The killed broker leads both partitions, and the other one has replicas of them."""
    application_id, source = unique_name("app"), unique_name("in")
    replicas = [[SECOND, FIRST], [SECOND, FIRST]]
    changelog = f"{application_id}-{STORE}-changelog"
    create(three_brokers, source, replicas)
    create(three_brokers, changelog, replicas, **{"cleanup.policy": "compact"})
    # Small batches, one per fetch response: the restore then takes seconds, and can be interrupted.
    producer = Producer(
        {"bootstrap.servers": three_brokers.bootstrap_servers, "batch.num.messages": 10, "enable.idempotence": True}
    )
    for number in range(RECORDS):
        producer.produce(changelog, (1).to_bytes(8, "big"), b"k%d" % number, number % 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    restores = Restores()
    config = {
        "application.id": application_id,
        "bootstrap.servers": three_brokers.bootstrap_servers,
        "state.dir": str(tmp_path),
        "restore.consumer.max.partition.fetch.bytes": 100,
    }
    with KafkaStreams(count(source), config) as streams:
        streams.set_global_state_restore_listener(restores)
        streams.start()
        eventually(lambda: len(restores.restored) == 2, lambda: restores.restored)
        three_brokers.second.kill()
        assert max(restores.restored.values()) < RECORDS / 2, "nothing was left to restore"
        eventually(lambda: running_tasks(streams) == {"0_0", "0_1"}, lambda: restores.restored)
    assert restores.restored == {0: RECORDS / 2, 1: RECORDS / 2}, "each record once"
