"""The topology that Kafka Streams and Penstock push to a broker with a plugin for it (KIP-1331), compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import KafkaStreams, Serdes, StreamsBuilder
from tests.java.conftest import kafka_streams_jars
from tests.java.handover import Handover, Java
from tests.java.program import Topics
from tests.java.test_telemetry import java_command
from tests.java.versions import is_since
from tests.telemetry_broker import TelemetryBroker
from tests.topics import create_topics
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.skipif(not is_since((4, 4)), reason="this version of Kafka Streams does not push topologies"),
]
INPUTS = ("orders", "products", "people", "names")
TEXT = Serdes.string()


class PluginBroker(TelemetryBroker):
    """A broker that keeps topologies in a folder."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name, directory, {"group.streams.topology.description.plugin.class": "TopologyPlugin"})
        self.topologies = directory / "topologies"
        self.memory_options = (*self.memory_options, f"-Dtopology.folder={self.topologies}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginBroker]:
    kafka_streams_jars()  # skips without a JDK
    made = PluginBroker("topologies", tmp_path_factory.mktemp("plugin"))
    made.topologies.mkdir()
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def topics(broker: PluginBroker) -> Callable[..., None]:
    def make(*names: str) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        create_topics(admin, *(NewTopic(name, 1, 1) for name in names))

    make(*INPUTS)
    return make


def pushed(broker: PluginBroker, group: str) -> str:
    """Wait for the description of a group's topology, and return it."""
    file = broker.topologies / group
    eventually(file.exists, f"{group} has pushed its topology")
    return file.read_text()


def test_the_same_topology_has_the_same_description(
    broker: PluginBroker, topics: Callable[..., None], tmp_path: Path
) -> None:
    java = Java(java_command(tmp_path))
    given = Topics("orders", "products", "out", "out", "out", people="people")
    topics("out")
    found = {}
    for group, start in (("java", java.start), ("penstock", java.start_penstock)):
        folder = tmp_path / group
        folder.mkdir()
        application = Handover(java, broker.bootstrap_servers, group, given, folder, **{"group.protocol": "streams"})
        properties = folder / "settings.properties"
        settings = {**application.config, **given.properties(), "num.stream.threads": "1", "state.dir": str(folder)}
        for name in ("session.timeout.ms", "heartbeat.interval.ms"):  # they are the broker's
            del settings[name]
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        instance = start(properties)
        try:
            found[group] = pushed(broker, group).replace(group, "the-group")
        finally:
            instance.stop()
    assert found["penstock"] == found["java"]
    assert "the-group-KSTREAM-" in found["java"]


def config(broker: PluginBroker, group: str, folder: Path, **more: object) -> dict[str, object]:
    return {
        "application.id": group,
        "bootstrap.servers": broker.bootstrap_servers,
        "group.protocol": "streams",
        "state.dir": str(folder),
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def with_global_table() -> StreamsBuilder:
    builder = StreamsBuilder()
    names = builder.global_table("names", store="names", key_serde=TEXT, value_serde=TEXT)
    orders = builder.stream("orders", key_serde=TEXT, value_serde=TEXT)
    orders.join(names, lambda key, value: value, lambda order, name: name).to(lambda key, value, context: "out")
    return builder


@pytest.mark.usefixtures("topics")
def test_global_stores_and_chosen_topics(broker: PluginBroker, tmp_path: Path) -> None:
    with KafkaStreams(with_global_table(), config(broker, "global", tmp_path)) as app:
        app.start()
        found = pushed(broker, "global")
    source, *_ = [line for line in found.splitlines() if "KSTREAM-SOURCE" in line]
    assert "orders" in source
    (sink,) = [line for line in found.splitlines() if line.strip().startswith("Sink[")]
    assert "topic=Optional.empty" in sink
    (store,) = [line for line in found.splitlines() if line.startswith("GlobalStore")]
    assert "names" in store


@pytest.mark.usefixtures("topics")
def test_a_description_that_the_plugin_refuses_is_a_warning(
    broker: PluginBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaStreams(with_global_table(), config(broker, "refused", tmp_path)) as app:
        app.start()
        eventually(lambda: "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED" in caplog.text, lambda: caplog.text)


@pytest.mark.usefixtures("topics")
def test_nothing_is_pushed_if_it_is_disabled(broker: PluginBroker, tmp_path: Path) -> None:
    disabled = config(broker, "disabled", tmp_path, topology_description_push_enabled=False)
    with (
        KafkaStreams(with_global_table(), disabled) as app,
        KafkaStreams(with_global_table(), config(broker, "enabled", tmp_path)) as other,
    ):
        app.start()
        eventually(lambda: app.state is KafkaStreams.State.RUNNING, lambda: app.state)
        other.start()
        pushed(broker, "enabled")
    assert not (broker.topologies / "disabled").exists()
