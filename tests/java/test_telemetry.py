"""What Kafka Streams and Penstock push to a broker with a metrics plugin (KIP-714, KIP-1076), compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.topology.errors import StreamsError
from tests.java.conftest import SOURCE, kafka_streams_jars
from tests.java.handover import Handover, Java
from tests.java.program import Topics
from tests.java.versions import is_since
from tests.telemetry_broker import Push, TelemetryBroker, telemetry_broker
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.skipif(not is_since((4, 4)), reason="the names are those of 4.4"),
]
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
KAFKA = "org.apache.kafka."
THREAD = "-StreamThread-1-consumer"
PROCESSED = f"{KAFKA}stream.thread.process.total"
RECORDS = 300
TASKS = 4  # of TakeoverProgram: one for each of its subtopologies


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TelemetryBroker]:
    kafka_streams_jars()  # skips without a JDK
    with telemetry_broker(tmp_path_factory.mktemp("telemetry")) as made:
        yield made


@pytest.fixture
def topics(broker: TelemetryBroker, request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """Make topics whose names begin with that of the test."""

    def make(*names: str) -> list[str]:
        made = [f"{re.sub(r'[^a-z_]+', '-', request.node.name)}-{name}" for name in names]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        create_topics(admin, *(NewTopic(name, 1, 1) for name in made))
        return made

    return make


@pytest.fixture
def subscription(broker: TelemetryBroker, request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    def subscribe(**settings: str) -> None:
        broker.subscribe(request.node.name, **settings)

    yield subscribe
    broker.unsubscribe(request.node.name)


class Kind(NamedTuple):
    """Of a metric: gauge or sum, int or double, and its attributes' names by client."""

    data: str
    value: str
    attributes: frozenset[str]


