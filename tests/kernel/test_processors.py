"""What the kernel does for user-written processors: it copies and forwards records and logs changes as Python does."""

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
    kernel,
)
from penstock.testing import TopologyTestDriver, driver_task
from penstock.topology.context.timestamp_extractors import TIMESTAMP_MAX
from penstock.topology.records import SentRecord
from penstock.topology.run.compiled import compile_topology
from tests.without_kernel import leave_out_kernel

pytestmark = pytest.mark.skipif(kernel.processors is None, reason="the compiled kernel is not built here")

FIELD = st.none() | st.integers() | st.text()
TIMES: tuple[Any, ...] = (0, 1, TIMESTAMP_MAX, TIMESTAMP_MAX + 1, 2**64, -1, -(2**70), True, 7.0, 7.5, "7", None)


@given(fields=st.tuples(FIELD, FIELD, st.integers(), st.none() | st.just([("h", b"v")])), new=FIELD)
def test_records_are_copied_with_another_field(fields: tuple[Any, ...], new: Any) -> None:
    record: Record[Any, Any] = Record(*fields)
    methods: list[Any] = [Record.with_key, Record.with_value, Record.with_timestamp]
    for method in methods:
        copy = method(record, new)
        assert type(copy) is Record
        assert copy == method.__wrapped__(record, new)
        with pytest.raises(TypeError):
            method(tuple(record), new)


class Sends(Processor[str, str, Any, Any]):
    """Writes and forwards what it is made for, and notes the task's record after it and in a punctuation."""

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
    patch: pytest.MonkeyPatch, work: Callable[[ProcessorContext, Record[str, str]], None], fused: bool
) -> tuple[list[SentRecord], list[Any], str]:
    """Return what a processor sends of two records, what it sees, and the error."""
    seen: list[Any] = []
    error = ""
    patch.setattr(driver_task, "compile_topology", partial(compile_topology, fused=fused))
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
    patch.setattr(driver_task.DriverTask, "send", lambda task, topic, *rest: produced.append(SentRecord(topic, *rest)))
    try:
        with TopologyTestDriver(builder.build()) as driver:
            topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
            for timestamp in (5, 20):
                topic.pipe_input("k", "v", timestamp, headers=[("h", b"v")])
    except Exception as failed:  # noqa: BLE001 - the same one, with and without the kernel
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
    partial(forward, lambda record: record.with_value(7)),  # which its serde refuses
    partial(forward_to, "nobody"),
    partial(forward_to, "KSTREAM-FILTER-0000000002"),
    *(partial(put, "plain", value) for value in ("v", "", None, 7)),
    *(partial(put, "timed", ValueAndTimestamp("v", time)) for time in TIMES),
    *(partial(put, "timed", value) for value in (None, ("v", 7), ["v", 7], ("v",), "v", ValueAndTimestamp(None, 7))),
]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("fused", [True, False])
def test_a_processor_does_the_same_without_the_kernel(
    work: Callable[[ProcessorContext, Record[str, str]], None], fused: bool
) -> None:
    outcomes = []
    for leave_out in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if leave_out:
                leave_out_kernel(patch)
            outcomes.append(outcome(patch, work, fused))
    assert outcomes[0] == outcomes[1]
    _, seen, error = outcomes[0]
    own = [("h", b"v")]
    assert error.startswith("Exception caught in process.") or seen == [
        *((5, 5, headers) for headers in (own, None)),  # of the record, then of the punctuation
        *((20, 20, headers) for headers in (own, None)),
    ]


def test_changes_are_logged_by_the_writer_of_the_task() -> None:
    """The ordinary way, without a call of Python between the store and the batches of the producer."""
    taken = kernel.record_accumulator.RecordAccumulator(1000, 1000, None, lambda: 0)
    taken.know("changes", 3)

    class Producer:
        transactional = False

    def plain(*record: Any) -> None:
        raise AssertionError(record)

    writer = kernel.sinks.RecordWriter(taken, plain, [], Producer(), {"store": ("changes", 2)})

    class Task:
        timestamp = 7

    log = kernel.sinks.plain_logger(writer.log_change, "store", Task, str.encode)
    timed = kernel.sinks.timestamped_logger(writer.log_change, "store", Task, str.encode, plain)
    assert [log(b"a", "1"), log(b"b", None)] == [b"1", None]
    assert [timed(b"a", ("1", 5)), timed(b"b", None)] == [bytes(7) + b"\5" + b"1", None]
    (partition,) = taken.begun
    assert (partition.topic, partition.index, partition.growing.count) == ("changes", 2, 4)
