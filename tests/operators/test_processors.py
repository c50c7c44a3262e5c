from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import FixedKeyProcessor, Processor, Punctuation, Record, Serdes, Stores, StreamsError, Topology
from penstock.testing import MockProcessorContext, TopologyTestDriver

Options = dict[str, Any]


def added(builder: Any, name: str, numbers: Options) -> None:
    supplier = Stores.in_memory_key_value_store(name)
    builder.add_state_store(Stores.key_value_store_builder(supplier, numbers["key_serde"], numbers["value_serde"]))


class Totals(Processor[str, int, str, int]):
    """Sums up, and forwards at each punctuation."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_state_store("totals")
        context.schedule(timedelta(milliseconds=10), Punctuation.STREAM_TIME, self.punctuate)

    def process(self, record: Record[str, int]) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + record.value)

    def punctuate(self, timestamp: int) -> None:
        for key, total in list(self.store.all()):
            self.context.forward(Record(key, total, timestamp))


def test_a_processor_has_stores_and_punctuations(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        added(builder, "totals", numbers)
        builder.stream("in", **numbers).process(Totals, "totals").to("out", **numbers)

    flow = start(declare)
    assert flow.read_after("in", "k", 1, 0) == [("k", 1, 0)], "the first record starts stream time"
    assert flow.read_after("in", "k", 2, 9) == []
    assert flow.read_after("in", "k", 3, 34) == [("k", 6, 34)], "missed intervals are not made up for"


def test_each_task_gets_its_own_processor(numbers: Options) -> None:
    made: list[Any] = []

    class Counted(Processor[Any, Any, Any, Any]):
        def __init__(self) -> None:
            made.append(self)

        def process(self, record: Any) -> None: ...

    from penstock import StreamsBuilder

    builder = StreamsBuilder()
    builder.stream("in", **numbers).process(Counted)
    topology = builder.build()
    for _ in range(2):
        TopologyTestDriver(topology).close()
    assert len(made) == 2


def test_a_supplier_must_create_processors(start: Any, numbers: Options) -> None:
    with pytest.raises(StreamsError, match="must return a new processor"):
        start(lambda builder: builder.stream("in", **numbers).process(lambda: Totals))


def test_an_unconnected_store_is_refused(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        added(builder, "totals", numbers)
        builder.stream("in", **numbers).process(Totals, name="lonely")
        builder.stream("other", **numbers).process(Totals, "totals")

    with pytest.raises(StreamsError, match="lonely has no access to state store totals"):
        start(declare)


def test_a_fixed_key_processor_keeps_its_keys(start: Any, numbers: Options) -> None:
    class Renames(FixedKeyProcessor[str, int, int]):
        def process(self, record: Any) -> None:
            self.context.forward(record.with_value(record.value * 2))
            self.context.forward(record.with_key("other"))

    flow = start(
        lambda builder: builder.stream("in", **numbers).process_values(Renames, name="renames").to("out", **numbers)
    )
    with pytest.raises(StreamsError, match="renames must keep the key"):
        flow.pipe("in", "k", 1)
    assert flow.driver.create_output_topic("out").is_empty(), "what a failed record has sent is not captured"


def test_a_processor_may_choose_the_child(numbers: Options) -> None:
    class Odd(Processor[str, int, str, int]):
        def process(self, record: Any) -> None:
            self.context.forward(record, "odd" if record.value % 2 else "even")

    topology = Topology().add_source("source", "in", **numbers).add_processor("choose", Odd, "source")
    for name in ("odd", "even"):
        topology.add_sink(name, name + "-out", "choose", **numbers)
    with TopologyTestDriver(topology) as driver:
        for value in range(4):
            driver.create_input_topic("in").pipe_input("k", value)
        assert driver.create_output_topic("odd-out").read_values_to_list() == [1, 3]
        assert driver.create_output_topic("even-out").read_values_to_list() == [0, 2]


def test_an_unknown_child_is_an_error(numbers: Options) -> None:
    class Lost(Processor[str, int, str, int]):
        def process(self, record: Any) -> None:
            self.context.forward(record, "nowhere")

    topology = Topology().add_source("source", "in", **numbers).add_processor("lost", Lost, "source")
    with TopologyTestDriver(topology) as driver, pytest.raises(StreamsError, match="nowhere either does not exist"):
        driver.create_input_topic("in").pipe_input("k", 1)


def test_a_store_written_after_forwarding_has_the_timestamp_of_the_record(start: Any, numbers: Options) -> None:
    """A downstream operator has its own record; writes after it returns belong to this record again."""

    class Late(Processor[str, int, str, int]):
        def process(self, record: Any) -> None:
            self.context.forward(record.with_timestamp(record.timestamp + 100))
            self.context.get_state_store("totals").put(record.key, record.value)

    def declare(builder: Any) -> None:
        added(builder, "totals", numbers)
        builder.stream("in", **numbers).process(Late, "totals").to_table(store="below", **numbers)

    flow = start(declare).pipe("in", "k", 1, 5)
    assert [r.timestamp for r in _changelog(flow, "totals")] == [5]
    assert [r.timestamp for r in _changelog(flow, "below")] == [105]


def _changelog(flow: Any, store: str) -> list[Any]:
    topic = flow.driver.create_output_topic(f"topology-test-driver-{store}-changelog")
    found: list[Any] = topic.read_records_to_list()
    return found


def test_a_punctuation_has_no_input_record(start: Any, numbers: Options) -> None:
    seen: list[Any] = []

    class Tick(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(5, Punctuation.WALL_CLOCK_TIME, lambda now: seen.append((now, context.record_metadata())))

        def process(self, record: Any) -> None:
            seen.append(self.context.record_metadata())

    flow = start(lambda builder: builder.stream("in", **numbers).process(Tick), wall_clock_ms=100)
    flow.pipe("in", "k", 1)
    flow.driver.advance_wall_clock_time(4)
    flow.driver.advance_wall_clock_time(timedelta(milliseconds=1))
    assert seen == [("in", 0, 0), (105, None)]


@pytest.mark.parametrize("begin", [7, datetime(1970, 1, 1, 0, 0, 0, 7_000, UTC)])
def test_an_anchored_punctuation_keeps_its_times(start: Any, numbers: Options, begin: Any) -> None:
    """KIP-1146: from 7 ms, every 10 ms; the task starts at 100 ms, its stream time at 42 ms."""
    seen: list[Any] = []

    class Anchored(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, Punctuation.WALL_CLOCK_TIME, lambda now: seen.append(("wall", now)), begin)
            context.schedule(10, Punctuation.STREAM_TIME, lambda now: seen.append(("stream", now)), start_time=50)
            assert context.app_configs_with_prefix("application.") == {"id": context.application_id, "server": ""}

        def process(self, record: Any) -> None:
            pass

    flow = start(lambda builder: builder.stream("in", **numbers).process(Anchored), wall_clock_ms=100)
    for timestamp in (42, 49, 50, 58, 60):
        flow.pipe("in", "k", 1, timestamp)
    assert seen == [("stream", 50), ("stream", 60)]
    for _ in range(17):
        flow.driver.advance_wall_clock_time(1)
    assert seen[2:] == [("wall", 107), ("wall", 117)]


@pytest.mark.parametrize("begin", [-1, datetime(2026, 1, 1), 1.5, True])
def test_a_start_time_is_an_instant(start: Any, numbers: Options, begin: Any) -> None:
    class Wrong(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(10, Punctuation.WALL_CLOCK_TIME, print, begin)

        def process(self, record: Any) -> None:
            pass

    with pytest.raises(Exception, match="start time of a punctuation"):
        start(lambda builder: builder.stream("in", **numbers).process(Wrong))


def test_a_cancelled_punctuation_does_not_fire(start: Any, numbers: Options) -> None:
    fired: list[int] = []

    class Once(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            self.schedule = context.schedule(1, Punctuation.WALL_CLOCK_TIME, self.punctuate)

        def process(self, record: Any) -> None: ...

        def punctuate(self, now: int) -> None:
            fired.append(now)
            self.schedule.cancel()

    flow = start(lambda builder: builder.stream("in", **numbers).process(Once))
    flow.driver.advance_wall_clock_time(10)
    flow.driver.advance_wall_clock_time(10)
    assert fired == [10]


def test_an_interval_below_a_millisecond_is_refused(start: Any, numbers: Options) -> None:
    class Zero(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(0, Punctuation.STREAM_TIME, print)

        def process(self, record: Any) -> None: ...

    with pytest.raises(StreamsError, match="1 millisecond"):
        start(lambda builder: builder.stream("in", **numbers).process(Zero))


def test_all_processors_are_closed_even_if_one_fails(numbers: Options) -> None:
    closed: list[str] = []

    def closing(name: str) -> Any:
        class Closing(Processor[Any, Any, Any, Any]):
            def process(self, record: Any) -> None: ...

            def close(self) -> None:
                closed.append(name)
                if name == "one":
                    raise ValueError("stuck")

        return Closing

    topology = Topology().add_source("source", "in", **numbers)
    for name in ("one", "two"):
        topology.add_processor(name, closing(name), "source")
    driver = TopologyTestDriver(topology)
    with pytest.raises(StreamsError, match="failed to close processor one: stuck"):
        driver.close()
    assert closed == ["one", "two"]


class DictStore(dict[str, int]):
    """The part of a store that Totals needs."""

    put = dict.__setitem__
    all = dict.items


def test_the_mock_context_records_a_processors_actions() -> None:
    context = MockProcessorContext({"application.id": "app"})
    store = DictStore()
    context.add_state_store("totals", store)
    context.set_record_metadata("in", 1, 2)
    context.set_current_stream_time_ms(7)
    processor = Totals()
    processor.init(context)
    processor.process(Record("k", 3, 5))
    [captured] = context.scheduled_punctuators()
    captured.punctuator(50)
    context.commit()
    assert store == {"k": 3}
    assert [(f.record, f.child) for f in context.forwarded()] == [(Record("k", 3, 50), None)]
    assert (captured.interval_ms, captured.type) == (10, Punctuation.STREAM_TIME)
    assert (context.application_id, context.record_metadata(), context.current_stream_time_ms()) == (
        "app",
        ("in", 1, 2),
        7,
    )
    assert context.committed()
    context.reset_forwards()
    context.reset_commit()
    assert (context.forwarded(), context.committed()) == ([], False)


class Measured(FixedKeyProcessor[Any, Any, Any]):
    """Uses everything in Kafka Streams' ProcessingContext."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.sensor = context.metrics.add_latency_rate_total_sensor("app", "measured", "step")

    def process(self, record: Any) -> None:
        self.sensor.record(record.value)
        file = self.context.state_dir / "last"
        file.write_bytes(self.context.value_serde.serialize("", record.value) or b"")
        self.context.forward(record.with_value(self.context.key_serde.deserialize("", file.read_bytes())))


SERDES = {"default.key.serde": Serdes.string(), "default.value.serde": Serdes.json()}


def test_a_processor_in_the_driver_has_serdes_metrics_and_a_directory(start: Any) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in").process_values(Measured)
        stream.to("out", value_serde=Serdes.string())

    flow = start(declare, SERDES).pipe("in", "k", 17, 5)
    assert flow.read() == [("k", "17", 5)]
    assert {metric.name: metric.value for metric in flow.driver.metrics()} == {
        "step-rate": pytest.approx(1 / 30),
        "step-total": 1.0,
        "step-latency-avg": 17.0,
        "step-latency-max": 17.0,
    }


def test_a_mock_context_has_serdes_metrics_and_its_directory(tmp_path: Path) -> None:
    context = MockProcessorContext(SERDES, state_dir=tmp_path)
    processor = Measured()
    processor.init(context)
    processor.process(Record("k", 17, 5))
    assert [captured.record.value for captured in context.forwarded()] == ["17"]
    assert {metric.name: metric.value for metric in context.metrics.metrics()}["step-latency-max"] == 17.0
    with pytest.raises(StreamsError, match=r"MockProcessorContext\(state_dir=tmp_path\)"):
        MockProcessorContext().state_dir  # noqa: B018
