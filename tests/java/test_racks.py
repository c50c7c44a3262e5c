"""Java and Penstock in two racks, in one group: any leader places tasks alike, where their partitions are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import TaskId
from tests.brokers import SECOND
from tests.java.handover import PARTITIONS, PATIENCE_SECONDS, Handover, Java, kind_of
from tests.java.program import Topics
from tests.java.versions import RACKS_SINCE, is_since
from tests.two_racks import FIRST, RACKS, TwoRacks, two_racks
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

#: In which broker each partition is. Without racks tasks are dealt out in turn, so that these two lists would be mixed.
PRODUCTS, ORDERS = (SECOND, SECOND, FIRST), (FIRST, FIRST, SECOND)
#: Sub-topology 0 reads the products, 1 the orders; what is internal has replicas in both racks.
IN_FIRST = {TaskId(0, 2), TaskId(1, 0), TaskId(1, 1)}
IN_SECOND = {TaskId(0, 0), TaskId(0, 1), TaskId(1, 2)}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRacks]:
    with two_racks(tmp_path_factory.mktemp("racks")) as made:
        yield made


def make_topics(brokers: TwoRacks, suffix: str) -> Topics:
    """Create the topics of an application, each partition in one rack."""
    everywhere = (FIRST,) * PARTITIONS
    places = {"orders": ORDERS, "products": PRODUCTS, "counts": everywhere, "final": everywhere, "joined": everywhere}
    new = [
        NewTopic(f"{name}-{suffix}", PARTITIONS, replica_assignment=[[broker] for broker in replicas])
        for name, replicas in places.items()
    ]
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_SECONDS)
    return Topics(**{name: f"{name}-{suffix}" for name in places})


@pytest.mark.parametrize("strategy", ["min_traffic", "balance_subtopology"])
def test_each_leader_places_tasks_where_their_partitions_are(
    brokers: TwoRacks, java: Java, unique_name: Callable[[str], str], tmp_path: Path, strategy: str
) -> None:
    if not is_since(RACKS_SINCE):
        pytest.skip("this version of Kafka Streams knows no racks")
    application = Handover(
        java,
        brokers.bootstrap_servers,
        unique_name("racks"),
        make_topics(brokers, strategy),
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
