"""Java and Penstock in two racks, in one group: any leader places tasks near their partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import TaskId
from tests.brokers import FIRST, RACKS, SECOND, ThreeBrokers
from tests.java.handover import PARTITIONS, Handover, Java, kind_of
from tests.java.program import Topics
from tests.java.versions import RACKS_SINCE, is_since
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

#: The broker of each partition. Without racks tasks are assigned in turn, so that these two lists would be mixed.
PRODUCTS, ORDERS = (SECOND, SECOND, FIRST), (FIRST, FIRST, SECOND)
#: Sub-topology 0 reads the products, 1 the orders; internal topics have replicas in both racks.
IN_FIRST = {TaskId(0, 2), TaskId(1, 0), TaskId(1, 1)}
IN_SECOND = {TaskId(0, 0), TaskId(0, 1), TaskId(1, 2)}


def make_topics(three_brokers: ThreeBrokers, suffix: str) -> Topics:
    """Create the topics of an application, each partition in one rack."""
    everywhere = (FIRST,) * PARTITIONS
    places = {"orders": ORDERS, "products": PRODUCTS, "counts": everywhere, "final": everywhere, "joined": everywhere}
    new = [
        NewTopic(f"{name}-{suffix}", PARTITIONS, replica_assignment=[[broker] for broker in replicas])
        for name, replicas in places.items()
    ]
    admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    create_topics(admin, *new)
    return Topics(**{name: f"{name}-{suffix}" for name in places})


@pytest.mark.parametrize("strategy", ["min_traffic", "balance_subtopology"])
def test_each_leader_places_tasks_where_their_partitions_are(
    three_brokers: ThreeBrokers, java: Java, unique_name: Callable[[str], str], tmp_path: Path, strategy: str
) -> None:
    if not is_since(RACKS_SINCE):
        pytest.skip("this version of Kafka Streams knows no racks")
    application = Handover(
        java,
        three_brokers.bootstrap_servers,
        unique_name("racks"),
        make_topics(three_brokers, unique_name(strategy)),
        tmp_path,
        **{
            "replication.factor": "2",
            "rack.aware.assignment.strategy": strategy,
        },
    )
    first = application.start_java("java", client_rack=RACKS[0])
    application.feed()
    application.settle()
    penstock = application.start_penstock("penstock", client_rack=RACKS[1])

    def is_placed() -> bool:
        placed = application.placed(kind_of)
        return bool(placed) and placed["java"].active == IN_FIRST and placed["penstock"].active == IN_SECOND

    eventually(is_placed, lambda: application.placed(kind_of), PATIENCE_SECONDS)
    assert not penstock.has_logged("Leading generation")
    first.stop()
    eventually(lambda: application.members().get("java") == 0, application.members, PATIENCE_SECONDS)
    again = application.start_java("java", client_rack=RACKS[0])
    eventually(is_placed, lambda: application.placed(kind_of), PATIENCE_SECONDS)
    assert penstock.has_logged("Leading generation")
    application.feed()
    application.settle()
    penstock.stop()
    again.stop()
