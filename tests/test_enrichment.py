"""The enrichment example: a real HTTP service, a real ONNX model, and complete orders in their order."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import uvicorn
from confluent_kafka import Consumer, Producer, TopicPartition

from examples.enrichment import model, prices, topology
from examples.enrichment.orders import orders
from penstock import KafkaStreams, Serdes
from penstock.supervisor.exit_codes import ExitCode
from penstock.testing import TopologyTestDriver
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.medium

ORDERS = 400


@pytest.fixture(scope="module", autouse=True)
def made_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("model") / "risk.onnx"
    file.write_bytes(model.build().SerializeToString())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(topology.MODEL_VARIABLE, str(file))
        topology.risk_model.cache_clear()
        yield file
    topology.risk_model.cache_clear()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The price service, on a free port."""
    server = uvicorn.Server(uvicorn.Config(prices.app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the service answers")
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv(topology.PRICES_VARIABLE, f"http://127.0.0.1:{port}")
    yield
    server.should_exit = True
    thread.join()


def test_the_model_has_learned_which_orders_are_risky() -> None:
    unseen = model.made_orders(2_000, seed=7)
    found = topology.risks(list(unseen.T))
    assert float(np.abs(found - model.risk_of(unseen)).mean()) < 0.05


def test_single_records_batches_and_columns_give_the_same_result() -> None:
    priced = [{"number": n, "price": 450.0, "pieces": n % 9 + 1, "age_days": 10 * n} for n in range(50)]
    batches = topology.with_risks(priced)
    risks = [order["risk"] for order in batches]
    assert len(set(risks)) > 10
    columns = topology.with_risk_column(pa.RecordBatch.from_pylist(priced)).to_pylist()
    for scored in (batches, columns, [topology.with_risk(order) for order in priced]):
        assert [order["risk"] for order in scored] == pytest.approx(risks, abs=2e-4)
        assert [{**order, "risk": 0} for order in scored] == [{**order, "risk": 0} for order in priced]


@pytest.mark.usefixtures("service")
def test_an_order_gets_its_price_and_its_risk() -> None:
    with TopologyTestDriver(topology.build()) as driver:
        source = driver.create_input_topic(topology.ORDERS, Serdes.string(), Serdes.json())
        for customer, order in list(orders(10)):
            source.pipe_input(customer, order)
        scored = driver.create_output_topic(topology.SCORED, Serdes.string(), Serdes.json()).read_values_to_list()
    assert [order["number"] for order in scored] == list(range(10))
    for order in scored:
        assert order["price"] == prices.PRICES[order["product"]]
        assert 0 <= round(order["risk"], 1) <= 1


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.usefixtures("service")
def test_two_processes_keep_the_order_of_each_customers_orders(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = make_topic("orders", 4), make_topic("scored", 4)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for customer, order in orders(ORDERS):
        producer.produce(source, json.dumps(order), customer)
    assert producer.flush(PATIENCE_SECONDS) == 0
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path),
        "num.stream.threads": 2,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 200,
    }
    scored: dict[str, list[int]] = defaultdict(list)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused"})
    consumer.assign([TopicPartition(sink, partition, 0) for partition in range(4)])

    def all_are_there() -> bool:
        for message in consumer.consume(ORDERS, timeout=1):
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            scored[key.decode()].append(json.loads(value)["number"])
        return sum(map(len, scored.values())) >= ORDERS

    try:
        with KafkaStreams(topology.build(source, sink), config) as streams:
            streams.start()
            eventually(all_are_there, "all orders are scored")
    finally:
        consumer.close()
    assert streams.exit_code is ExitCode.OK
    assert sum(map(len, scored.values())) == ORDERS
    assert all(numbers == sorted(numbers) for numbers in scored.values())
