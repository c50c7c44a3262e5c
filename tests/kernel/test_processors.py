"""The kernel's work for user-written processors: it copies and forwards records, and logs changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    ValueAndTimestamp,
)
from penstock.kernel.nodes import RecordContext
from penstock.kernel.processors import ValueLogger
from penstock.kernel.record_accumulator import RecordAccumulator
from penstock.kernel.sinks import Changelog, RecordWriter
from penstock.testing import TopologyTestDriver, driver_task
from penstock.topology.context.task_output import NoOutput
from penstock.topology.context.timestamp_extractors import TIMESTAMP_MAX
from penstock.topology.records import SentRecord

FIELD = st.none() | st.integers() | st.text()
TIMES: tuple[Any, ...] = (0, 1, TIMESTAMP_MAX, TIMESTAMP_MAX + 1, 2**64, -1, -(2**70), True, 7.0, 7.5, "7", None)


@given(fields=st.tuples(FIELD, FIELD, st.integers(), st.none() | st.just([("h", b"v")])), new=FIELD)
def test_records_are_copied_with_another_field(fields: tuple[Any, ...], new: Any) -> None:
    record: Record[Any, Any] = Record(*fields)
    methods: dict[str, Any] = {"key": Record.with_key, "value": Record.with_value, "timestamp": Record.with_timestamp}
    for field, method in methods.items():
        copy = method(record, new)
        assert type(copy) is Record
        assert copy == record._replace(**{field: new})
        with pytest.raises(TypeError):
            method(tuple(record), new)


class Sends(Processor[str, str, Any, Any]):
    """Writes and forwards its records, and records the task's current record afterwards and in a punctuation."""

    def __init__(self, work: Callable[[ProcessorContext, Record[str, str]], None], seen: list[Any]) -> None:
        self.work = work
        self.seen = seen

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.schedule(timedelta(milliseconds=10), Punctuation.STREAM_TIME, self.see)

    def process(self, record: Record[str, str]) -> None:
        self.work(self.context, record)
        self.see(record.timestamp)

    def see(self, now: int) -> None:
        task = self.context._task  # type: ignore[attr-defined]
        self.seen.append((now, task.timestamp, task.headers))


def outcome(
    patch: pytest.MonkeyPatch, work: Callable[[ProcessorContext, Record[str, str]], None]
) -> tuple[list[SentRecord], list[Any], str]:
    """Return the records that a processor sends for two inputs, what it sees, and the error."""
    seen: list[Any] = []
    error = ""
    builder = StreamsBuilder()
    for made in (
        Stores.key_value_store_builder(Stores.persistent_key_value_store("plain"), Serdes.string(), Serdes.string()),
        Stores.timestamped_key_value_store_builder(
            Stores.persistent_timestamped_key_value_store("timed"), Serdes.string(), Serdes.string()
        ),
    ):
        builder.add_state_store(made.with_caching_disabled())
    sent = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string()).process(
        partial(Sends, work, seen), "plain", "timed"
    )
    sent.filter(lambda key, value: value != "dropped").to("out", key_serde=Serdes.string(), value_serde=Serdes.string())
    sent.process(partial(Sends, lambda context, record: None, []))  # has its own time and headers
    produced: list[SentRecord] = []
    patch.setattr(driver_task.DriverOutput, "send", lambda _, topic, *rest: produced.append(SentRecord(topic, *rest)))
    try:
        with TopologyTestDriver(builder.build()) as driver:
            topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
            for timestamp in (5, 20):
                topic.pipe_input("k", "v", timestamp, headers=[("h", b"v")])
    except Exception as failed:  # noqa: BLE001 - the same one, in a loop or not
        error = str(failed)
    return produced, seen, error


def forward(what: Any, context: ProcessorContext, record: Record[str, str]) -> None:
    context.forward(what(record) if callable(what) else what)


def forward_to(child: str, context: ProcessorContext, record: Record[str, str]) -> None:
    context.forward(record.with_value("to a child"), child)


def put(store: str, value: Any, context: ProcessorContext, record: Record[str, str]) -> None:
    context.get_state_store(store).put(record.key, value)
    context.forward(record)


WORK = [
    *(partial(forward, lambda record, time=time: Record("a", "b", time)) for time in TIMES),
    *(partial(forward, lambda record, time=time: record.with_timestamp(time)) for time in TIMES),
    partial(forward, lambda record: record.with_headers({"another": "x"})),
    partial(forward, lambda record: record.with_key(None).with_value("dropped")),
    partial(forward, ("k", "a plain tuple", 3, None)),
    partial(forward, ["k", "a list", 3, None]),
    partial(forward, ("too", "short")),
    partial(forward, None),
    partial(forward, lambda record: record.with_value(7)),  # its serde refuses it
    partial(forward_to, "nobody"),
    partial(forward_to, "KSTREAM-FILTER-0000000002"),
    *(partial(put, "plain", value) for value in ("v", "", None, 7)),
    *(partial(put, "timed", ValueAndTimestamp("v", time)) for time in TIMES),
    *(partial(put, "timed", value) for value in (None, ("v", 7), ["v", 7], ("v",), "v", ValueAndTimestamp(None, 7))),
]


@pytest.mark.parametrize("work", WORK)
def test_a_processor_sees_its_own_record_whatever_it_does(
    work: Callable[[ProcessorContext, Record[str, str]], None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _, seen, error = outcome(patch, work)
    own = [("h", b"v")]
    assert error.startswith("Exception caught in process.") or seen == [
        *((5, 5, headers) for headers in (own, None)),  # of the record, then of the punctuation
        *((20, 20, headers) for headers in (own, None)),
    ]


def test_the_tasks_writer_logs_changes() -> None:
    """The usual path, without a Python call between the store and the producer's batches."""
    taken = RecordAccumulator(1000, 1000, lambda records: None, lambda: 0)
    taken.know("changes", 3)

    class Producer:
        transactional = in_transaction = False

    output = NoOutput("All records are ordinary")
    changelog = Changelog(RecordWriter(taken, output, [], Producer(), {"store": ("changes", 2)}), "store")

    task = RecordContext()
    task.timestamp = 7
    log = ValueLogger(changelog, task, str.encode)
    timed = ValueLogger(changelog, task, str.encode, lambda key, value: pytest.fail(f"{value} is ordinary"))
    assert [log(b"a", "1"), log(b"b", None)] == [b"1", None]
    assert [timed(b"a", ("1", 5)), timed(b"b", None)] == [bytes(7) + b"\5" + b"1", None]
    (partition,) = taken.begun
    assert partition.growing is not None
    assert (partition.topic, partition.index, partition.growing.count) == ("changes", 2, 4)