def kinds(pushes: list[Push]) -> dict[str, Kind]:
    """Return all pushed names."""
    found: dict[str, Kind] = {}
    for push in pushes:
        for name, metric in push.metrics.items():
            data = metric.WhichOneof("data")
            points = getattr(metric, data).data_points
            attributes = {each.key for point in points for each in point.attributes}
            before = found.get(name)
            known = attributes | (before.attributes if before else set())
            found[name] = Kind(data, points[0].WhichOneof("value"), frozenset(known))
    return found


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table of docs/metrics.md behind a line."""
    lines = PAGE.read_text("utf-8").partition(f"{heading}\n\n")[2].splitlines()[2:]
    table = lines[: lines.index("")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_same_application_pushes_the_same_names(
    broker: TelemetryBroker, subscription: Callable[..., None], topics: Callable[..., list[str]], tmp_path: Path
) -> None:
    subscription(metrics="*", interval_ms="1000")
    java = Java(java_command(tmp_path))
    orders, products, people = topics("orders", "products", "people")
    pushed: dict[str, dict[str, Kind]] = {}
    for system, start in (("java", java.start), ("penstock", java.start_penstock)):
        outputs = dict(zip(("counts", "final", "joined"), topics(*(f"{system}-{n}" for n in "cfj")), strict=True))
        given = Topics(orders, products, people=people, **outputs)
        folder = tmp_path / system
        folder.mkdir()
        application = Handover(
            java,
            broker.bootstrap_servers,
            f"telemetry-{system}",
            given,
            folder,
            **{"client.id": system, "metrics.recording.level": "TRACE"},
        )
        if system == "java":
            application.feed()
        properties = folder / "settings.properties"
        settings = {**application.config, **given.properties(), "num.stream.threads": "1", "state.dir": str(folder)}
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        instance = start(properties)
        try:
            eventually(lambda: has_run(broker, system), lambda: [push.client_id for push in broker.pushes()])  # noqa: B023
        finally:
            instance.stop()
        pushes = [push for push in broker.pushes() if push.client_id.startswith(f"{system}-")]
        assert {push.content_type for push in pushes} == {"OTLP"}
        last = {push.client_id for push in pushes if push.is_last}
        assert any(client_id.endswith(THREAD) for client_id in last)
        labels = next(push.labels for push in pushes if push.client_id.endswith(THREAD))
        assert labels["group_id"] == application.application_id
        assert "group_member_id" in next(push.labels for push in reversed(pushes) if push.client_id.endswith(THREAD))
        pushed[system] = kinds(pushes)

    theirs, ours = pushed["java"], pushed["penstock"]
    missing = [(cell, name) for cell, _ in rows("Penstock does not push these:") for name in names(cell)]
    patterns = [name for _, name in missing]
    only_java = theirs.keys() - ours.keys()
    assert [name for name in sorted(only_java) if not any(fnmatchcase(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in only_java)] == []
    other_kind = {names(name)[0] for name, *_ in rows("These have another kind:")}
    common = theirs.keys() & ours.keys()
    assert len(common) > 60
    differing = {name for name in common if theirs[name][:2] != ours[name][:2]}
    assert differing == other_kind & common
    assert {name: ours[name].attributes for name in common if ours[name].attributes != theirs[name].attributes} == {}


def has_run(broker: TelemetryBroker, system: str) -> bool:
    """Whether the stream thread has pushed all of its tasks at least twice: the first ones push alone at first."""
    pushes = [push for push in broker.pushes(THREAD) if push.client_id.startswith(system)]
    name = f"{KAFKA}stream.task.process.total"
    return sum(name in push.metrics and len(push.metrics[name].sum.data_points) == TASKS for push in pushes) > 1


def java_command(folder: Path) -> list[str]:
    """Compile TakeoverProgram, and return its command."""
    from benchmarks.systems import compile_java

    java, class_path = kafka_streams_jars()
    classes = folder / "classes"
    compile_java(java, SOURCE, classes, class_path)
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [str(java), "-Xmx512m", log, "-cp", f"{classes}:{class_path}", "TakeoverProgram"]


def upper_case(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    text = Serdes.string()
    stream = builder.stream(source, key_serde=text, value_serde=text)
    stream.map_values(str.upper).to(sink, key_serde=text, value_serde=text)
    return builder


def config(broker: TelemetryBroker, name: str, folder: Path, **more: object) -> dict[str, object]:
    return {
        "application.id": name,
        "bootstrap.servers": broker.bootstrap_servers,
        "state.dir": str(folder / "state"),
        "commit.interval.ms": 100,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def feed(broker: TelemetryBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": False})
    for number in range(RECORDS):
        producer.produce(topic, f"value {number}", str(number))
    assert producer.flush(PATIENCE_SECONDS) == 0


def of_application(broker: TelemetryBroker, name: str, client: str = "") -> list[Push]:
    return [push for push in broker.pushes(client) if push.client_id.startswith(name)]


def sums(pushes: list[Push], name: str) -> list[Any]:
    """Return the points of a counter in all pushes."""
    return [point for push in pushes if name in push.metrics for point in push.metrics[name].sum.data_points]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_every_record_is_in_exactly_one_push(
    broker: TelemetryBroker,
    subscription: Callable[..., None],
    topics: Callable[..., list[str]],
    tmp_path: Path,
    guarantee: str,
) -> None:
    """A broker asks for differences: their sum is the number of records, with the last push at the end."""
    source, sink = topics("in", "out")
    name = f"sums-{guarantee}"
    subscription(metrics=f"{KAFKA}stream.thread.,{KAFKA}producer.", interval_ms="200", match=f"client_id={name}.*")
    feed(broker, source)
    with KafkaStreams(upper_case(source, sink), config(broker, name, tmp_path, processing_guarantee=guarantee)) as app:
        app.start()
        eventually(lambda: any(point.as_double for point in sums(of_application(broker, name, THREAD), PROCESSED)))
        feed(broker, source)
        eventually(lambda: processed(app) == 2 * RECORDS, lambda: processed(app))
        ids = app.client_instance_ids(PATIENCE_MS)
    pushes = of_application(broker, name)
    consumer = [push for push in pushes if push.client_id.endswith(THREAD)]
    assert sum(point.as_double for point in sums(consumer, PROCESSED)) == 2 * RECORDS
    assert {push.metrics[PROCESSED].sum.aggregation_temporality for push in consumer} == {1}
    assert [push.is_last for push in consumer] == [False] * (len(consumer) - 1) + [True]
    points = sums(consumer, PROCESSED)
    assert [two.start_time_unix_nano - one.time_unix_nano for one, two in pairwise(points)] == [0] * (len(points) - 1)
    assert {name for push in consumer for name in push.metrics} >= {PROCESSED, f"{KAFKA}stream.thread.thread.state"}
    assert not any(name.startswith(f"{KAFKA}stream.task.") for push in consumer for name in push.metrics)

    producer = next(push for push in pushes if push.client_id.endswith("-producer"))
    assert ("transactional_id" in producer.labels) == (guarantee == "exactly_once_v2")
    by_client: Mapping[str, Any] = {**ids.consumer_instance_ids(), **ids.producer_instance_ids()}
    assert {push.client_id: push.client_instance_id for push in pushes if push.client_id in by_client} == {
        client_id: found for client_id, found in by_client.items() if "restore" not in client_id
    } | {push.client_id: push.client_instance_id for push in pushes if "restore" in push.client_id}
    assert [key.rpartition("StreamThread-1-")[2] for key in sorted(by_client)] == [
        *("consumer", "producer", "restore-consumer"),
    ]
    assert ids.admin_instance_id() not in by_client.values()
    assert all(
        push.client_instance_id == ids.admin_instance_id() for push in pushes if push.client_id.endswith("-admin")
    )


PATIENCE_MS = int(PATIENCE_SECONDS * 1000)


def processed(app: KafkaStreams) -> int:
    return sum(thread.records_processed for thread in app.status())


def test_a_subscription_that_changes_is_followed(
    broker: TelemetryBroker, subscription: Callable[..., None], topics: Callable[..., list[str]], tmp_path: Path
) -> None:
    """The broker refuses the push with the old subscription, and the client asks for the new one."""
    source, sink = topics("in", "out")
    subscription(metrics=f"{KAFKA}stream.thread.", interval_ms="200", match="client_id=changed.*")

    def last() -> set[str]:
        pushes = of_application(broker, "changed", THREAD)
        return set(pushes[-1].metrics) if pushes else set()

    with KafkaStreams(upper_case(source, sink), config(broker, "changed", tmp_path)) as app:
        app.start()
        eventually(lambda: PROCESSED in last(), last)
        subscription(metrics=f"{KAFKA}stream.alive")
        eventually(lambda: any(push.metrics for push in of_application(broker, "changed", "-admin")))
        subscription(metrics=f"{KAFKA}stream.task.")
        eventually(lambda: {name.rpartition(".stream.")[2].partition(".")[0] for name in last()} == {"task"}, last)
        ids = app.client_instance_ids(PATIENCE_MS)
    pushes = of_application(broker, "changed", THREAD)
    used = {push.client_instance_id for push in pushes}
    assert used == {ids.consumer_instance_ids()[pushes[0].client_id]}
    alive = [push.metrics for push in of_application(broker, "changed", "-admin") if push.metrics]
    assert {name for metrics in alive for name in metrics} == {f"{KAFKA}stream.alive.stream.threads"}
    values = [one.gauge.data_points[0].as_int for metrics in alive for one in metrics.values()]
    assert values == [1] * len(alive)


def test_without_a_subscription_clients_have_ids_and_push_nothing(
    broker: TelemetryBroker, topics: Callable[..., list[str]], tmp_path: Path
) -> None:
    source, sink = topics("in", "out")
    with KafkaStreams(upper_case(source, sink), config(broker, "quiet", tmp_path, num_stream_threads=2)) as app:
        app.start()
        ids = app.client_instance_ids(PATIENCE_MS)
        assert len({ids.admin_instance_id(), *ids.consumer_instance_ids().values()}) == 5
        assert len(ids.producer_instance_ids()) == 2
        assert app.client_instance_ids(0) == ids
    assert of_application(broker, "quiet") == []
    with pytest.raises(StreamsError, match=r"KafkaStreams has been stopped \(NOT_RUNNING\)"):
        app.client_instance_ids(0)


def test_metrics_larger_than_the_broker_takes(
    topics: Callable[..., list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with telemetry_broker(tmp_path / "small", {"telemetry.max.bytes": "1000"}) as broker:
        broker.subscribe("all", metrics="*", interval_ms="200")
        with KafkaStreams(upper_case("in", "out"), config(broker, "large", tmp_path)) as app:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": False})
            create_topics(admin, NewTopic("in", 1, 1), NewTopic("out", 1, 1))
            app.start()
            eventually(lambda: "the broker takes 1000 (telemetry.max.bytes)" in caplog.text, lambda: caplog.text)
        assert of_application(broker, "large", THREAD) == []
