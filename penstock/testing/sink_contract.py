"""The contract of sinks, as tests: what a sink must do so that KStream.to_sink() writes exactly once.

A subclass in a test module is a class of tests for pytest::

    class TestMySink(SinkContract):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.path = tmp_path / "rows.db"

        def make_sink(self, mode):
            return MySink(self.path, mode)

        def rows(self):
            return my_rows(self.path)
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.sinks import (
    RefusedRowsError,
    Sink,
    SinkContext,
    SinkFencedError,
    SinkRecord,
    SinkUnavailableError,
    SinkWriter,
)
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes

APPLICATION = "sink-contract"
NODE = "rows-sink"
FIRST, SECOND = TopicPartition("input", 0), TopicPartition("input", 1)
#: Ids of a topic before and after it was deleted and created again.
OLD_ID, NEW_ID = "0a" * 16, "0b" * 16
BOTH = {FIRST: OLD_ID, SECOND: OLD_ID}


@dataclass
class Row:
    """The values of the contract's records; the keys are text."""

    number: int
    text: str


class SinkContract(ABC):
    """The tests. make_sink and rows are abstract; set upserts or refused in a subclass if they do not apply."""

    #: Whether the sink has a mode "upsert".
    upserts = True
    #: A value of a row that the sink refuses, None if it refuses none.
    refused: Row | None = None

    @abstractmethod
    def make_sink(self, mode: str) -> Sink:
        """Return a sink; mode: "append" or "upsert". Both write to the same place, which is empty before a test.

        In mode upsert the record's key is in a column ``key``, and in both modes the fields of Row have columns.
        """

    @abstractmethod
    def rows(self) -> list[tuple[int, str]]:
        """Return number and text of all rows that are committed, in any order."""

    # -- tests

    def test_a_new_sink_has_no_offsets(self) -> None:
        """The task begins at the group's committed offsets."""
        with self._opened() as make:
            assert dict(make().fence(BOTH)) == {}

    def test_rows_and_offsets_are_stored_together(self) -> None:
        """Another writer continues at the stored offset."""
        with self._opened() as make:
            writer = _fenced(make())
            writer.write(_records(1, 2), {FIRST: 2})
            writer.write(_records(3), {FIRST: 5})
            assert dict(writer.offsets()) == {FIRST: 5}
            assert dict(make().fence(BOTH)) == {FIRST: (5, OLD_ID)}
        self._has(1, 2, 3)

    def test_offsets_are_stored_without_rows(self) -> None:
        """All rows of a batch may have been refused."""
        with self._opened() as make:
            writer = _fenced(make())
            writer.write([], {FIRST: 7, SECOND: 1})
            assert dict(writer.offsets()) == {FIRST: 7, SECOND: 1}

    def test_a_replaced_writer_writes_nothing(self) -> None:
        """It is a zombie: its task runs in another place."""
        with self._opened() as make:
            zombie, owner = make(), make()
            _fenced(zombie).write(_records(1), {FIRST: 1})
            _fenced(owner)
            _is_fenced(zombie, lambda: zombie.write(_records(2), {FIRST: 2}))
            owner.write(_records(3), {FIRST: 2})
            _is_fenced(zombie, lambda: zombie.write(_records(4), {FIRST: 3}))
            _is_fenced(zombie, zombie.offsets)
            owner.write(_records(5), {FIRST: 3})
            assert dict(owner.offsets()) == {FIRST: 3}
        self._has(1, 3, 5)

    def test_a_writer_that_is_fenced_for_one_partition_writes_none(self) -> None:
        """A transaction is all or nothing."""
        with self._opened() as make:
            zombie, owner = _fenced(make()), make()
            owner.fence({SECOND: OLD_ID})
            _is_fenced(zombie, lambda: zombie.write(_records(1), {FIRST: 1, SECOND: 1}))
            assert dict(owner.offsets()) == {}
        self._has()

    def test_partitions_have_writers_of_their_own(self) -> None:
        """Tasks of different partitions do not replace each other."""
        with self._opened() as make:
            first, second = make(), make()
            first.fence({FIRST: OLD_ID})
            second.fence({SECOND: OLD_ID})
            first.write(_records(1), {FIRST: 10})
            second.write(_records(2), {SECOND: 20})
            first.write(_records(3), {FIRST: 11})
            assert dict(first.offsets()) == {FIRST: 11}
            assert dict(second.offsets()) == {SECOND: 20}
        self._has(1, 2, 3)

    def test_sinks_and_applications_have_offsets_of_their_own(self) -> None:
        """Two of them may read the same topic."""
        with self._opened() as make:
            _fenced(make()).write(_records(1), {FIRST: 1})
            assert dict(make(node="other-sink").fence(BOTH)) == {}
            assert dict(make(application="other").fence(BOTH)) == {}

    def test_the_id_of_the_topic_is_stored(self) -> None:
        """Offsets of a topic that was deleted and created again mean other records; an unknown id changes nothing."""
        with self._opened() as make:
            _fenced(make()).write(_records(1), {FIRST: 100})
            unknown = make()
            unknown.fence({FIRST: ""})
            unknown.write(_records(2), {FIRST: 101})
            again = make()
            assert dict(again.fence({FIRST: NEW_ID})) == {FIRST: (101, OLD_ID)}
            again.write(_records(3), {FIRST: 1})
            assert dict(make().fence({FIRST: NEW_ID})) == {FIRST: (1, NEW_ID)}

    def test_a_refused_row_keeps_its_batch_out(self) -> None:
        """The task decides about the row, and writes the others again."""
        if self.refused is None:
            return
        with self._opened() as make:
            writer = _fenced(make())
            records = _records(1, 2, 3, 4)
            records[2] = records[2]._replace(value=self.refused)
            try:
                writer.write(records, {FIRST: 4})
            except RefusedRowsError as error:
                refused = error.refused
            assert list(refused) == [2]
            assert dict(writer.offsets()) == {}
            self._has()
            writer.write([*records[:2], records[3]], {FIRST: 4})
            assert dict(writer.offsets()) == {FIRST: 4}
        self._has(1, 2, 4)

    def test_a_closed_writer_has_written_all_or_nothing(self) -> None:
        """Closing writes nothing, and may be repeated."""
        with self._opened() as make:
            writer = _fenced(make())
            writer.write(_records(1), {FIRST: 1})
            writer.close()
            writer.close()
            assert dict(make().fence(BOTH)) == {FIRST: (1, OLD_ID)}
        self._has(1)

    def test_stored_offsets_are_listed_and_forgotten(self) -> None:
        """``penstock reset`` shows and deletes them; rows stay."""
        sink = self.make_sink("append")
        assert list(sink.stored(APPLICATION)) == []
        sink.forget(APPLICATION)
        with self._opened() as make:
            _fenced(make()).write(_records(1), {FIRST: 3})
            _fenced(make(application="other")).write(_records(2), {FIRST: 4})
        assert list(sink.stored(APPLICATION)) == [(NODE, FIRST, 3)]
        sink.forget(APPLICATION)
        assert list(sink.stored(APPLICATION)) == []
        assert list(sink.stored("other")) == [(NODE, FIRST, 4)]
        self._has(1, 2)

    def test_upserts_keep_the_last_row_of_each_key(self) -> None:
        """Within a batch and over batches; a null value deletes the row."""
        if not self.upserts:
            return
        with self._opened("upsert") as make:
            writer = _fenced(make())
            writer.write([_record("a", 1), _record("b", 2), _record("a", 3)], {FIRST: 3})
            self._has(2, 3)
            writer.write([_record("b", None), _record("c", 4), _record("never", None)], {FIRST: 6})
            self._has(3, 4)
            writer.write([_record("a", None), _record("a", 5), _record("c", 6), _record("c", None)], {FIRST: 10})
            self._has(5)

    def test_it_is_part_of_a_topology(self) -> None:
        """Topologies are pickled, and described."""
        sink = self.make_sink("append")
        assert str(pickle.loads(pickle.dumps(sink))) == str(sink) != object.__repr__(sink)  # noqa: S301  its own

    # -- helpers

    def _opened(self, mode: str = "append") -> _Writers:
        return _Writers(self.make_sink(mode))

    def _has(self, *numbers: int) -> None:
        """Assert that these rows are committed."""
        assert Counter(self.rows()) == Counter((number, f"row {number}") for number in numbers)


class _Writers:
    """Opens writers of a sink, and closes them at the end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._closing = ExitStack()

    def __enter__(self) -> Callable[..., SinkWriter]:
        return self._open

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _open(self, application: str = APPLICATION, node: str = NODE) -> SinkWriter:
        context = SinkContext(application, node, Serdes.string(), Serdes.json(Row))
        writer = self._sink.open(context)
        self._closing.callback(writer.close)
        return writer


def _fenced(writer: SinkWriter, topic_ids: Mapping[TopicPartition, str] = BOTH) -> SinkWriter:
    writer.fence(topic_ids)
    return writer


def _record(key: str, number: int | None) -> SinkRecord:
    value = None if number is None else Row(number, f"row {number}")
    return SinkRecord(key, value, 1_700_000_000_000, None)


def _records(*numbers: int) -> list[SinkRecord]:
    return [_record(f"key {number}", number) for number in numbers]


def _is_fenced(writer: SinkWriter, action: Callable[[], object]) -> None:
    """Assert that a replaced writer learns of it, at once or when it asks whether it has written."""
    try:
        try:
            action()
        except SinkUnavailableError:
            writer.offsets()
    except SinkFencedError:
        return
    raise AssertionError("a replaced writer was not refused")
