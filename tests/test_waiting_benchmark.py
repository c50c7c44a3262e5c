"""The benchmarks of asynchronous and batch functions measure only correct results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from benchmarks import scoring, service, topologies, waiting_topologies
from benchmarks.data import Workload
from benchmarks.driver import Scenario as DriverScenario
from benchmarks.driver import in_batches, rates
from benchmarks.measure import BenchmarkError
from benchmarks.progress import Progress
from benchmarks.waiting import AnswersCheck, answers, in_order
from examples.enrichment import model, topology
from penstock import Serdes
from penstock.testing import TopologyTestDriver
from penstock.topology.records import TopicPartition
from tests.waiting import eventually

pytestmark = pytest.mark.medium

WORKLOAD = Workload(60)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service, in this process, on a free port; one in ten of its responses is an error."""
    monkeypatch.setattr(service, "MODE", service.Mode((0, 0.001), failing=0.1))
    server = uvicorn.Server(uvicorn.Config(service.app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the service answers")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("way", ["waiting", "waiting_by_key"])
def test_each_purchase_gets_its_result_in_order(way: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(waiting_topologies.SERVICE_VARIABLE, address)
    assert problem(way, monkeypatch) is None


def test_a_plain_function_gives_the_same_results(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MODE", service.Mode((0, 0.001)))
    monkeypatch.setenv(waiting_topologies.SERVICE_VARIABLE, address)
    try:
        assert problem("plain", monkeypatch) is None
    finally:
        waiting_topologies.connection().close()
        waiting_topologies.connection.cache_clear()


def problem(way: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setenv(topologies.INPUT_VARIABLE, "in")
    monkeypatch.setenv(topologies.OUTPUT_VARIABLE, "out")
    check = AnswersCheck(answers(WORKLOAD))
    with TopologyTestDriver(getattr(waiting_topologies, way)()) as driver:
        source = driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes())
        for key, value, timestamp in WORKLOAD.purchases():
            source.pipe_input(key, value, timestamp)
        for row in driver.create_output_topic("out", Serdes.bytes(), Serdes.bytes()).read_records_to_list():
            check.read(row.key, row.value)
    return check.problem()


def test_missing_duplicate_and_reordered_results_are_detected() -> None:
    def found(*rows: bytes) -> str | None:
        check = AnswersCheck(in_order([(b"a", b"1"), (b"a", b"2")]))
        for row in rows:
            check.read(b"a", row)
        return check.problem()

    assert found(b"1", b"2") is None
    for wrong in ((), (b"1",), (b"2", b"1"), (b"1", b"2", b"2")):
        assert found(*wrong) == "the rows of 1 of 1 keys are others, e.g. of b'a'"


def test_systems_that_process_partitions_in_turn_are_measured_by_the_sum() -> None:
    first, second = TopicPartition("in", 0), TopicPartition("in", 1)
    seen = [(0.0, 100, 0), (1.0, 200, 0), (2.0, 200, 100), (3.0, 200, 200)]
    apart, summed = Progress((first, second)), Progress((first, second), apart=False)
    for moment, *offsets in seen:
        for progress in (apart, summed):
            progress.note(moment, dict(zip((first, second), offsets, strict=True)))
    assert apart.span(0) is None
    assert summed.span(0) == (0.0, 2.0)
    assert summed.at(2.0) - summed.at(0.0) == 200


@pytest.fixture
def risk_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "risk.onnx").write_bytes(model.build().SerializeToString())
    monkeypatch.setenv(topology.MODEL_VARIABLE, str(tmp_path / "risk.onnx"))
    topology.risk_model.cache_clear()
    yield
    topology.risk_model.cache_clear()


@pytest.mark.usefixtures("risk_model")
@pytest.mark.parametrize("scenario", scoring.SCENARIOS, ids=lambda scenario: scenario.name)
def test_scores_are_checked(scenario: DriverScenario) -> None:
    (rate,) = rates(scenario, "in batches", scoring.messages(1_300), rounds=1)
    assert rate > 0
    _, results = in_batches(scenario, scoring.messages(700))
    for wrong in (results[:-1], [results[1], results[0], *results[2:]]):
        with pytest.raises(BenchmarkError):
            scenario.check(700, wrong)
    key, value = results[0]
    assert value is not None
    with pytest.raises(BenchmarkError, match="another risk"):
        scenario.check(700, [(key, value.replace(b'"risk":', b'"risk":7')), *results[1:]])
